package state

import (
	"bytes"
	"container/heap"
	"encoding/binary"

	"oncebus/dedup"
)

// source iterates over rows in order of digest.
type source interface {
	// next stores the next row in h, valid until the next call, or returns
	// false after the last row.
	next(h *head) (bool, error)
}

// head is the current row of a source.
type head struct {
	prefix uint64
	row    dedup.Row
}

// runSource reads a run page by page.
type runSource struct {
	db   *database
	run  *run
	from dedup.Digest // the first digest that may be returned
	page page
	at   int    // next row of page
	part uint32 // next page
	buf  []byte // the memory that page aliases
}

func (r *runSource) next(h *head) (bool, error) {
	row, found, err := r.nextRow()
	// Only the first page has rows with digests below from. next skips these rows one by one, because a binary
	// search in a damaged page might skip other rows.
	for found && bytes.Compare(row.Digest[:], r.from[:]) < 0 {
		r.at++
		row, found, err = r.nextRow()
	}
	if err != nil || !found {
		return false, err
	}
	h.row, h.prefix = row, prefix(&row.Digest)
	r.at++
	return true, nil
}

// nextRow returns the next row without moving past it.
func (r *runSource) nextRow() (row dedup.Row, found bool, err error) {
	for r.at == r.page.rows {
		if r.part == r.run.pages {
			return row, false, nil
		}
		if err := r.load(); err != nil {
			return row, false, err
		}
	}
	row, err = r.page.row(r.at)
	return row, err == nil, err
}

func (r *runSource) load() error {
	err := r.db.readPart(r.run, kindPage, r.part, func(rows uint32, payload []byte) (err error) {
		r.buf = append(r.buf[:0], payload...) // Badger reuses payload's memory
		r.page, err = decodePage(rows, r.buf)
		return err
	})
	r.at = 0
	r.part++
	return err
}

func runSources(db *database, runs []*run) []source {
	var sources []source
	for _, r := range runs {
		sources = append(sources, &runSource{db: db, run: r})
	}
	return sources
}

// tableSource yields the rows of a table in order of digest.
type tableSource struct {
	table *table
	rows  []slot
	order []sortKey
}

func newTableSource(t *table) *tableSource {
	rows, order := new(scratch).sorted(t)
	return &tableSource{t, rows, order}
}

func (t *tableSource) next(h *head) (bool, error) {
	if len(t.order) == 0 {
		return false, nil
	}
	k := t.order[0]
	h.row, h.prefix = t.table.row(&t.rows[k.index]), k.prefix
	t.order = t.order[1:]
	return true, nil
}

// heapSource yields the rows of a table from a digest on. It is fast if the caller reads only a few of many
// rows, because it does not sort all rows first.
type heapSource struct {
	table *table
	keys  []sortKey // a heap; its indexes are ordinals of the table
}

func newHeapSource(t *table, from dedup.Digest) *heapSource {
	h := &heapSource{table: t}
	for i := range t.rows {
		if d := &t.at(i).digest; bytes.Compare(d[:], from[:]) >= 0 {
			h.keys = append(h.keys, sortKey{prefix(d), uint32(i)})
		}
	}
	heap.Init(h)
	return h
}

func (s *heapSource) next(h *head) (bool, error) {
	if len(s.keys) == 0 {
		return false, nil
	}
	k := s.keys[0]
	h.row, h.prefix = s.table.row(s.table.at(int(k.index))), k.prefix
	s.keys[0] = s.keys[len(s.keys)-1]
	if s.keys = s.keys[:len(s.keys)-1]; len(s.keys) > 0 {
		heap.Fix(s, 0)
	}
	return true, nil
}

// Len, Less, Swap, Push and Pop implement heap.Interface; next needs no Push and Pop.
func (s *heapSource) Len() int      { return len(s.keys) }
func (s *heapSource) Swap(i, j int) { s.keys[i], s.keys[j] = s.keys[j], s.keys[i] }
func (s *heapSource) Push(any)      {}
func (s *heapSource) Pop() any      { return nil }
func (s *heapSource) Less(i, j int) bool {
	a, b := s.keys[i], s.keys[j]
	if a.prefix != b.prefix {
		return a.prefix < b.prefix
	}
	x, y := &s.table.at(int(a.index)).digest, &s.table.at(int(b.index)).digest
	return bytes.Compare(x[:], y[:]) < 0
}

// merger returns the newest row of every digest of its sources, which are in
// order from newest to oldest.
type merger struct {
	sources []source
	heads   []head
	live    []bool
	last    int // the source of the last row returned; -1 before the first
	read    uint64
}

func newMerger(sources []source) *merger {
	return &merger{sources: sources, heads: make([]head, len(sources)), live: make([]bool, len(sources)), last: -1}
}

func (m *merger) advance(i int) (err error) {
	m.live[i], err = m.sources[i].next(&m.heads[i])
	if m.live[i] {
		m.read++
	}
	return err
}

// advanceStart advances the source of the last row, or at the start all sources.
func (m *merger) advanceStart() error {
	if m.last >= 0 {
		return m.advance(m.last)
	}
	for i := range m.sources {
		if err := m.advance(i); err != nil {
			return err
		}
	}
	return nil
}

// least returns the newest source with the least digest, -1 after the last row.
func (m *merger) least() int {
	least := -1
	for i := range m.heads {
		if m.live[i] && (least < 0 || m.heads[i].less(&m.heads[least])) {
			least = i
		}
	}
	return least
}

// next returns the next row, valid until the next call, or nil after the last.
func (m *merger) next() (*head, error) {
	if err := m.advanceStart(); err != nil {
		return nil, err
	}
	m.last = m.least()
	if m.last < 0 {
		return nil, nil
	}
	newest := &m.heads[m.last]
	for i := m.last + 1; i < len(m.heads); i++ { // skip the older rows of the digest
		if !m.live[i] || m.heads[i].row.Digest != newest.row.Digest {
			continue
		}
		if err := m.advance(i); err != nil {
			return nil, err
		}
	}
	return newest, nil
}

func (h *head) less(o *head) bool {
	if h.prefix != o.prefix {
		return h.prefix < o.prefix
	}
	return binary.BigEndian.Uint64(h.row.Digest[8:]) < binary.BigEndian.Uint64(o.row.Digest[8:])
}
