package state

import (
	"bytes"
	"cmp"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"

	"oncebus/dedup"
)

// scratch is the reusable memory of one flush or merge.
type scratch struct {
	page    pageBuilder
	batch   batch
	filter  []byte
	details []byte
	rows    []slot
	order   []sortKey
}

// runSize is an estimate of the content of a run before the run is written. It decides the number of pages
// and the size of the filter. A wrong estimate costs space or false hits, never correctness.
type runSize struct {
	rows  uint64
	bytes uint64
}

// pages returns the number of pages for a run of this size. It prefers a few large pages to many empty pages
// when there are few rows.
func (s runSize) pages(pageBytes int) uint32 {
	n := min((s.bytes+uint64(pageBytes)-1)/uint64(pageBytes), (s.rows+3)/4)
	return uint32(min(max(n, 1), 1<<31))
}

// runWriter writes the blocks of a new run. The caller adds rows in order of
// digest, and then commits a manifest that names the run.
type runWriter struct {
	run        *run
	s          *scratch
	page       uint32
	namespaces [256]namespaceRows
}

func newRunWriter(db *database, s *scratch, id uint64, size runSize, pageBytes int) *runWriter {
	s.batch.db = db
	s.page.reset()
	r := &run{id: id, nonce: rand.Uint64(), pages: size.pages(pageBytes), filter: newFilter(size.rows)}
	r.filterBlocks = uint32(len(r.filter.blocks))
	return &runWriter{run: r, s: s}
}

// add appends a row.
func (w *runWriter) add(r *dedup.Row) error {
	for n := pageOf(prefix(&r.Digest), w.run.pages); w.page < n; {
		if err := w.writePage(); err != nil {
			return err
		}
	}
	w.s.page.add(r)
	w.run.filter.add(&r.Digest)
	w.run.rows++
	c := &w.namespaces[r.NamespaceID]
	if c.rows == 0 || r.First > c.lastFirst {
		c.lastFirst = r.First
	}
	c.rows++
	return nil
}

// releasePages is after how many pages, about a megabyte, a writer releases mapped memory if a release is
// due.
const releasePages = 64

func (w *runWriter) writePage() error {
	err := w.writePart(kindPage, w.page, w.s.page.rows(), w.s.page.bytes())
	w.s.page.reset()
	if w.page++; w.page%releasePages == 0 {
		w.s.batch.db.releaseMapped()
	}
	return err
}

// writePart writes a payload in chunks, at least one.
func (w *runWriter) writePart(kind blockKind, part, rows uint32, payload []byte) error {
	chunks := max(1, (len(payload)+chunkBytes-1)/chunkBytes)
	if chunks > maxChunks {
		return fmt.Errorf("part %d of run %d has %d bytes, more than the limit of %d", part, w.run.id, len(payload), maxChunks*chunkBytes)
	}
	h := blockHeader{kind: kind, run: w.run.id, nonce: w.run.nonce, part: part, chunks: uint16(chunks), rows: rows}
	for c := range chunks {
		piece := payload[c*chunkBytes : min((c+1)*chunkBytes, len(payload))]
		value, err := w.s.batch.value(blockHeaderBytes + len(piece))
		if err != nil {
			return err
		}
		h.chunk = uint16(c)
		value = append(appendBlockHeader(value, h), piece...)
		sealBlock(value)
		w.run.bytes += uint64(len(value))
		key := appendBlockKey(make([]byte, 0, blockKeyBytes), w.run.id, kind, part, h.chunk)
		if err := w.s.batch.set(key, value); err != nil {
			return fmt.Errorf("write block %c of run %d: %w", kind, w.run.id, err)
		}
	}
	return nil
}

