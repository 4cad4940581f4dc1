package state

import (
	"fmt"
	"log/slog"
	"sync/atomic"
)

// The stores of a process release their value logs when the process has more resident
// memory than residentMax, and more than mappedMax of that is of files. Of mappedMax goes
// half of what the resident memory is over: a rebuild writes some 300 MB a second, and a
// store releases only between two calls of Badger.
const (
	residentMax = 768 << 20
	mappedMax   = 192 << 20
)

// mappedCheckParts is the number of pages that a store reads between two looks at the
// mapped memory. The system maps some 64 KiB with each page. With 256 pages, eight stores
// that judged a backlog mapped 370 MB, although the limit was 20.
const mappedCheckParts = 64

// mappedMemory bounds the resident memory of Badger's files, for all stores of a process.
// Badger maps them, and what it reads and writes stays resident until the system needs
// the memory. A release costs little: the pages stay in the page cache, and a later access
// maps them again. The rest of the resident memory is MemoryRows of 70 bytes, 2 bytes of
// filter for each row of the runs, those of a merge's inputs too, and Go's reserve.
type mappedMemory struct {
	limit, fileLimit int64 // residentMax and mappedMax, in bytes; see exceeded
	// unsupported is set when the system knows no release; the memory is unbounded then.
	unsupported atomic.Bool
}

// exceeded reports whether the resident memory exceeds both limits.
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

// addressRange is a mapping of a part of a file.
type addressRange struct {
	from, to uintptr
	offset   uintptr // of from in the file, in bytes
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

// releaseMapped releases the value log if that is due. Only the background goroutine
// calls it: Badger moves and removes mappings of the value log within calls of that
// goroutine, so that none changes between the look at them and the release.
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
