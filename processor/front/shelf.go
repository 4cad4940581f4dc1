package front

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// Names of files in the directory of a shelf.
const (
	shelfName   = "kept"         // the entries
	damagedName = "kept.damaged" // followed by a time: a file with damage, as it was found
	refusedName = "kept.refused" // entries that no topic takes
	lockName    = "LOCK"
)

// A shelf is a file of entries that outlives the process; its size in bytes is bounded. add returns once the
// entry is on disk. The shelf empties the file only when all entries were taken. Therefore an entry that was
// taken may come again after a crash, but no entry is lost.
//
// Each entry is: its length, the checksum of the length, the checksum of the entry (4 bytes each), and the
// bytes of the entry. With the checksum of the length, the shelf can tell damage from a last entry that a crash
// has cut off. Only damage loses something, because an entry for which add has returned is always whole.
type shelf struct {
	dir  string
	most int64
	lock *os.File
	sync func(*os.File) error // (*os.File).Sync, unless a test replaces it

	mu   sync.Mutex
	file *os.File
	size int64 // of the entries, in bytes
	next int64 // where the first entry begins that was not taken
	// taken has the entries behind next that were taken, each with its begin and end in the file.
	taken map[int64]int64
	// passed has the entries behind next that peek leaves out for now, each with its begin and end in the file.
	passed  map[int64]int64
	entries int    // number of entries that were not taken
	written uint64 // number of entries written since the process began
	failed  error  // why the end of the file is unknown; nil again once the file was emptied

	syncing sync.Mutex
	synced  uint64 // how many of written are on disk; writers that wait at the same time share one sync
}

// A span is where an entry begins and ends in the file.
type span struct{ at, end int64 }

const entryHead = 12

var (
	errShelfFull = errors.New("the file of kept events has the most bytes that it may have (ONCEBUS_INGRESS_KEEP_BYTES)")
	errTorn      = errors.New("the entry is cut off")
	errDamaged   = errors.New("the entry is damaged")

	castagnoli = crc32.MakeTable(crc32.Castagnoli)
)

// openShelf opens the file in a directory, which no other process may use at the same time, and calls each with
// its entries. found says what was wrong with the file.
func openShelf(dir string, most int64, each func(entry []byte)) (s *shelf, found string, err error) {
	if err := makeDir(dir); err != nil {
		return nil, "", err
	}
	s = &shelf{dir: dir, most: most, sync: (*os.File).Sync, taken: map[int64]int64{}, passed: map[int64]int64{}}
	defer func() {
		if err != nil {
			s.close()
			s = nil
		}
	}()
	if s.lock, err = openOwn(filepath.Join(dir, lockName)); err != nil {
		return s, "", err
	}
	if err := syscall.Flock(int(s.lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return s, "", fmt.Errorf("%s is in use by another process (%w): give each its own ONCEBUS_STATE_DIR", dir, err)
	}
	if s.file, err = openOwn(filepath.Join(dir, shelfName)); err != nil {
		return s, "", err
	}
	if found, err = s.load(each); err == nil {
		err = syncDir(dir)
	}
	return s, found, err
}

// openOwn opens a file that only this user may read, because it contains events.
func openOwn(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW, 0o600)
}

// load reads the entries. If the last entry is cut off, the process ended before add returned, so the request
// of the entry got no response, and load may drop the entry. It quarantines a file with damage as it is, and
// keeps the file's whole entries in a new file.
func (s *shelf) load(each func([]byte)) (found string, err error) {
	info, err := s.file.Stat()
	if err != nil {
		return "", err
	}
	var whole [][2]int64 // where whole entries begin and end
	damaged := false
	for at := int64(0); at < info.Size(); {
		entry, end, err := s.read(at, info.Size())
		switch {
		case err == nil:
			each(entry)
			whole = append(whole, [2]int64{at, end})
			s.size, s.entries = end, s.entries+1
		case errors.Is(err, errTorn):
			found += fmt.Sprintf("the last %d bytes of %s are of an event that was not answered: dropped; ", info.Size()-at, s.file.Name())
		case errors.Is(err, errDamaged):
			damaged = true
			found += fmt.Sprintf("%s is damaged from offset %d to %d; ", s.file.Name(), at, end)
		default:
			return found, err
		}
		at = end
	}
	if !damaged {
		return found, s.file.Truncate(s.size)
	}
	aside := filepath.Join(s.dir, fmt.Sprintf("%s-%d", damagedName, time.Now().UnixNano()))
	return found + fmt.Sprintf("quarantined as %s, and its %d whole events are kept on", aside, s.entries), s.replace(whole, aside)
}

