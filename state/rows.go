package state

import (
	"fmt"
	"iter"

	"oncebus/dedup"
)

// Rows iterates over the newest applied row of every digest, in order of
// digest, rows out of time included as far as they still exist. A row's Result
// is valid until the next. No other method may be called meanwhile. An error
// ends the iteration.
func (s *Store) Rows() iter.Seq2[dedup.Row, error] {
	return func(yield func(dedup.Row, error) bool) {
		s.refresh()
		sources := []source{newTableSource(s.active)}
		if f := s.mine.frozen; f != nil {
			sources = append(sources, newTableSource(f.table))
		}
		rows := newMerger(append(sources, runSources(s.db, s.mine.runs)...))
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
}

// Stats is a look at a store. Rows overwritten in another run, or out of time
// and still there, are counted, so Rows is an upper bound of the live ones.
type Stats struct {
	Rows            uint64 `json:"rows"`        // in runs and in memory, as said
	RecentRows      int    `json:"recent_rows"` // in memory only, as of the last Apply
	Runs            int    `json:"runs"`
	FilterBytes     uint64 `json:"filter_bytes"`
	RunBytes        uint64 `json:"run_bytes"`       // blocks of live runs
	DiskBytes       uint64 `json:"disk_bytes"`      // all files, as allocated
	EvictedRows     uint64 `json:"evicted_rows"`    // since Open
	OrphansRemoved  uint64 `json:"orphans_removed"` // runs without a manifest entry, since Open
	Position        int64  `json:"position"`
	DurablePosition int64  `json:"durable_position"`
}

// Stats reads the directory for DiskBytes. Safe from any goroutine.
func (s *Store) Stats() Stats {
	st := s.gauges()
	st.DiskBytes = diskBytes(s.dir)
	return st
}

// gauges is Stats without what needs the disk.
func (s *Store) gauges() Stats {
	st := Stats{
		RecentRows:      int(s.recentRows.Load()),
		EvictedRows:     s.evicted.Load(),
		OrphansRemoved:  s.orphans.Load(),
		Position:        s.Position(),
		DurablePosition: s.DurablePosition(),
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.current.frozen; f != nil {
		st.RecentRows += f.table.rows
	}
	st.Rows = uint64(st.RecentRows)
	st.Runs = len(s.current.runs)
	for _, r := range s.current.runs {
		st.Rows += r.rows
		st.RunBytes += r.bytes
		st.FilterBytes += uint64(r.filterBlocks) * filterBlockBytes
	}
	return st
}
