package state

import (
	"fmt"
	"log/slog"
	"sync/atomic"
)

// The stores of a process release their value logs when two conditions hold: the process has more resident
// memory than residentMax, and more than mappedMax of it is mapped files. mappedMax is lowered by half of the
// excess over residentMax, so that a release comes early enough: a rebuild writes some 300 MB a second, and a
// store can release memory only between two calls of Badger.
const (
	residentMax = 768 << 20
	mappedMax   = 192 << 20
)

// mappedCheckParts is how many pages a store reads before it checks the mapped memory again. With each page
// that is read, the system maps some 64 KiB. With a check after 256 pages, eight stores that worked through a
// backlog mapped 370 MB, although the limit was 20 MB.
const mappedCheckParts = 64

// mappedMemory bounds the resident memory of Badger's files, for all stores of a process. Badger maps its files
// into memory, and the parts that it reads and writes stay resident until the system needs the memory. A
// release costs little: the pages stay in the page cache, and a later access maps them again. The rest of the
// resident memory is MemoryRows of 70 bytes, 2 bytes of filter for each row of the runs (and of a merge's
// inputs), and Go's reserve.
type mappedMemory struct {
	limit, fileLimit int64 // residentMax and mappedMax, in bytes; see exceeded
	// unsupported is set when the system cannot release mapped memory; the memory is then unbounded.
	unsupported atomic.Bool
}

// exceeded reports whether the resident memory is over both limits.
func (m *mappedMemory) exceeded() bool {
	if m.unsupported.Load() {
		return false
	}
	all, files, err := residentBytes()
	return err == nil && all > m.limit && files > m.fileLimit-(all-m.limit)/2
}

// disable ends all releases of the process.
func (m *mappedMemory) disable(err error, log *slog.Logger) {
	if !m.unsupported.Swap(true) {
		log.Debug("resident memory of mapped files is unbounded", "reason", err)
	}
}

// addressRange is a range of addresses to which a part of a file is mapped.
type addressRange struct {
	from, to uintptr
	offset   uintptr // where from is in the file, in bytes
}

// boundMapped asks all stores to release their value logs when the resident
// memory exceeds the limits. Safe from any goroutine.
func (h *Host) boundMapped() {
	if !h.mapped.exceeded() {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for s := range h.stores {
		s.releaseDue.Store(true)
		s.wakeBackground()
	}
}

// releaseMapped releases the value log if a release is due. Only the background goroutine calls it. Badger
// moves and removes mappings of the value log only within calls of that goroutine, so no mapping changes
// between reading the list of mappings and releasing them.
func (s *Store) releaseMapped() {
	if !s.releaseDue.Swap(false) || !s.db.hasFiles() || s.host.mapped.unsupported.Load() {
		return
	}
	ranges, err := valueLogRanges(s.dir)
	for _, r := range ranges {
		if err == nil {
			err = r.release()
		}
	}
	if err != nil {
		s.host.mapped.disable(fmt.Errorf("release value log of %s: %w", s.dir, err), s.log)
	}
}