// replace quarantines the file, and begins a new one with the whole entries. A crash at any time leaves one of
// the two files in place.
func (s *shelf) replace(whole [][2]int64, aside string) error {
	fresh, err := openOwn(filepath.Join(s.dir, shelfName+".new"))
	if err != nil {
		return err
	}
	old := s.file
	defer old.Close() //nolint:errcheck // nothing was written to it
	s.file, s.size = fresh, 0
	if err := fresh.Truncate(0); err != nil {
		return err
	}
	for _, part := range whole {
		n, err := io.Copy(fresh, io.NewSectionReader(old, part[0], part[1]-part[0]))
		if err != nil {
			return err
		}
		s.size += n
	}
	if err := errors.Join(fresh.Sync(), os.Link(old.Name(), aside)); err != nil {
		return err
	}
	return os.Rename(fresh.Name(), old.Name())
}

// makeDir makes a directory and its missing parents, so that their names survive a crash of the machine.
func makeDir(dir string) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	above := filepath.Dir(dir)
	if above != dir {
		if err := makeDir(above); err != nil {
			return err
		}
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return syncDir(above)
}

// syncDir syncs a directory, so that the names in it survive a crash of the machine.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// framed returns an entry in the form in which the file contains it.
func framed(entry []byte) []byte {
	b := binary.LittleEndian.AppendUint32(make([]byte, 0, entryHead+len(entry)), uint32(len(entry)))
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
	b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(entry, castagnoli))
	return append(b, entry...)
}

// read returns the entry at an offset, and the offset of the next entry. size is the size of the file in bytes.
func (s *shelf) read(at, size int64) (entry []byte, end int64, err error) {
	if size-at < entryHead {
		return nil, size, errTorn
	}
	var head [entryHead]byte
	if _, err := s.file.ReadAt(head[:], at); err != nil {
		return nil, size, err
	}
	if crc32.Checksum(head[:4], castagnoli) != binary.LittleEndian.Uint32(head[4:]) {
		return nil, size, errDamaged // where the next one begins is unknown
	}
	end = at + entryHead + int64(binary.LittleEndian.Uint32(head[:]))
	if end > size {
		return nil, size, errTorn
	}
	entry = make([]byte, end-at-entryHead)
	if _, err := s.file.ReadAt(entry, at+entryHead); err != nil {
		return nil, size, err
	}
	if crc32.Checksum(entry, castagnoli) != binary.LittleEndian.Uint32(head[8:]) {
		return nil, end, errDamaged
	}
	return entry, end, nil
}

// add returns once the entry is on disk. After an error, the entry may be in the file or not.
func (s *shelf) add(entry []byte) error {
	mine, err := s.write(framed(entry))
	if err != nil {
		return err
	}
	s.syncing.Lock()
	defer s.syncing.Unlock()
	if s.synced >= mine {
		return nil
	}
	s.mu.Lock()
	all, failed := s.written, s.failed
	s.mu.Unlock()
	if failed != nil {
		return failed
	}
	if err := s.sync(s.file); err != nil {
		// After a failed sync the kernel may have dropped the data that it could not write, so a second sync
		// that succeeds would not prove that the data is on disk.
		s.mu.Lock()
		defer s.mu.Unlock()
		s.failed = err
		return err
	}
	s.synced = all
	return nil
}

