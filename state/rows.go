package state

import (
	"fmt"
	"iter"

	"oncebus/dedup"
)

// Rows iterates over the newest applied row of every digest, in order of digest. It includes expired rows that
// are not evicted yet. A row's Result is valid until the next iteration. The caller must not call other methods
// during the iteration. An error ends it.
func (s *Store) Rows() iter.Seq2[dedup.Row, error] {
	return func(yield func(dedup.Row, error) bool) {
		s.refreshView()
		sources := []source{newTableSource(s.active.appliedRows())}
		if f := s.ownerView.frozen; f != nil {
			sources = append(sources, newTableSource(f.table))
		}
		s.yieldRows(newMerger(append(sources, runSources(s.db, s.ownerView.runs)...)), yield)
	}
}

// RowsFrom iterates like Rows, but from the first digest that is at least d, and also over the rows of the
// open transaction.
func (s *Store) RowsFrom(d dedup.Digest) iter.Seq2[dedup.Row, error] {
	return func(yield func(dedup.Row, error) bool) {
		s.refreshView()
		sources := []source{newHeapSource(s.active, d)}
		if f := s.ownerView.frozen; f != nil {
			sources = append(sources, newHeapSource(f.table, d))
		}
		for _, r := range s.ownerView.runs {
			sources = append(sources, &runSource{db: s.db, run: r, from: d, part: pageOf(prefix(&d), r.pages)})
		}
		s.yieldRows(newMerger(sources), yield)
	}
}

func (s *Store) yieldRows(rows *merger, yield func(dedup.Row, error) bool) {
	for {
		h, err := rows.next()
		if err != nil {
			s.fail(err)
			yield(dedup.Row{}, fmt.Errorf("rows of %s: %w", s.dir, err))
			return
		}
		if h == nil || !yield(h.row, nil) {
			return
		}
	}
}

// RowCount returns Stats.Rows, and does no I/O. Safe from any goroutine.
func (s *Store) RowCount() uint64 { return s.Stats().Rows }

// Stats are figures of a store. Rows is an upper bound of the retained rows: it
// includes overwritten rows of older runs and expired rows not yet evicted.
type Stats struct {
	Rows            uint64 `json:"rows"`        // in runs and in memory
	RecentRows      int    `json:"recent_rows"` // in memory only, as of the last Apply
	Runs            int    `json:"runs"`
	FilterBytes     uint64 `json:"filter_bytes"`
	RunBytes        uint64 `json:"run_bytes"`       // blocks of the runs that the manifest names
	DiskBytes       uint64 `json:"disk_bytes"`      // all files, as allocated after the last flush or merge
	EvictedRows     uint64 `json:"evicted_rows"`    // since Open
	OrphansRemoved  uint64 `json:"orphans_removed"` // runs that the manifest does not name, since Open
	Position        int64  `json:"position"`
	DurablePosition int64  `json:"durable_position"`
}

// Stats returns the store's figures, and does no I/O. Safe from any goroutine.
func (s *Store) Stats() Stats {
	st := Stats{
		RecentRows:      int(s.recentRows.Load()),
		DiskBytes:       s.disk.Load(),
		EvictedRows:     s.evicted.Load(),
		OrphansRemoved:  s.orphans.Load(),
		Position:        s.Position(),
		DurablePosition: s.DurablePosition(),
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.currentView.frozen; f != nil {
		st.RecentRows += f.table.rows
	}
	st.Rows = uint64(st.RecentRows)
	st.Runs = len(s.currentView.runs)
	for _, r := range s.currentView.runs {
		st.Rows += r.rows
		st.RunBytes += r.bytes
		st.FilterBytes += uint64(r.filterBlocks) * filterBlockBytes
	}
	return st
}
