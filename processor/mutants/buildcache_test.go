//go:build mutants

package mutants

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A buildCache is Go's build cache for the mutants of one turn. It begins as a copy
// that shares its files with the user's cache, so nothing is compiled twice. What a
// mutant compiles to stays in the copy and goes with it: go build would keep the
// packages of 350 mutants, tens of gigabytes, for five days.
type buildCache struct {
	dir     string // "" is the user's own
	planted int    // mutants since the copy was made
}

// mutantsPerCache is how many mutants leave what they compile to, 30 to 100 MB each,
// in one copy of the build cache. To make a copy takes about a second.
const mutantsPerCache = 8

// turns returns atATime build caches. The mutant that has taken one runs.
func turns(t *testing.T) chan *buildCache {
	t.Helper()
	all := make(chan *buildCache, atATime)
	for range atATime {
		all <- &buildCache{planted: mutantsPerCache}
	}
	t.Cleanup(func() {
		for range atATime {
			if err := os.RemoveAll((<-all).dir); err != nil {
				t.Error(err)
			}
		}
	})
	return all
}

// forNext makes the cache fit for the next mutant: a new copy if the old one is full.
func (c *buildCache) forNext(t *testing.T) {
	t.Helper()
	if c.planted++; c.planted <= mutantsPerCache {
		return
	}
	out, err := exec.CommandContext(t.Context(), "go", "env", "GOCACHE").Output()
	if err != nil {
		t.Fatal(err)
	}
	whole := strings.TrimSpace(string(out))
	if err := os.RemoveAll(c.dir); err != nil {
		t.Fatal(err)
	}
	// Files can be shared within one file system only.
	if c.dir, err = os.MkdirTemp(filepath.Dir(whole), "mutants-"); err != nil { //nolint:usetesting // see above
		t.Fatal(err)
	}
	if err := shareFiles(whole, c.dir); err != nil {
		t.Fatal(err)
	}
	c.planted = 1
}

// shareFiles links every file below from, other than what fuzzing has found, to the
// same place below to.
func shareFiles(from, to string) error {
	err := filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(from, path)
		switch {
		case err != nil:
			return err
		case entry.IsDir() && name == "fuzz":
			return filepath.SkipDir
		case entry.IsDir():
			return os.MkdirAll(filepath.Join(to, name), 0o700)
		}
		return os.Link(path, filepath.Join(to, name))
	})
	if err != nil {
		return fmt.Errorf("copy the build cache: %w", err)
	}
	return nil
}