// finish writes the last pages and then the filter. The chunks of the filter are then contiguous on disk, so
// that opening a store reads them quickly.
func (w *runWriter) finish() (*run, error) {
	for w.page < w.run.pages {
		if err := w.writePage(); err != nil {
			return nil, err
		}
	}
	w.s.filter = w.run.filter.append(w.s.filter[:0])
	if err := w.writePart(kindFilter, 0, uint32(min(w.run.rows, 1<<32-1)), w.s.filter); err != nil {
		return nil, err
	}
	if err := w.s.batch.commit(); err != nil {
		return nil, err
	}
	for i, c := range &w.namespaces { // by pointer: the array has 6 KiB
		if c.rows > 0 {
			c.id = uint8(i)
			w.run.namespaces = append(w.run.namespaces, c)
		}
	}
	w.run.namespaces = slices.Clip(w.run.namespaces)
	return w.run, nil
}

// sortKey orders the rows of a table by digest.
type sortKey struct {
	prefix uint64
	index  uint32 // in scratch.rows
}

// sorted sorts rows in two steps: it copies them to buckets by the top bits of their digests, about bucketRows
// in each, and then sorts each bucket. Both steps access memory sequentially. If a list of ordinals were sorted
// instead, every comparison would miss the CPU cache.
const (
	bucketRows    = 64
	bucketBitsMax = 12
)

// sorted returns copies of all rows of t, and their indexes in order of digest.
// Both are valid until the next use of the scratch.
func (s *scratch) sorted(t *table) ([]slot, []sortKey) {
	shift := 64 - min(bits.Len(uint(t.rows/bucketRows)), bucketBitsMax)
	var ends [1<<bucketBitsMax + 1]uint32 // ends[b+1] counts bucket b; later ends[b] becomes its end
	for i := range t.rows {
		ends[prefix(&t.at(i).digest)>>shift+1]++
	}
	for b := 1; b < len(ends); b++ {
		ends[b] += ends[b-1]
	}
	if cap(s.rows) < t.rows { // slices.Grow would copy rows that nobody needs
		s.rows, s.order = make([]slot, t.rows), make([]sortKey, t.rows)
	}
	s.rows, s.order = s.rows[:t.rows], s.order[:t.rows]
	for i := range t.rows {
		row := t.at(i)
		p := prefix(&row.digest)
		at := ends[p>>shift]
		ends[p>>shift]++
		s.rows[at] = *row
		s.order[at] = sortKey{p, at}
	}
	from := uint32(0)
	for _, to := range ends[:1<<(64-shift)] {
		slices.SortFunc(s.order[from:to], s.compare)
		from = to
	}
	return s.rows, s.order
}

func (s *scratch) compare(a, b sortKey) int {
	if c := cmp.Compare(a.prefix, b.prefix); c != 0 {
		return c
	}
	x, y := &s.rows[a.index].digest, &s.rows[b.index].digest
	return bytes.Compare(x[:], y[:])
}

// sampleRows is the number of rows that sizeOf encodes.
const sampleRows = 1024

// sizeOf estimates the size of a table's run: it counts the bytes of results exactly, and estimates the other
// fields from an even sample of rows.
func (s *scratch) sizeOf(t *table) runSize {
	step := max(1, t.rows/sampleRows)
	n, bytes := 0, 0
	for i := 0; i < t.rows; i += step {
		r := t.row(t.at(i))
		r.Result = nil
		s.details = r.AppendDetails(s.details[:0])
		n, bytes = n+1, bytes+len(s.details)
	}
	if n == 0 {
		return runSize{}
	}
	per := float64(bytes)/float64(n) + rowBytes
	return runSize{rows: uint64(t.rows), bytes: uint64(per*float64(t.rows)) + uint64(t.resultBytes)}
}

// writeTable writes the rows of t as a new run.
func (s *scratch) writeTable(db *database, t *table, id uint64, pageBytes int) (*run, error) {
	w := newRunWriter(db, s, id, s.sizeOf(t), pageBytes)
	rows, order := s.sorted(t)
	for _, k := range order {
		row := t.row(&rows[k.index])
		if err := w.add(&row); err != nil {
			s.batch.discard()
			return nil, err
		}
	}
	r, err := w.finish()
	if err != nil {
		s.batch.discard()
	}
	return r, err
}
