//go:build unix

package jvm

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestOnce fills a directory that is always complete.
func TestOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cache", "built")
	broken := errors.New("broken")
	if err := once(dir, func(string) error { return broken }); !errors.Is(err, broken) {
		t.Errorf("a fill that failed: error %v", err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory of a fill that failed exists (%v)", err)
	}
	fills := 0
	for range 2 {
		if err := once(dir, func(part string) error {
			fills++
			// Another call is faster.
			return errors.Join(os.WriteFile(filepath.Join(part, "mine"), nil, 0o600), os.MkdirAll(filepath.Join(dir, "theirs"), 0o755))
		}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "theirs")); err != nil || fills != 1 {
		t.Errorf("filled %d times, the first one's file: %v", fills, err)
	}
	if left, err := filepath.Glob(filepath.Join(filepath.Dir(dir), "*")); err != nil || len(left) != 1 {
		t.Errorf("next to the directory remains %v (%v)", left, err)
	}
}

// TestTool: the error names the missing tool and the remedy.
func TestTool(t *testing.T) {
	t.Setenv("JAVA_HOME", t.TempDir())
	if _, err := tool("javac"); err == nil || !errors.Is(err, exec.ErrNotFound) && !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "JDK") {
		t.Errorf("without a JDK: error %v", err)
	}
}
