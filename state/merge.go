package state

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// tiers are the bounds, in rows, between the size tiers of runs. Below the top tier, a merge starts when there
// are fanIn runs. A run of FlushRows, or of a quarter of FlushRows, reaches the top tier with one merge. In the
// top tier a merge starts only when there are topFanInFactor times as many runs, because every merge there
// costs as much as the first flush of its rows.
type tiers struct {
	bounds []uint64
	top    int
	fanIn  int
}

// In the top tier, topFanInFactor times fanIn runs are merged at once.
const topFanInFactor = 4

// newTiers returns the tiers for a configuration: below the top tier their bounds grow by the factor
// MergeFanIn, above it by topFanInFactor times that.
func newTiers(cfg Config) tiers {
	t := tiers{fanIn: cfg.MergeFanIn}
	top := max(1, uint64(cfg.FlushRows)*3/2)
	for b := top; b >= 64 || b == top; b /= uint64(cfg.MergeFanIn) {
		t.bounds = append(t.bounds, b)
	}
	slices.Reverse(t.bounds)
	t.top = len(t.bounds)
	for b := top; b < 1<<40; {
		b *= uint64(cfg.MergeFanIn * topFanInFactor)
		t.bounds = append(t.bounds, b)
	}
	return t
}

// tierOf returns the tier of a run, 0 for the smallest runs.
func (t tiers) tierOf(r *run) int {
	n := 0
	for n < len(t.bounds) && r.rows >= t.bounds[n] {
		n++
	}
	return n
}

// pickRuns returns the runs to merge next, from newest to oldest, or nil. They always include the newest run
// and have no gap, so that the runs of the manifest stay ordered by the age of every row.
func (t tiers) pickRuns(runs []*run) []*run {
	small := 0
	for small < len(runs) && t.tierOf(runs[small]) < t.top {
		small++
	}
	for tier := range len(t.bounds) + 1 {
		need := t.fanIn
		if tier >= t.top {
			need *= topFanInFactor
		}
		n, exact := 0, 0
		for n < len(runs) && t.tierOf(runs[n]) <= tier {
			if t.tierOf(runs[n]) == tier {
				exact++
			}
			n++
		}
		if exact >= need {
			return runs[:n]
		}
	}
	// If the sizes of the runs are uneven, it can happen that no tier reaches its number of runs, however many
	// runs exist.
	if small >= topFanInFactor*t.fanIn {
		return runs[:small]
	}
	return nil
}

// pickRuns returns the runs to merge next. It chooses by size; otherwise it takes a single run if at least
// half of the run's rows are of namespaces in which neither that run nor an older one has a retained row.
func (s *Store) pickRuns() []*run {
	if inputs := s.host.tiers.pickRuns(s.manifest.runs); inputs != nil {
		return inputs
	}
	before := s.evictBounds.Load()
	if before == nil {
		return nil
	}
	last := lastFirstsOf(nil)
	for i, r := range slices.Backward(s.manifest.runs) {
		last.add(r)
		var expired uint64
		for _, c := range r.namespaces {
			if last[c.id] < before[c.id] {
				expired += c.rows
			}
		}
		if expired >= max(1, r.rows/2) {
			return s.manifest.runs[i : i+1]
		}
	}
	return nil
}

// countMergeable returns the number of runs below the top tier.
func (s *Store) countMergeable() int {
	n := 0
	for _, r := range s.manifest.runs {
		if s.host.tiers.tierOf(r) < s.host.tiers.top {
			n++
		}
	}
	return n
}

// mergeRuns replaces the inputs, consecutive runs of the manifest, by one run with the newest row of every
// digest. It drops the rows that EvictBefore permits to evict.
func (s *Store) mergeRuns(inputs []*run) error {
	work, err := s.acquireScratch(s.host.mergeScratch, s.frozen)
	if err != nil {
		return err
	}
	m := mergeJob{s: s, inputs: inputs, work: work}
	if before := s.evictBounds.Load(); before != nil {
		oldest := slices.Index(s.manifest.runs, inputs[len(inputs)-1])
		m.bounds, m.olderFirsts = before, lastFirstsOf(s.manifest.runs[oldest+1:])
	}
	out, err := m.writeRun()
	s.host.mergeScratch <- work
	if err != nil {
		return err
	}
	// Flushes during the merge may have added runs, which are newer and so come before the inputs.
	next := *s.manifest
	at := slices.Index(next.runs, inputs[0])
	next.runs = slices.Concat(next.runs[:at], out, next.runs[at+len(inputs):])
	if err := s.commitManifest(&next, false); err != nil {
		return fmt.Errorf("merge %d runs: %w", len(inputs), err)
	}
	s.host.metrics.merges.Inc()
	s.host.metrics.mergedRows.Add(float64(m.read))
	s.countEvicted(m.evicted, "merge")
	return nil
}

// mergeJob is the state of one running merge.
type mergeJob struct {
	s      *Store
	inputs []*run
	work   *scratch
	// bounds are the bounds of EvictBefore; olderFirsts has the greatest First of each namespace in the runs
	// older than the inputs. Both are nil before the first EvictBefore.
	bounds      *[256]int64
	olderFirsts *lastFirsts
	read        uint64
	evicted     uint64
}

// evictable reports whether the merge may drop a row; see Store.evictRuns.
func (m *mergeJob) evictable(namespaceID uint8, first int64) bool {
	return m.bounds != nil && first < m.bounds[namespaceID] && m.olderFirsts[namespaceID] < m.bounds[namespaceID]
}

// flushCheckPages is after how many pages a merge checks again whether there is a frozen table to flush.
const flushCheckPages = 64

// writeRun writes the merged run and returns it, or no run if no row is left.
func (m *mergeJob) writeRun() ([]*run, error) {
	size, err := m.estimateSize()
	if err != nil {
		return nil, err
	}
	w := newRunWriter(m.s.db, m.work, m.s.newRunID(), size, m.s.host.cfg.PageBytes)
	err = m.copyRows(w)
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

// copyRows adds all rows that are not evictable to w.
func (m *mergeJob) copyRows(w *runWriter) error {
	rows := newMerger(runSources(m.s.db, m.inputs))
	next := uint32(flushCheckPages)
	for {
		h, err := rows.next()
		if err != nil || h == nil {
			m.read = rows.read
			return err
		}
		if m.evictable(h.row.NamespaceID, h.row.First) {
			m.evicted++
			continue
		}
		if err := w.add(&h.row); err != nil {
			return err
		}
		if w.page >= next {
			next = w.page + flushCheckPages
			if err := m.s.flushFrozen(); err != nil {
				return err
			}
		}
	}
}

// samplePages is the number of pages of the largest input that estimateSize
// reads.
const samplePages = 16

// estimateSize estimates the size of the merged run from a merge of the lowest digests only. The rows with the
// lowest digests are a fair sample, because digests are uniformly distributed.
func (m *mergeJob) estimateSize() (runSize, error) {
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
		if !m.evictable(h.row.NamespaceID, h.row.First) {
			size.rows++
			m.work.details = h.row.AppendDetails(m.work.details[:0])
			size.bytes += uint64(rowBytes + len(m.work.details))
		}
	}
	return runSize{uint64(float64(size.rows) * scale), uint64(float64(size.bytes) * scale)}, nil
}
