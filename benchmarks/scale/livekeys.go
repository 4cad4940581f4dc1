//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"oncebus/benchmarks/internal/bench"
	"oncebus/processor/kafkatest"
	"oncebus/processor/kafkatest/program"
)

// liveRun has all measurements with one number of keys in one round. Times are in seconds, sizes in bytes.
type liveRun struct {
	Keys  int // the requested number of keys, filled in before the measurements
	Round int
	// Horizon is how many keys are live once keys expire: Keys, plus the keys of the light traffic, plus the keys of
	// the backlog during which no key expires.
	Horizon int

	FillRate     float64 // events a second, while generator and reader use the same cores
	FillGaps     gapFigures
	RSSFirst     int64 // highest resident memory of the process that was filled, including mapped files
	RSSMax       int64 // highest resident memory, including that of the later processes
	AnonymousMax int64 // highest anonymous memory of all these processes
	GoHeapMax    int64
	GoHeap       int64    // after the light traffic
	Limited      *limited `json:",omitempty"` // set if memory has a limit
	DiskBytes    int64    // of the state directory, after the light traffic
	DiskKeys     int      // keys whose rows are in the state directory
	Growing      drainRun
	Expiring     drainRun
	Steady       steady
	EvictedRows  int     // rows that the stores had evicted until then
	KeyP99       float64 // µs to derive a key, until then
	CheckP99     float64 // µs to derive a key, look it up and decide
	Restarts     []restart
	Rebuild      rebuild
}

// steady is traffic below the highest rate, while keys expire. Every partition always has input and no
// partition has a backlog. Commits therefore follow the commit interval, unless something delays them. With a
// backlog, the times of commits would instead depend on the client's fetches, which return many records of one
// partition at a time.
type steady struct {
	Rate float64 // events a second
	Gaps gapFigures
}

// restart has the measurements of one kill -9 under load and of the start after it.
type restart struct {
	Unflushed int     // rows that were only in memory just before the kill
	Read      int     // rows read from the changelog
	Ready     float64 // from the start of the process to /readyz
	Flow      float64 // from the start of the process to its first commit
}

// rebuild has the measurements of a start without the state directory.
type rebuild struct {
	Records int     // records in the changelog
	Keys    int     // keys among them
	Seconds float64 // from the start of the process to /readyz
}

func (r rebuild) rate() float64 { return float64(r.Keys) / r.Seconds }

// flushRate is the rate of the light traffic after a fill. The light traffic is necessary because tasks check
// only during traffic whether their rows are old enough to be flushed.
const flushRate = 200

// measureLive runs all rounds of all sizes.
func measureLive(ctx context.Context, b *bed) (runs []liveRun, err error) {
	for round := range b.s.rounds {
		for _, keys := range b.s.keys {
			if !b.s.measures(keys, round) {
				continue
			}
			began := time.Now()
			b.progress.Next("%d live keys, round %d", keys, round+1)
			r, err := liveOnce(ctx, b, keys, round)
			if err != nil {
				return runs, fmt.Errorf("%d live keys, round %d: %w", keys, round+1, err)
			}
			b.progress.Done("%d live keys, round %d: %.0f k events/s growing, %.0f expiring, %d MiB, %.0f B of disk a key, rebuild %.0f k keys/s; took %v",
				keys, round+1, r.Growing.Rate/1e3, r.Expiring.Rate/1e3, r.RSSMax>>20, r.diskPerKey(), r.Rebuild.rate()/1e3, time.Since(began).Round(time.Second))
			runs = append(runs, r)
		}
	}
	return runs, nil
}

// diskPerKey returns bytes per key; 0 if nothing has been flushed.
func (r liveRun) diskPerKey() float64 {
	if r.DiskKeys == 0 {
		return 0
	}
	return float64(r.DiskBytes) / float64(r.DiskKeys)
}

// live is the state of the current run.
type live struct {
	*app
	run     liveRun
	service *program.Process
	memory  *memory
}

