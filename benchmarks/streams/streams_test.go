//go:build unix

package streams

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"oncebus/benchmarks/internal/bench"
	"oncebus/processor/kafkatest"
)

// TestVersion compares the peer's version with the broker's.
func TestVersion(t *testing.T) {
	if want := "<artifactId>kafka-streams</artifactId>\n      <version>" + kafkatest.KafkaVersion + "</version>"; !bytes.Contains(pom, []byte(want)) {
		t.Errorf("pom.xml does not contain %q", want)
	}
}

// TestCommand compares the settings with those that the source of the Java program
// reads.
func TestCommand(t *testing.T) {
	task := bench.Task{App: "a", Brokers: []string{"x:1", "y:2"}, Input: "in", Workers: 3, Commit: 20 * time.Millisecond, StateDir: t.TempDir()}
	cmd, err := (&App{java: "java"}).Command(context.Background(), task, Window)
	if err != nil {
		t.Fatal(err)
	}
	var settings []string
	for _, variable := range cmd.Env {
		if rest, ours := strings.CutPrefix(variable, "ONCEBUS_STREAMS_"); ours {
			name, value, _ := strings.Cut(rest, "=")
			settings = append(settings, name)
			if want := map[string]string{"BROKERS": "x:1,y:2", "APPLICATION_ID": "a-dedup", "COMMIT_MS": "20", "STORE": "window", "OUTPUT": "a-output"}[name]; want != "" && value != want {
				t.Errorf("%s is %q, want %q", name, value, want)
			}
		}
	}
	for _, name := range settings {
		if !bytes.Contains(source, []byte(`setting("`+name+`")`)) {
			t.Errorf("the program does not read %s", name)
		}
	}
	asked := bytes.Count(source, []byte(`setting("`)) - 1 // an error's text names the store too
	if asked != len(settings) || len(slices.Compact(slices.Sorted(slices.Values(settings)))) != len(settings) {
		t.Errorf("the program reads %d settings and gets %v", asked, settings)
	}
}

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
