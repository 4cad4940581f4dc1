package state

import (
	"os"
	"path/filepath"
	"testing"
)

func TestDiskSpace(t *testing.T) {
	dir := t.TempDir()
	s, err := DiskSpace(dir)
	must(t, err)
	if s.Free == 0 || s.Total < s.Free || s.FreePercent() <= 0 || s.FreePercent() > 100 {
		t.Errorf("%+v, %v %%", s, s.FreePercent())
	}
	if (Space{}).FreePercent() != 0 {
		t.Error("a disk of no size has something free")
	}
	if name, err := NetworkFS(dir); name != "" || err != nil {
		t.Errorf("the temporary directory is on %q, %v", name, err)
	}
	gone := filepath.Join(dir, "gone")
	if _, err := DiskSpace(gone); !os.IsNotExist(err) && err == nil {
		t.Error("a directory that is not there has space")
	}
}

// TestHold: while it is held a store flushes and does not merge; afterwards it
// makes up for it.
func TestHold(t *testing.T) {
	h := newHost(t, smallConfig())
	rested := rests(h)
	h.Hold(true)
	m := damageModel()
	s := mustOpen(t, h, t.TempDir())
	for _, txn := range m.txns {
		must(t, apply(s, txn))
		flush(t, s)
	}
	settle(t, s, rested)
	held := s.Stats().Runs
	if held != len(m.txns) {
		t.Errorf("%d runs while merges are held, want one for each of %d flushes", held, len(m.txns))
	}
	must(t, m.checkGets(s))
	h.Hold(true)
	h.Hold(false)
	settle(t, s, rested)
	if runs := s.Stats().Runs; runs >= held/2 {
		t.Errorf("%d runs after merges were let go, %d before", runs, held)
	}
	must(t, m.check(s, m.position()))
	must(t, s.Close())
}
