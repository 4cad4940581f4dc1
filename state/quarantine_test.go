package state

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestQuarantineKeepsTwo(t *testing.T) {
	root := t.TempDir()
	dir, other := filepath.Join(root, "7"), filepath.Join(root, "77")
	must(t, os.Mkdir(other, 0o750))
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	var names []string
	for i := range 4 {
		must(t, os.Mkdir(dir, 0o750))
		must(t, os.WriteFile(filepath.Join(dir, "x"), []byte(fmt.Sprint(i)), 0o600))
		name, err := Quarantine(dir+"/", at.Add(time.Duration(i)*time.Second))
		must(t, err)
		names = append(names, name)
	}
	for i, name := range names {
		_, err := os.Stat(name)
		if removed := os.IsNotExist(err); removed != (i < 2) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Quarantine(dir, at); err == nil {
		t.Error("quarantine of a missing directory returned no error")
	}
	must(t, os.Mkdir(dir, 0o750))
	if _, err := Quarantine(dir, at.Add(3*time.Second)); err == nil {
		t.Error("an earlier quarantine was replaced")
	}
}
