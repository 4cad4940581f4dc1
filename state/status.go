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

// ErrUnclean is wrapped if the host stopped while the store was open: some of the store's writes may not have
// reached the disk (hazard E1). As for ErrCorrupt, the caller must quarantine the directory and rebuild the
// store.
var ErrUnclean = errors.New("state of a host that stopped uncleanly")

// statusName is the file that tells the next Open how the store was closed. It is text, so that an operator,
// or a test that simulates a power loss, can read and change it:
//
//	oncebus store 1
//	state open
//	boot 4b0a4fcc-7a0c-4d04-8f5c-0f1d6fd0a9c7
//	tries 0
//	position 81204
//
// The position is only a hint for other processes: Open reads the position in the manifest. A build that does
// not know the line ignores it.
//
// The file has a fixed size and is overwritten in place: the write of one sector is atomic and succeeds on a
// full disk.
const statusName = "STATUS"

const (
	statusTitle = "oncebus store 1"
	statusBytes = 128
)

// The states of a store in its status file.
const (
	statusOpening = "opening" // between Open and the end of the first background round
	statusOpen    = "open"
	statusClosed  = "closed" // all rows are on disk
)

// openTriesMax is how many times in a row a process may die in statusOpening before the files count as
// corrupt. Only deaths without an error count, such as SIGBUS: Open recovers errors and panics of Badger.
const openTriesMax = 3

// status is the content of the status file.
type status struct {
	state string
	boot  string // id of the boot that wrote the status; "" if the system has none
	tries int    // openings in a row that did not reach statusOpen
	// position is the position of the last manifest; 0 if unknown.
	position int64
}

// bootID returns the kernel's id of this boot, or "" outside of Linux or
// without /proc.
func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// readStatus reads the status of a store's directory, nil for a directory
// without a store. Files of Badger without a readable status are ErrCorrupt.
func readStatus(dir string) (*status, error) {
	if info, err := os.Lstat(filepath.Join(dir, statusName)); err == nil && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%w: %s in %s is not a regular file", ErrCorrupt, statusName, dir)
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
		return nil, fmt.Errorf("%w: %s has invalid content", ErrCorrupt, filepath.Join(dir, statusName))
	}
	return s, nil
}

func parseStatus(text string) (*status, bool) {
	lines := strings.Split(text, "\n")
	if len(lines) < 5 || lines[0] != statusTitle {
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
	if position, ok := strings.CutPrefix(lines[4], "position "); ok {
		if n, err := strconv.ParseInt(position, 10, 64); err == nil && n > 0 {
			s.position = n
		}
	}
	known := s.state == statusOpening || s.state == statusOpen || s.state == statusClosed
	return &s, err == nil && s.tries >= 0 && known
}

// HintedPosition returns the changelog offset below which the files of a store have every row, without
// opening the files. It is 0 if there are no files, if Open would not trust them, or if a build without the
// hint closed them. It is a hint: nothing may rely on it.
func (h *Host) HintedPosition(dir string) int64 {
	s, err := readStatus(dir)
	if err != nil || s == nil || s.checkTrust(h.boot) != nil {
		return 0
	}
	return s.position
}

// text returns the content of the status file, without padding.
func (s status) text() (string, error) {
	text := fmt.Sprintf("%s\nstate %s\nboot %s\ntries %d\nposition %d\n", statusTitle, s.state, s.boot, s.tries, s.position)
	if len(text) > statusBytes {
		return "", fmt.Errorf("write status: text has %d bytes, more than the limit of %d", len(text), statusBytes)
	}
	return text + strings.Repeat("\n", statusBytes-len(text)), nil
}

// note overwrites the status file without a sync, because only the position has changed, and a position that
// reaches the disk late does no harm.
func (s status) note(dir string) (err error) {
	text, err := s.text()
	if err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(dir, statusName), os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("write status: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := f.WriteAt([]byte(text), 0); err != nil {
		return fmt.Errorf("write status: %w", err)
	}
	return nil
}

// write writes s to the status file and syncs it to disk.
func (s status) write(dir string) (err error) {
	text, err := s.text()
	if err != nil {
		return err
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
	if _, err := f.WriteAt([]byte(text), 0); err != nil {
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
		return syncDir(dir) // makes the name of the new file durable
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

// checkTrust returns an error if the files must not be used in the given boot. A kill of the process leaves the
// files complete, because the page cache outlives a process. So checkTrust rejects a store in state open only
// if it was opened in another boot of the host, or if the boot is unknown.
func (s *status) checkTrust(boot string) error {
	switch {
	case s.state == statusClosed:
		return nil
	case s.boot == "" || s.boot != boot:
		return fmt.Errorf("%w: the store was open in boot %q, this is boot %q", ErrUnclean, s.boot, boot)
	case s.state == statusOpening && s.tries >= openTriesMax:
		return fmt.Errorf("%w: the process died %d times in a row while it opened this store", ErrCorrupt, s.tries)
	}
	return nil
}

// beginOpen checks the directory's status and writes statusOpening. The caller calls restore if the open
// fails for a reason other than damage, such as a lock that another process holds.
func (h *Host) beginOpen(dir string) (restore func() error, err error) {
	prior, err := readStatus(dir)
	if err != nil {
		return nil, err
	}
	next := status{state: statusOpening, boot: h.boot, tries: 1}
	// Badger may have created files by the time of restore, and files need a status.
	restore = func() error { return status{state: statusOpening, boot: h.boot}.write(dir) }
	if prior != nil {
		if err := prior.checkTrust(h.boot); err != nil {
			return nil, fmt.Errorf("open %s: %w", dir, err)
		}
		_, err := os.Lstat(filepath.Join(dir, badger.ManifestFilename))
		if errors.Is(err, fs.ErrNotExist) && prior.state != statusOpening {
			return nil, fmt.Errorf("%w: open %s: the files of Badger are missing", ErrCorrupt, dir) // Badger would create an empty database
		}
		if prior.state == statusOpening {
			next.tries = prior.tries + 1
		}
		next.position = prior.position
		restore = func() error { return prior.write(dir) }
	}
	return restore, next.write(dir)
}
