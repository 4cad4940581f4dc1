package state

import (
	"encoding/binary"

	"oncebus/dedup"
)

// source yields rows in order of digest.
type source interface {
	// next fills h with the next row, valid until it is called again, or
	// reports that there is none.
	next(h *head) (bool, error)
}

// head is the row a source stands at.
type head struct {
	prefix uint64
	row    dedup.Row
	body   []byte // the row's encoding; nil if the source does not have it
}

// runSource reads a run page by page.
type runSource struct {
	db   *database
	run  *run
	page page
	at   int    // next row of page
	part uint32 // next page
	buf  []byte // what page aliases
}

func (r *runSource) next(h *head) (bool, error) {
	for r.at == r.page.rows {
		if r.part == r.run.pages {
			return false, nil
		}
		if err := r.load(); err != nil {
			return false, err
		}
	}
	row, err := r.page.row(r.at)
	if err != nil {
		return false, err
	}
	h.row, h.prefix = row, prefix(&row.Digest)
	h.body, err = r.page.body(r.at)
	r.at++
	return err == nil, err
}

func (r *runSource) load() error {
	err := r.db.readPart(r.run, kindPage, r.part, func(rows uint32, payload []byte) (err error) {
		r.buf = append(r.buf[:0], payload...) // what is read belongs to Badger
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

// tableSource yields the rows of a table.
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
	h.row, h.prefix = t.table.row(&t.rows[k.place]), k.prefix
	t.order = t.order[1:]
	return true, nil
}

// merger yields the newest row of every digest from sources that are ordered
// from newest to oldest.
type merger struct {
	sources []source
	heads   []head
	live    []bool
	last    int // the source to advance first; -1 before the first row
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

// next returns the next row, valid until the next call, or nil at the end.
func (m *merger) next() (*head, error) {
	if m.last >= 0 {
		if err := m.advance(m.last); err != nil {
			return nil, err
		}
	} else {
		for i := range m.sources {
			if err := m.advance(i); err != nil {
				return nil, err
			}
		}
	}
	m.last = -1
	for i := range m.heads {
		if m.live[i] && (m.last < 0 || m.heads[i].before(&m.heads[m.last])) {
			m.last = i
		}
	}
	if m.last < 0 {
		return nil, nil
	}
	newest := &m.heads[m.last]
	for i := m.last + 1; i < len(m.heads); i++ {
		if m.live[i] && m.heads[i].row.Digest == newest.row.Digest {
			if err := m.advance(i); err != nil {
				return nil, err
			}
		}
	}
	return newest, nil
}

func (h *head) before(o *head) bool {
	if h.prefix != o.prefix {
		return h.prefix < o.prefix
	}
	return binary.BigEndian.Uint64(h.row.Digest[8:]) < binary.BigEndian.Uint64(o.row.Digest[8:])
}
