package state

import (
	"os"
	"path/filepath"
	"testing"
)

// TestDiskSpaceIsMeasuredAfterChanges protects that the figures of a store cost no reading of a directory: the store
// measures its disk space when it opens, and again after a flush.
func TestDiskSpaceIsMeasuredAfterChanges(t *testing.T) {
	h := newHost(t, smallConfig())
	idle := watchIdle(h)
	dir := t.TempDir()
	s := mustOpen(t, h, dir)
	awaitIdle(t, s, idle)
	opened := s.Stats().DiskBytes
	if opened == 0 || opened != diskBytes(dir) {
		t.Errorf("%d bytes after the store opened, %d are on disk", opened, diskBytes(dir))
	}
	must(t, os.WriteFile(filepath.Join(dir, "other"), make([]byte, 1<<20), 0o600))
	awaitIdle(t, s, idle)
	if got := s.Stats().DiskBytes; got != opened {
		t.Errorf("%d bytes without a flush, %d before", got, opened)
	}
	s.Put(rowOf(1))
	must(t, s.Apply(1, nil))
	flush(t, s)
	awaitIdle(t, s, idle)
	if got := s.Stats().DiskBytes; got != diskBytes(dir) || got < opened+1<<20 {
		t.Errorf("%d bytes after a flush, %d are on disk", got, diskBytes(dir))
	}
	must(t, s.Close())
}
