//go:build unix

package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"oncebus/benchmarks/internal/bench"
	"oncebus/processor/kafkatest/program"
)

const (
	// watchEvery is the interval in which a watch asks the coordinator of the group, and so the resolution of the
	// watch.
	watchEvery = 10 * time.Millisecond
	// standstillMax is how long no event may be committed while input waits. After that a run fails. It is longer
	// than all timeouts of the group.
	standstillMax = 2 * time.Minute
)

// watch follows the offsets of the input that a group has committed. The offsets are committed in the same
// transactions as the output, so they also show the progress of the output.
type watch struct {
	admin *kadm.Client
	group string
	load  *load
	stop  func()

	mu        sync.Mutex
	committed []int64 // by partition
	samples   []sample
	gaps      *gaps
	err       error
	changed   chan struct{} // closed after the next sample, and then replaced
}

// sample is the number of committed events at a time. It is computed from offsets, which also count one transaction
// marker in each partition for each backlog.
type sample struct {
	at     time.Time
	events int64
}

func startWatch(ctx context.Context, admin *kadm.Client, group string, l *load) *watch {
	ctx, cancel := context.WithCancel(ctx)
	w := &watch{admin: admin, group: group, load: l, committed: make([]int64, l.partitions), gaps: newGaps(l.partitions), changed: make(chan struct{})}
	var wg sync.WaitGroup
	w.stop = func() { cancel(); wg.Wait() }
	wg.Go(func() {
		tick := time.NewTicker(watchEvery)
		defer tick.Stop()
		for w.look(ctx) {
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
	})
	return w
}

// look takes one sample. It returns false if the watch has ended.
func (w *watch) look(ctx context.Context) bool {
	ends := w.load.endOffsets() // read the end offsets first, so that the backlog does not seem larger than it is
	offsets, err := w.admin.FetchOffsets(ctx, w.group)
	now := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	defer func() {
		close(w.changed)
		w.changed = make(chan struct{})
	}()
	if ctx.Err() != nil || err != nil {
		if ctx.Err() == nil {
			err = fmt.Errorf("watch the offsets of %s: %w", w.group, err)
		}
		w.err = err
		return false
	}
	var sum int64
	for p := range w.committed {
		if o, ok := offsets.Lookup(w.load.topic, int32(p)); ok {
			w.committed[p] = max(w.committed[p], o.At)
		}
		sum += w.committed[p]
	}
	w.gaps.see(now, w.committed, ends)
	w.samples = append(w.samples, sample{now, sum})
	return true
}

// reset drops the samples and gaps so far; it begins a measurement.
func (w *watch) reset() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.samples, w.gaps = nil, newGaps(len(w.committed))
}

// offsets returns a copy of the committed offsets.
func (w *watch) offsets() []int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.committed)
}

// total returns the number of committed events.
func (w *watch) total() (sum int64) {
	for _, o := range w.offsets() {
		sum += o
	}
	return sum
}

// waiting returns the number of events that are not committed.
func (w *watch) waiting() (sum int64) {
	committed := w.offsets()
	for p, end := range w.load.endOffsets() {
		sum += max(0, end-committed[p])
	}
	return sum
}

// await checks after each sample whether holds returns true, and returns when it does. It fails if the services end,
// or if no event is committed for standstillMax.
func (w *watch) await(ctx context.Context, services []*program.Process, holds func() bool) error {
	last, since := w.total(), time.Now()
	for !holds() {
		w.mu.Lock()
		changed, err := w.changed, w.err
		w.mu.Unlock()
		if err != nil {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
		for _, s := range services {
			if err := s.Ended(); err != nil {
				return err
			}
		}
		if now := w.total(); now != last {
			last, since = now, time.Now()
		} else if time.Since(since) > standstillMax {
			return fmt.Errorf("no event was committed for %v, %d events wait: %s", standstillMax, w.waiting(), why(ctx, services))
		}
	}
	return nil
}

// drained waits until all visible events are committed.
func (w *watch) drained(ctx context.Context, services ...*program.Process) error {
	return w.await(ctx, services, func() bool { return w.waiting() == 0 })
}

// rates divides the time between two samples into n equal parts, and returns the rate in each, in events a second.
func (w *watch) rates(from, to sample, n int) []float64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	var rates []float64
	begin := from
	for i := range n {
		until := from.at.Add(to.at.Sub(from.at) * time.Duration(i+1) / time.Duration(n))
		end := begin
		for _, s := range w.samples {
			if !s.at.After(until) && s.at.After(end.at) {
				end = s
			}
		}
		if end.at.After(begin.at) {
			rates = append(rates, rate(begin, end))
		}
		begin = end
	}
	return rates
}

// rate returns the rate in events a second.
func rate(from, to sample) float64 {
	return float64(to.events-from.events) / to.at.Sub(from.at).Seconds()
}

// newest returns the last sample.
func (w *watch) newest() sample {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.samples) == 0 {
		return sample{}
	}
	return w.samples[len(w.samples)-1]
}

// gaps has the times between two commits of a partition while input waits in the partition. The wait for the first
// commit counts as well.
type gaps struct {
	last    []int64
	since   []time.Time // when input began to wait; zero: no input waits
	longest []time.Duration
	all     []float64 // milliseconds
}

func newGaps(partitions int) *gaps {
	return &gaps{last: make([]int64, partitions), since: make([]time.Time, partitions), longest: make([]time.Duration, partitions)}
}

// see records the committed offset and the end offset of each partition.
func (g *gaps) see(now time.Time, committed, ends []int64) {
	for p := range committed {
		waits := ends[p] > committed[p]
		switch {
		case committed[p] != g.last[p]:
			if !g.since[p].IsZero() {
				g.add(p, now.Sub(g.since[p]))
			}
			g.last[p], g.since[p] = committed[p], time.Time{}
			if waits {
				g.since[p] = now
			}
		case waits && g.since[p].IsZero():
			g.since[p] = now
		}
	}
}

func (g *gaps) add(p int, d time.Duration) {
	g.longest[p] = max(g.longest[p], d)
	g.all = append(g.all, float64(d)/float64(time.Millisecond))
}

// gapFigures summarises the gaps of all partitions, in milliseconds.
type gapFigures struct {
	Median, Longest float64
}

// Stall is the longest gap minus the median gap: every gap contains one commit interval and the time of the commit
// itself.
func (g gapFigures) Stall() float64 { return g.Longest - g.Median }

func (w *watch) gapFigures() gapFigures {
	w.mu.Lock()
	defer w.mu.Unlock()
	sorted := slices.Sorted(slices.Values(w.gaps.all))
	if len(sorted) == 0 {
		return gapFigures{}
	}
	return gapFigures{bench.Percentile(sorted, 50), sorted[len(sorted)-1]}
}

// longestGaps returns the longest gap of each partition, in milliseconds. It includes gaps that have not ended.
func (w *watch) longestGaps() []float64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	var longest []float64
	for p, d := range w.gaps.longest {
		if since := w.gaps.since[p]; !since.IsZero() {
			d = max(d, time.Since(since))
		}
		longest = append(longest, float64(d)/float64(time.Millisecond))
	}
	return longest
}

// firstAbove returns the time of the first sample with more than the given number of committed events.
func (w *watch) firstAbove(events int64) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := slices.IndexFunc(w.samples, func(s sample) bool { return s.events > events })
	if i < 0 {
		return time.Time{}
	}
	return w.samples[i].at
}
