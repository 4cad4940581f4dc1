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

// scratch is the memory that a flush or a merge works in. There is one for
// each that may run at the same time in the process.
type scratch struct {
	page   pageBuilder
	batch  batch
	filter []byte
	body   []byte
	rows   []slot
	order  []sortKey
}

// runSize is what a run will hold, as well as it is known before it is
// written. It decides the number of pages and the size of the filter; being
// off costs space or false hits, never correctness.
type runSize struct {
	rows  uint64
	bytes uint64 // digests and encoded rows
}

// pages returns the number of pages for runs of about this size. A page of
// few large rows beats many empty pages.
func (s runSize) pages(pageBytes int) uint32 {
	n := min((s.bytes+uint64(pageBytes)-1)/uint64(pageBytes), (s.rows+3)/4)
	return uint32(min(max(n, 1), 1<<31))
}

// runWriter writes the blocks of a new run. Rows are added in order of
// digest; what it wrote lives only when a manifest names the run.
type runWriter struct {
	run     *run
	s       *scratch
	page    uint32
	classes [256]classSpan
}

func newRunWriter(db *database, s *scratch, id uint64, size runSize, pageBytes int) *runWriter {
	s.batch.db = db
	s.page.reset()
	r := &run{id: id, nonce: rand.Uint64(), pages: size.pages(pageBytes), filter: newFilter(size.rows)}
	r.filterBlocks = uint32(len(r.filter.blocks))
	return &runWriter{run: r, s: s}
}

// add appends a row; body is its encoding, class and first are of the row.
func (w *runWriter) add(d *dedup.Digest, body []byte, class uint8, first int64) error {
	for n := pageOf(prefix(d), w.run.pages); w.page < n; {
		if err := w.writePage(); err != nil {
			return err
		}
	}
	w.s.page.add(d, body)
	w.run.filter.add(d)
	w.run.rows++
	c := &w.classes[class]
	if c.rows == 0 || first > c.last {
		c.last = first
	}
	c.rows++
	return nil
}

func (w *runWriter) writePage() error {
	err := w.writePart(kindPage, w.page, w.s.page.rows, w.s.page.bytes())
	w.s.page.reset()
	w.page++
	return err
}

// writePart writes a payload in as many chunks as it needs, one if empty.
func (w *runWriter) writePart(kind blockKind, part, rows uint32, payload []byte) error {
	chunks := max(1, (len(payload)+chunkBytes-1)/chunkBytes)
	if chunks > maxChunks {
		return fmt.Errorf("part of %d bytes is too large for a run", len(payload))
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

// finish writes the last pages and, in one piece behind all pages, the
// filter: opening a store then reads few places of the disk.
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
	for i, c := range &w.classes { // a pointer: the array has 6 KiB
		if c.rows > 0 {
			c.class = uint8(i)
			w.run.classes = append(w.run.classes, c)
		}
	}
	w.run.classes = slices.Clip(w.run.classes)
	return w.run, nil
}

// sortKey orders the rows of a table by digest.
type sortKey struct {
	prefix uint64
	place  uint32 // in scratch.rows
}

// Rows are sorted in two steps: first copied to buckets by the top bits of
// their digests, about bucketRows in each, then sorted within. Both touch
// memory in order; following a sorted list of all ordinals through the table
// would miss the cache at every row.
const (
	bucketRows    = 64
	bucketBitsMax = 12
)

// sorted returns copies of all rows of t and their places in order of digest.
// Both are valid until the scratch is used again.
func (s *scratch) sorted(t *table) ([]slot, []sortKey) {
	shift := 64 - min(bits.Len(uint(t.rows/bucketRows)), bucketBitsMax)
	var ends [1<<bucketBitsMax + 1]uint32 // of the bucket before, so that they become its own
	for i := range t.rows {
		ends[prefix(&t.at(i).digest)>>shift+1]++
	}
	for b := 1; b < len(ends); b++ {
		ends[b] += ends[b-1]
	}
	s.rows = slices.Grow(s.rows[:0], t.rows)[:t.rows]
	s.order = slices.Grow(s.order[:0], t.rows)[:t.rows]
	for i := range t.rows {
		row := t.at(i)
		p := prefix(&row.digest)
		place := ends[p>>shift]
		ends[p>>shift]++
		s.rows[place] = *row
		s.order[place] = sortKey{p, place}
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
	x, y := &s.rows[a.place].digest, &s.rows[b.place].digest
	return bytes.Compare(x[:], y[:])
}

// sampleRows is how many rows of a table are encoded to learn their size.
const sampleRows = 1024

// sizeOf estimates the size of a table's run. Results are known exactly, the
// rest is sampled evenly.
func (s *scratch) sizeOf(t *table) runSize {
	step := max(1, t.rows/sampleRows)
	n, bytes := 0, 0
	for i := 0; i < t.rows; i += step {
		r := t.row(t.at(i))
		r.Result = nil
		s.body = r.AppendBody(s.body[:0])
		n, bytes = n+1, bytes+len(s.body)
	}
	if n == 0 {
		return runSize{}
	}
	per := float64(bytes)/float64(n) + rowOverhead
	return runSize{rows: uint64(t.rows), bytes: uint64(per*float64(t.rows)) + uint64(t.resultBytes)}
}

// writeTable writes the rows of t as a new run.
func (s *scratch) writeTable(db *database, t *table, id uint64, pageBytes int) (*run, error) {
	w := newRunWriter(db, s, id, s.sizeOf(t), pageBytes)
	rows, order := s.sorted(t)
	for _, k := range order {
		row := t.row(&rows[k.place])
		s.body = row.AppendBody(s.body[:0])
		if err := w.add(&row.Digest, s.body, row.Class, row.First); err != nil {
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
