package restore

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"oncebus/processor/kafka"
)

// TestRebuildsAreCounted protects that rebuilds are counted per task, over an hour, and over restarts.
func TestRebuildsAreCounted(t *testing.T) {
	dir := t.TempDir()
	why, now := errors.New("checksum\nof a\tpage"), time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	guard := func() *rebuildGuard { return &rebuildGuard{dir: dir, max: 2} }
	if err := guard().allow("a/0", why, now); err != nil {
		t.Fatal(err)
	}
	if err := guard().allow("a/1", why, now); err != nil {
		t.Fatal(err)
	}
	if err := guard().allow("a/0", why, now.Add(30*time.Minute)); err != nil {
		t.Fatal(err)
	}
	for _, at := range []time.Duration{31 * time.Minute, 59 * time.Minute, -time.Minute} {
		err := guard().allow("a/0", why, now.Add(at))
		if !errors.Is(err, kafka.ErrOperator) || !errors.Is(err, why) || !strings.Contains(err.Error(), "task a/0: too many rebuilds: its store failed 2 times") || !strings.Contains(err.Error(), "delete "+dir) {
			t.Errorf("after %v: %v", at, err)
		}
	}
	if err := guard().allow("a/0", why, now.Add(61*time.Minute)); err != nil {
		t.Fatal(err)
	}
	if err := (&rebuildGuard{dir: dir}).allow("a/0", why, now); err != nil { // no limit
		t.Fatal(err)
	}

	path := filepath.Join(dir, RebuildsName)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if text := string(b); strings.Count(text, "\n") != 2 || !strings.Contains(text, "2026-11-21T12:30:00Z\ta/0\tchecksum of a page\n") {
		t.Errorf("the file says %q", text)
	}
	if err := os.WriteFile(path, []byte("x\n\n2026-11-21T13:01:00Z\n\x00\xff"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := guard().allow("a/0", why, now.Add(61*time.Minute)); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := guard().allow("a/0", why, now); err == nil || errors.Is(err, kafka.ErrOperator) {
		t.Errorf("a count file that cannot be written: %v", err)
	}
}
