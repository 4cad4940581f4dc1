package state

import (
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
		t.Error("a disk of size 0 has free space")
	}
	if name, err := NetworkFS(dir); name != "" || err != nil {
		t.Errorf("the temporary directory is on %q, %v", name, err)
	}
	if _, err := DiskSpace(filepath.Join(dir, "missing")); err == nil {
		t.Error("a missing directory has free space")
	}
}
