package restore

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"oncebus/processor/kafka"
)

// TestStateOfOthersIsRefused protects that a file of another user in the state directory, or a link in it, ends the
// start with the way out. The directory itself may be a link, and files of root are trusted.
func TestStateOfOthersIsRefused(t *testing.T) {
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	elsewhere := t.TempDir()
	for name, c := range map[string]struct {
		change func(dir string)
		want   string
	}{
		"its own":               {func(string) {}, ""},
		"a linked task":         {func(dir string) { must(os.Symlink(elsewhere, filepath.Join(dir, "app", "topic-1"))) }, "symbolic link"},
		"a linked file":         {func(dir string) { must(os.Symlink(elsewhere, filepath.Join(dir, "app", "topic-0", "file"))) }, "symbolic link"},
		"a linked lock":         {func(dir string) { must(os.Symlink(filepath.Join(elsewhere, "x"), filepath.Join(dir, "LOCK"))) }, "symbolic link"},
		"a link without a goal": {func(dir string) { must(os.Symlink("/none", filepath.Join(dir, "app", "topic-1"))) }, "symbolic link"},
		"next to the app":       {func(dir string) { must(os.Symlink(elsewhere, filepath.Join(dir, "other"))) }, ""},
	} {
		dir := filepath.Join(t.TempDir(), "state")
		must(os.MkdirAll(filepath.Join(dir, "app", "topic-0"), 0o700))
		c.change(dir)
		linked := filepath.Join(t.TempDir(), "linked")
		must(os.Symlink(dir, linked))
		for _, of := range []string{dir, linked} {
			if err := CheckDir(of, "app"); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: a look at it: %v, want %q", name, err, c.want)
			}
			lock, err := lockDir(of)
			if err == nil {
				err = errors.Join(checkTrust(of, "app", os.Geteuid()), lock.Close())
			}
			if c.want == "" && err != nil || c.want != "" && (!errors.Is(err, kafka.ErrOperator) || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%s: %v, want %q", name, err, c.want)
			}
		}
		if _, err := os.Stat(filepath.Join(elsewhere, "x")); err == nil {
			t.Errorf("%s: something was written through a link", name)
		}
	}
	for _, below := range []string{"", "none", "none/none"} {
		at := filepath.Join(t.TempDir(), below)
		if err := CheckDir(at, "app"); err != nil {
			t.Errorf("a directory that a start makes: %v", err)
		}
		if _, err := os.Stat(at); below != "" && err == nil {
			t.Errorf("%s was made", at)
		}
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "app", "topic-0", "file")
	must(os.MkdirAll(filepath.Dir(file), 0o700))
	must(os.WriteFile(file, nil, 0o600))
	owner, process := os.Geteuid(), os.Geteuid()+1
	if owner == 0 { // root may give files away
		owner, process = 4242, 0
		must(os.Chown(file, owner, -1))
	}
	if err := checkTrust(dir, "app", process); !errors.Is(err, kafka.ErrOperator) || !strings.Contains(err.Error(), "belongs to user") {
		t.Errorf("a file of another user: %v", err)
	}
	if err := checkTrust(dir, "app", owner); err != nil {
		t.Errorf("a file of this user, in directories of root: %v", err)
	}
}