// liveOnce fills an app and measures it, then checks its output.
func liveOnce(ctx context.Context, b *bed, keys, round int) (run liveRun, err error) {
	n := min(b.s.backlog, keys)
	horizon := keys + int(b.s.flushWait.Seconds()*flushRate) + n*(100-b.s.duplicates)/100
	a, err := b.newApp(ctx, fmt.Sprintf("keys-%d-round-%d", keys, round+1), shape{1, b.s.workers, b.s.partitions}, true, horizon)
	if err != nil {
		return run, err
	}
	defer func() { err = errors.Join(err, a.close()) }()
	if b.s.memory > 0 {
		if a.group, err = newGroup(b.s.memory); err != nil {
			return run, err
		}
		defer func() { err = errors.Join(err, a.group.remove(ctx)) }()
	}
	ctx, cancel := context.WithCancel(ctx) // ends the sampling of the memory, also after an error
	defer cancel()
	l := &live{app: a, run: liveRun{Keys: keys, Round: round + 1, Horizon: horizon}, memory: new(memory)}
	defer func() { err = errors.Join(err, end(l.service)) }()
	for _, step := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"start", func(ctx context.Context) error { _, err := l.begin(ctx); return err }},
		{"fill", l.fillUp},
		{"light traffic", l.letFlush},
		{"rate without expiry", func(ctx context.Context) (err error) { l.run.Growing, err = l.drain(ctx, n, l.service); return err }},
		{"rate with expiry", func(ctx context.Context) (err error) { l.run.Expiring, err = l.drain(ctx, n, l.service); return err }},
		{"steady traffic", l.steadyTraffic},
		{"restarts", func(ctx context.Context) error { return l.restarts(ctx, n/2) }},
		{"rebuild", l.rebuild},
		{"traffic after the rebuild", func(ctx context.Context) error { _, err := l.drain(ctx, n/2, l.service); return err }},
		{"stop", func(context.Context) error { return l.halt() }},
		{"check", a.verify},
	} {
		note("  %d keys: %s", keys, step.name)
		if err := step.do(ctx); err != nil {
			return l.run, errors.Join(fmt.Errorf("%s: %w", step.name, err), l.noteLimit())
		}
	}
	return l.run, l.noteLimit()
}

// begin starts the process, waits until it is ready, and returns how long this took. From then on it samples the
// memory.
func (l *live) begin(ctx context.Context) (ready time.Duration, err error) {
	if l.service, err = l.start(ctx, 0); err != nil {
		return 0, err
	}
	readyCtx, cancel := context.WithTimeout(ctx, readyMax)
	defer cancel()
	if ready, err = l.service.AwaitReady(readyCtx); err != nil {
		return 0, err
	}
	l.memory.watch(ctx, l.service)
	return ready, nil
}

// noteMemory ends the sampling of the process's memory and records the result. Call it before the process ends.
func (l *live) noteMemory() error {
	l.memory.end()
	u, err := l.service.Usage()
	if err != nil {
		return err
	}
	if l.run.RSSFirst == 0 {
		l.run.RSSFirst = u.RSSMax
	}
	l.run.RSSMax = max(l.run.RSSMax, u.RSSMax)
	l.run.AnonymousMax, l.run.GoHeapMax = l.memory.anonymous, l.memory.heap
	return nil
}

// noteLimit records what the kernel has counted in the cgroup. It returns an error if the kernel has killed a process
// in it.
func (l *live) noteLimit() error {
	if l.group == nil {
		return nil
	}
	counts, err := l.group.counts()
	l.run.Limited = &counts
	if err == nil && counts.Killed > 0 {
		err = fmt.Errorf("the kernel killed %d processes for lack of memory, the limit is %d MiB", counts.Killed, l.s.memory/mib)
	}
	return err
}

// halt stops the process as an operator does, by SIGTERM.
func (l *live) halt() error {
	if err := l.noteMemory(); err != nil {
		return err
	}
	return l.service.Stop()
}

func (l *live) fillUp(ctx context.Context) error {
	l.watch.reset()
	began := time.Now()
	if err := l.fill(ctx, l.run.Keys, l.service); err != nil {
		return err
	}
	l.run.FillRate = float64(l.load.events) / time.Since(began).Seconds()
	l.run.FillGaps = l.watch.gapFigures()
	return errors.Join(l.out.catchUp(ctx), l.purge(ctx))
}

// letFlush sends light traffic, so that the process flushes the rows in its memory, and then measures heap and disk.
func (l *live) letFlush(ctx context.Context) error {
	keys := l.load.keys + int(l.s.flushWait.Seconds()*flushRate)
	if err := l.load.stream(ctx, keys, l.load.pace(flushRate*100/(100-l.s.duplicates))); err != nil {
		return err
	}
	if err := l.watch.drained(ctx, l.service); err != nil {
		return err
	}
	m, err := l.service.Metrics(ctx)
	if err != nil {
		return err
	}
	l.run.GoHeap = int64(m.Sum(metricHeap))
	l.run.DiskBytes, err = bench.DiskBytes(l.stateDir(0))
	l.run.DiskKeys = l.load.keys - int(m.Sum(metricRecent))
	return err
}

// steadyShare is the rate of the steady traffic as a share of the rate while keys expire.
const steadyShare = 0.4

func (l *live) steadyTraffic(ctx context.Context) error {
	rate := int(l.run.Expiring.Rate * steadyShare)
	keys := l.load.keys + int(l.s.steady.Seconds()*float64(rate))*(100-l.s.duplicates)/100
	l.watch.reset()
	if err := l.load.stream(ctx, keys, l.load.pace(rate)); err != nil {
		return err
	}
	if err := l.watch.drained(ctx, l.service); err != nil {
		return err
	}
	l.run.Steady = steady{Rate: float64(rate), Gaps: l.watch.gapFigures()}
	m, err := l.service.Metrics(ctx)
	if err != nil {
		return err
	}
	l.run.EvictedRows = int(m.Sum(metricEvicted))
	for name, p99 := range map[string]*float64{metricKeyDerivationSeconds: &l.run.KeyP99, metricDecisionSeconds: &l.run.CheckP99} {
		seconds, err := quantile(m, name, 0.99)
		if err != nil {
			return err
		}
		*p99 = seconds * 1e6
	}
	return errors.Join(l.out.catchUp(ctx), l.purge(ctx))
}

