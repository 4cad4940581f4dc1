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

// quarantineKeep is how many directories set aside are kept of one store.
const quarantineKeep = 2

const quarantineMark = ".quarantine-"

// Quarantine sets a store's directory aside: it is renamed to a sibling, named
// by the given time, and the path is free for a new store. The last two of a
// store are kept for inspection, older ones are removed. It returns the new
// path. The store must be closed.
func Quarantine(dir string, now time.Time) (string, error) {
	dir = filepath.Clean(dir)
	name := dir + quarantineMark + now.UTC().Format("20060102T150405.000000000Z")
	if _, err := os.Lstat(name); err == nil {
		return "", fmt.Errorf("quarantine %s: %s exists", dir, name)
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
		if strings.HasPrefix(e.Name(), filepath.Base(dir)+quarantineMark) {
			kept = append(kept, filepath.Join(filepath.Dir(dir), e.Name()))
		}
	}
	slices.Sort(kept)
	var errs []error
	for _, old := range kept[:max(0, len(kept)-quarantineKeep)] {
		if err := os.RemoveAll(old); err != nil {
			errs = append(errs, fmt.Errorf("quarantine %s: remove the oldest: %w", dir, err))
		}
	}
	return name, errors.Join(errs...)
}

// diskBytes returns the disk space of the files in dir. Files that vanish
// meanwhile count nothing.
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