// write appends an entry to the file and returns its number.
func (s *shelf) write(entry []byte) (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed != nil {
		return 0, s.failed
	}
	if s.size+int64(len(entry)) > s.most {
		return 0, errShelfFull
	}
	if _, err := s.file.WriteAt(entry, s.size); err != nil {
		if cut := s.file.Truncate(s.size); cut != nil {
			s.failed = cut
		}
		return 0, err
	}
	s.size += int64(len(entry))
	s.entries++
	s.written++
	return s.written, nil
}

// peek returns the next entries, and where they are. It returns at most most entries, and stops when they have
// bytes bytes together. It leaves out entries that were taken, and entries for which pass was called.
func (s *shelf) peek(most, bytes int) (entries [][]byte, places []span, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for at, read := s.next, int64(0); at < s.size && len(entries) < most && read < int64(bytes); {
		if end := max(s.taken[at], s.passed[at]); end > 0 {
			at = end
			continue
		}
		entry, end, err := s.read(at, s.size)
		if err != nil {
			return nil, nil, fmt.Errorf("%s at offset %d: %w", s.file.Name(), at, err)
		}
		entries, places = append(entries, entry), append(places, span{at, end})
		read, at = read+end-at, end
	}
	return entries, places, nil
}

// pass makes peek leave out entries until recall.
func (s *shelf) pass(places []span) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range places {
		s.passed[p.at] = p.end
	}
}

// recall makes peek return the passed entries again.
func (s *shelf) recall() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.passed)
}

// take removes entries, so that this process does not get them again. The file is emptied only after its last
// entry was taken; so if other entries are left in it, the next process gets the taken entries again.
func (s *shelf) take(places []span) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range places {
		s.taken[p.at] = p.end
	}
	s.entries -= len(places)
	for s.taken[s.next] > 0 {
		end := s.taken[s.next]
		delete(s.taken, s.next)
		s.next = end
	}
	return s.empty()
}

// heal is for a file that has failed: if no entry is left in the file, heal empties the file, so that it can be
// used again.
func (s *shelf) heal() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed == nil {
		return nil
	}
	return s.empty()
}

// empty empties the file once all of its entries were taken. The caller has locked the shelf.
func (s *shelf) empty() error {
	if s.next < s.size || s.size == 0 && s.failed == nil {
		return nil
	}
	if err := s.file.Truncate(0); err != nil {
		return err // after a restart the entries are read again
	}
	s.size, s.next = 0, 0 // also if the sync fails: a later entry must not follow a hole
	s.failed = s.sync(s.file)
	return s.failed
}

// left returns how many entries were not taken, and the size of the file in bytes.
func (s *shelf) left() (entries int, bytes int64, failed error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.entries, s.size, s.failed
}

// refuse adds an entry that no topic takes to a separate file, and returns the path of this file.
func (s *shelf) refuse(entry []byte) (path string, err error) {
	path = filepath.Join(s.dir, refusedName)
	f, err := openOwn(path)
	if err != nil {
		return path, err
	}
	end, err := f.Seek(0, io.SeekEnd)
	if err == nil {
		_, err = f.Write(framed(entry))
		err = errors.Join(err, s.sync(f))
	}
	if err != nil { // the entry will be refused again, and a half-written one would hide the entries behind it
		err = errors.Join(err, f.Truncate(end))
	}
	return path, errors.Join(err, f.Close(), syncDir(s.dir))
}

// aside returns the files at which an operator has to look.
func (s *shelf) aside() []string {
	damaged, _ := filepath.Glob(filepath.Join(s.dir, damagedName+"-*")) // fails only for a malformed pattern
	refused, _ := filepath.Glob(filepath.Join(s.dir, refusedName))
	return append(damaged, refused...)
}

// close closes the files. Entries that were not taken stay in the file.
func (s *shelf) close() {
	_ = s.file.Close() // everything that matters was synced
	_ = s.lock.Close() // and frees the directory
}