// killAfter is the share of a backlog that has been processed when the process is killed.
const killAfter = 0.4

// lateCommits is how long after a kill the broker may still finish a commit that was in flight.
const lateCommits = 200 * time.Millisecond

// restarts kills the process l.s.kills times during a backlog of n events, and each time starts it again with its
// state.
func (l *live) restarts(ctx context.Context, n int) error {
	for range l.s.kills {
		held, err := l.load.hold(ctx, n)
		if err != nil {
			return err
		}
		before := l.watch.total()
		if err := held.release(ctx); err != nil {
			return err
		}
		if err := l.watch.await(ctx, []*program.Process{l.service}, func() bool { return l.watch.total()-before > int64(killAfter*float64(n)) }); err != nil {
			return err
		}
		r, err := l.restart(ctx)
		if err != nil {
			return err
		}
		l.run.Restarts = append(l.run.Restarts, r)
		if err := l.watch.drained(ctx, l.service); err != nil {
			return err
		}
		if err := errors.Join(l.out.catchUp(ctx), l.purge(ctx)); err != nil {
			return err
		}
	}
	return nil
}

// kill kills the process with SIGKILL.
func (l *live) kill(ctx context.Context, r *restart) error {
	m, err := l.service.Metrics(ctx)
	if err != nil {
		return err
	}
	r.Unflushed = int(m.Sum(metricRecent))
	if err := l.noteMemory(); err != nil {
		return err
	}
	return l.service.Kill()
}

// again starts the killed process with its state.
func (l *live) again(ctx context.Context, r *restart) error {
	ready, err := l.begin(ctx)
	if err != nil {
		return err
	}
	r.Ready = ready.Seconds()
	m, err := l.service.Metrics(ctx)
	if err != nil {
		return err
	}
	r.Read = int(m.Sum(metricRestored))
	if n := m.Sum(metricQuarantined); n != 0 {
		err = fmt.Errorf("%v stores were quarantined after a kill", n)
	}
	return err
}

// restart kills the process under load and starts it again.
func (l *live) restart(ctx context.Context) (r restart, err error) {
	if err := l.kill(ctx, &r); err != nil {
		return r, err
	}
	if err := kafkatest.Pause(ctx, lateCommits); err != nil {
		return r, err
	}
	if l.watch.waiting() == 0 {
		return r, errors.New("all events were processed before the kill, so the run shows nothing: raise -backlog")
	}
	committed := l.watch.total()
	if err := l.again(ctx, &r); err != nil {
		return r, err
	}
	if err := l.watch.await(ctx, []*program.Process{l.service}, func() bool { return l.watch.total() > committed }); err != nil {
		return r, err
	}
	r.Flow = l.watch.firstAbove(committed).Sub(l.service.Started).Seconds()
	return r, nil
}

// rebuild starts the process without its state directory.
func (l *live) rebuild(ctx context.Context) error {
	if err := l.halt(); err != nil {
		return err
	}
	if err := os.RemoveAll(l.stateDir(0)); err != nil {
		return err
	}
	ready, err := l.begin(ctx)
	if err != nil {
		return err
	}
	m, err := l.service.Metrics(ctx)
	if err != nil {
		return err
	}
	records := int(m.Sum(metricRestored))
	l.run.Rebuild = rebuild{Records: records, Keys: min(records, l.load.keys), Seconds: ready.Seconds()}
	return nil
}

// memory samples the memory of a process and of the processes that follow it.
type memory struct {
	anonymous, heap int64 // highest
	cancel          context.CancelFunc
	sampling        sync.WaitGroup
}

const (
	anonymousEvery = 100 * time.Millisecond
	heapEvery      = 10 // of those samples
)

func (m *memory) watch(ctx context.Context, s *program.Process) {
	ctx, m.cancel = context.WithCancel(ctx)
	m.sampling.Go(func() {
		tick := time.NewTicker(anonymousEvery)
		defer tick.Stop()
		for n := 0; ; n++ {
			// A sample may fail because the process is ending; such an error is ignored.
			if u, err := s.Usage(); err == nil {
				m.anonymous = max(m.anonymous, u.RSSAnon)
			}
			if n%heapEvery == 0 {
				if all, err := s.Metrics(ctx); err == nil {
					m.heap = max(m.heap, int64(all.Sum(metricHeap)))
				}
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	})
}

func (m *memory) end() {
	m.cancel()
	m.sampling.Wait()
}
