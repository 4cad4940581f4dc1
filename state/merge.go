package state

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// tiers are the bounds, in rows, between size classes of runs. Runs below the
// top are merged fan at a time; one merge takes a run of FlushRows, or of a
// quarter of it, to the top. From there on runs are left alone until there are
// very many of them: every merge costs as much as the first flush.
type tiers struct {
	bounds []uint64
	top    int
	fan    int
}

// wideFan is how many times the fan it takes to merge runs of the top.
const wideFan = 4

func newTiers(cfg Config) tiers {
	t := tiers{fan: cfg.MergeFanIn}
	top := max(1, uint64(cfg.FlushRows)*3/2)
	for b := top; b >= 64 || b == top; b /= uint64(cfg.MergeFanIn) {
		t.bounds = append(t.bounds, b)
	}
	slices.Reverse(t.bounds)
	t.top = len(t.bounds)
	for b := top; b < 1<<40; {
		b *= uint64(cfg.MergeFanIn * wideFan)
		t.bounds = append(t.bounds, b)
	}
	return t
}

func (t tiers) of(r *run) int {
	n := 0
	for n < len(t.bounds) && r.rows >= t.bounds[n] {
		n++
	}
	return n
}

// pick returns the runs to merge next, nil if none: neighbours, from newest to
// oldest. Only the newest runs up to some tier are ever merged, so that in
// every run all rows are older than those of the runs before it.
func (t tiers) pick(runs []*run) []*run {
	small := 0
	for small < len(runs) && t.of(runs[small]) < t.top {
		small++
	}
	for tier := range len(t.bounds) + 1 {
		need := t.fan
		if tier >= t.top {
			need *= wideFan
		}
		n, exact := 0, 0
		for n < len(runs) && t.of(runs[n]) <= tier {
			if t.of(runs[n]) == tier {
				exact++
			}
			n++
		}
		if exact >= need {
			return runs[:n]
		}
	}
	// Uneven sizes can keep every tier below its number.
	if small >= wideFan*t.fan {
		return runs[:small]
	}
	return nil
}

// pick returns the runs to merge next: by size, or a single run at least half
// of which is classes out of time.
func (s *Store) pick() []*run {
	if inputs := s.host.tiers.pick(s.manifest.runs); inputs != nil {
		return inputs
	}
	before := s.before.Load()
	if before == nil {
		return nil
	}
	last := lastOfClasses(nil)
	for i, r := range slices.Backward(s.manifest.runs) {
		last.add(r)
		var dead uint64
		for _, c := range r.classes {
			if last[c.class] < before[c.class] {
				dead += c.rows
			}
		}
		if dead >= max(1, r.rows/2) {
			return s.manifest.runs[i : i+1]
		}
	}
	return nil
}

// mergeable returns how many runs merging could still reduce.
func (s *Store) mergeable() int {
	n := 0
	for _, r := range s.manifest.runs {
		if s.host.tiers.of(r) < s.host.tiers.top {
			n++
		}
	}
	return n
}

// merge replaces the inputs, neighbours in the manifest, by one run with the
// newest row of every digest, without rows out of time.
func (s *Store) merge(inputs []*run) error {
	work, err := acquire(s, s.host.merging)
	if err != nil {
		return err
	}
	m := merging{s: s, inputs: inputs, work: work}
	if before := s.before.Load(); before != nil {
		oldest := slices.Index(s.manifest.runs, inputs[len(inputs)-1])
		m.before, m.older = before, lastOfClasses(s.manifest.runs[oldest+1:])
	}
	out, err := m.write()
	s.host.merging <- work
	if err != nil {
		return err
	}
	// Flushes from within the merge have put runs before the inputs.
	next := *s.manifest
	at := slices.Index(next.runs, inputs[0])
	next.runs = slices.Concat(next.runs[:at], out, next.runs[at+len(inputs):])
	if err := s.commit(&next, false); err != nil {
		return fmt.Errorf("merge %d runs: %w", len(inputs), err)
	}
	s.host.metrics.merges.Inc()
	s.host.metrics.mergedRows.Add(float64(m.read))
	s.countEvicted(m.evicted)
	return nil
}

// merging is one merge under way.
type merging struct {
	s      *Store
	inputs []*run
	work   *scratch
	// before and older are nil if nothing expires: the bound of each class,
	// and the greatest First of each class in the runs below the inputs.
	before  *[256]int64
	older   *classLasts
	read    uint64
	evicted uint64
}

// gone tells whether a row may be dropped; see Store.expire.
func (m *merging) gone(class uint8, first int64) bool {
	return m.before != nil && first < m.before[class] && m.older[class] < m.before[class]
}

// mergeYieldPages is after how many pages a merge lets a flush pass.
const mergeYieldPages = 64

// write writes the merged run; none if no row is left.
func (m *merging) write() ([]*run, error) {
	size, err := m.size()
	if err != nil {
		return nil, err
	}
	w := newRunWriter(m.s.db, m.work, m.s.newRunID(), size, m.s.host.cfg.PageBytes)
	err = m.copy(w)
	if err == nil && w.run.rows == 0 {
		m.work.batch.discard()
		return nil, nil
	}
	var out *run
	if err == nil {
		out, err = w.finish()
	}
	if err != nil {
		m.work.batch.discard()
		if errors.Is(err, errStopped) {
			return nil, errors.Join(err, m.s.db.deleteRun(w.run.id))
		}
		return nil, fmt.Errorf("merge %d runs: %w", len(m.inputs), err)
	}
	return []*run{out}, nil
}

// copy adds the rows that stay to w.
func (m *merging) copy(w *runWriter) error {
	rows := newMerger(runSources(m.s.db, m.inputs))
	next := uint32(mergeYieldPages)
	for {
		h, err := rows.next()
		if err != nil || h == nil {
			m.read = rows.read
			return err
		}
		if m.gone(h.row.Class, h.row.First) {
			m.evicted++
			continue
		}
		if err := w.add(&h.row.Digest, h.body, h.row.Class, h.row.First); err != nil {
			return err
		}
		if w.page >= next {
			next = w.page + mergeYieldPages
			if err := m.s.yield(); err != nil {
				return err
			}
		}
	}
}

// samplePages is how many pages of the largest input are read to learn how
// many rows survive a merge.
const samplePages = 16

// size estimates the merged run by merging the lowest digests: as digests are
// uniform, they stand for all.
func (m *merging) size() (runSize, error) {
	var pages uint32
	for _, r := range m.inputs {
		pages = max(pages, r.pages)
	}
	limit, scale := uint64(math.MaxUint64), 1.0
	if pages > 2*samplePages {
		limit = math.MaxUint64 / uint64(pages) * samplePages
		scale = float64(pages) / samplePages
	}
	var size runSize
	for rows := newMerger(runSources(m.s.db, m.inputs)); ; {
		h, err := rows.next()
		if err != nil {
			return runSize{}, fmt.Errorf("merge %d runs: %w", len(m.inputs), err)
		}
		if h == nil || h.prefix > limit {
			break
		}
		if !m.gone(h.row.Class, h.row.First) {
			size.rows++
			size.bytes += uint64(rowOverhead + len(h.body))
		}
	}
	return runSize{uint64(float64(size.rows) * scale), uint64(float64(size.bytes) * scale)}, nil
}
