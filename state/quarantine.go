package state

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// quarantinesKept is how many quarantined directories of one store are kept.
const quarantinesKept = 2

const quarantineInfix = ".quarantine-"

// Quarantine renames the directory of a closed store to a sibling with the given time in its name, and
// returns the new path. The old path is then free for a new store. Quarantine keeps the last two directories
// of a store for inspection and removes older ones.
func Quarantine(dir string, now time.Time) (string, error) {
	dir = filepath.Clean(dir)
	name := dir + quarantineInfix + now.UTC().Format("20060102T150405.000000000Z")
	if _, err := os.Lstat(name); err == nil {
		return "", fmt.Errorf("quarantine %s: %s exists already", dir, name)
	}
	if err := os.Rename(dir, name); err != nil {
		return "", fmt.Errorf("quarantine: %w", err)
	}
	entries, err := os.ReadDir(filepath.Dir(dir))
	if err != nil {
		return name, fmt.Errorf("quarantine %s: %w", dir, err)
	}
	var kept []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), filepath.Base(dir)+quarantineInfix) {
			kept = append(kept, filepath.Join(filepath.Dir(dir), e.Name()))
		}
	}
	slices.Sort(kept)
	var errs []error
	for _, old := range kept[:max(0, len(kept)-quarantinesKept)] {
		if err := os.RemoveAll(old); err != nil {
			errs = append(errs, fmt.Errorf("quarantine %s: remove an older quarantine: %w", dir, err))
		}
	}
	return name, errors.Join(errs...)
}

// diskBytes returns the disk space of the files in dir. It ignores files that
// Badger removes in the meantime.
func diskBytes(dir string) uint64 {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0
	}
	var sum uint64
	for _, e := range entries {
		if info, err := e.Info(); err == nil {
			sum += allocated(info)
		}
	}
	return sum
}
