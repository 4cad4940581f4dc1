package state

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/dgraph-io/badger/v4"
)

// ErrUnclean is wrapped when the host stopped while a store was open: what of
// its files reached the disk nobody knows (E1). The way out is the same as for
// ErrCorrupt.
var ErrUnclean = errors.New("state of a host that stopped uncleanly")

// statusName is the file of a store's directory that tells the next Open how
// this one ended. It is text, so that a person, or a test that plays a power
// loss, can read and change it:
//
//	oncebus store 1
//	state open
//	boot 4b0a4fcc-7a0c-4d04-8f5c-0f1d6fd0a9c7
//	tries 0
//
// It has a fixed size and is overwritten in place: one sector is written whole
// or not at all, also on a disk that is full.
const statusName = "STATUS"

const (
	statusTitle = "oncebus store 1"
	statusBytes = 128
)

// What a status says of the store.
const (
	statusOpening = "opening" // between Open and the end of the keeper's first round
	statusOpen    = "open"
	statusClosed  = "closed" // everything is on disk
)

// openTriesMax is how many times in a row a process may die between Open and
// the end of the keeper's first round before the files are held to be what
// kills it. Errors and panics of Badger that can be caught are not among the
// deaths, so it takes something like SIGBUS.
const openTriesMax = 3

// status is what the status file says.
type status struct {
	state string
	boot  string // id of the boot the state is of; "" if the system has none
	tries int    // of opening, in a row
}

// bootID returns the kernel's id of this boot, "" where there is none to be
// had: outside of Linux, or without /proc.
func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// readStatus reads the status of a store's directory; nil if there is no
// store in it. Files of Badger without a readable status are ErrCorrupt.
func readStatus(dir string) (*status, error) {
	if info, err := os.Lstat(filepath.Join(dir, statusName)); err == nil && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%w: %s in %s is no file", ErrCorrupt, statusName, dir)
	}
	b, err := os.ReadFile(filepath.Join(dir, statusName))
	if errors.Is(err, fs.ErrNotExist) {
		_, err := os.Lstat(filepath.Join(dir, badger.ManifestFilename))
		switch {
		case err == nil:
			return nil, fmt.Errorf("%w: %s has no %s file", ErrCorrupt, dir, statusName)
		case errors.Is(err, fs.ErrNotExist):
			return nil, nil
		}
		return nil, fmt.Errorf("read status: %w", err)
	}
	if err != nil {
		return nil, fmt.Errorf("read status: %w", err)
	}
	s, ok := parseStatus(string(b))
	if !ok {
		return nil, fmt.Errorf("%w: %s cannot be understood", ErrCorrupt, filepath.Join(dir, statusName))
	}
	return s, nil
}

func parseStatus(text string) (*status, bool) {
	lines := strings.Split(text, "\n")
	if len(lines) < 4 || lines[0] != statusTitle {
		return nil, false
	}
	var s status
	var tries string
	for i, field := range []struct {
		name string
		to   *string
	}{{"state ", &s.state}, {"boot ", &s.boot}, {"tries ", &tries}} {
		value, ok := strings.CutPrefix(lines[i+1], field.name)
		if !ok {
			return nil, false
		}
		*field.to = value
	}
	var err error
	s.tries, err = strconv.Atoi(tries)
	known := s.state == statusOpening || s.state == statusOpen || s.state == statusClosed
	return &s, err == nil && s.tries >= 0 && known
}

// write makes the file say s, durably.
func (s status) write(dir string) (err error) {
	text := fmt.Sprintf("%s\nstate %s\nboot %s\ntries %d\n", statusTitle, s.state, s.boot, s.tries)
	if len(text) > statusBytes {
		return fmt.Errorf("write status: %d bytes are too many", len(text))
	}
	path := filepath.Join(dir, statusName)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("write status: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("write status: %w", err)
	}
	if _, err := f.WriteAt([]byte(text+strings.Repeat("\n", statusBytes-len(text))), 0); err != nil {
		return fmt.Errorf("write status: %w", err)
	}
	if info.Size() > statusBytes {
		if err := f.Truncate(statusBytes); err != nil {
			return fmt.Errorf("write status: %w", err)
		}
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("write status: %w", err)
	}
	if info.Size() == 0 {
		return syncDir(dir) // so that the new file has a name
	}
	return nil
}

func syncDir(dir string) (err error) {
	f, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync directory: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := f.Sync(); err != nil {
		return fmt.Errorf("sync directory %s: %w", dir, err)
	}
	return nil
}

// trust decides whether the files may be used in the boot given. A kill alone
// leaves them whole, because what was written is in the page cache; so only
// an open store of another boot, or of one that cannot be told from this, is
// turned away.
func (s *status) trust(boot string) error {
	switch {
	case s.state == statusClosed:
		return nil
	case s.boot == "" || s.boot != boot:
		return fmt.Errorf("%w: it was open in boot %q, this is boot %q", ErrUnclean, s.boot, boot)
	case s.state == statusOpening && s.tries >= openTriesMax:
		return fmt.Errorf("%w: the process died %d times in a row while it opened this store", ErrCorrupt, s.tries)
	}
	return nil
}

// enter judges the directory by its status and notes that it is being opened.
// leave is to be called if that fails for a reason that is not in the files,
// such as another process that has them open.
func (h *Host) enter(dir string) (leave func() error, err error) {
	prior, err := readStatus(dir)
	if err != nil {
		return nil, err
	}
	next := status{state: statusOpening, boot: h.boot, tries: 1}
	// Badger may have begun a database by then, so the status stays.
	leave = func() error { return status{state: statusOpening, boot: h.boot}.write(dir) }
	if prior != nil {
		if err := prior.trust(h.boot); err != nil {
			return nil, fmt.Errorf("open %s: %w", dir, err)
		}
		_, err := os.Lstat(filepath.Join(dir, badger.ManifestFilename))
		if errors.Is(err, fs.ErrNotExist) && prior.state != statusOpening {
			return nil, fmt.Errorf("%w: open %s: the database is gone", ErrCorrupt, dir) // Badger would begin anew
		}
		if prior.state == statusOpening {
			next.tries = prior.tries + 1
		}
		leave = func() error { return prior.write(dir) }
	}
	return leave, next.write(dir)
}
