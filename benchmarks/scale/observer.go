//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"sync"
	"time"

	"oncebus/benchmarks/internal/bench"
	"oncebus/processor/kafkatest"
	"oncebus/processor/kafkatest/program"
)

// observed is what an app did during a step, and what the app used. Rates are the events a second that its processes
// judged, according to their metrics. Memory and disk are the highest samples, in bytes.
type observed struct {
	Step    string
	Seconds float64
	// Before is the rate before the step. Slowest is the rate in the slowest second of the step.
	Before, Meanwhile, Slowest, After float64
	// SilentBefore and Silent are the longest times, in ms, during which a partition of the output got no
	// record: before the step, and from the start of the step until the app had caught up.
	SilentBefore, Silent float64
	CaughtUp             float64 // seconds from the end of the step until no more events waited than before the step
	RSS, BrokerRSS       int64   // of one process; of the broker
	DiskBefore, DiskPeak int64   // of the broker, the state directories and the files together
	DiskAfter            int64
}

const (
	// silenceEvery is the resolution with which silences are measured; observeEvery is the resolution of rates,
	// memory and disk.
	silenceEvery, observeEvery = 20 * time.Millisecond, 500 * time.Millisecond
	// caughtUpMax limits the time until an app has caught up.
	caughtUpMax = 5 * time.Minute
)

// observer samples an app that has traffic.
type observer struct {
	*app

	stop func()
	// repartition is the repartition topic of the tasks that are in force.
	repartition string

	sampling sync.Mutex // so that only one sample of the processes is taken at a time

	mu       sync.Mutex
	services []*program.Process
	judged   map[*program.Process]float64 // events that the process has judged, by its metrics
	events   float64                      // sum over all processes, including those that have ended
	samples  []sample
	emitted  *silences // silences of the output's partitions
	tasks    *silences
	highest  observed
	err      error
}

// observe samples the app until the caller calls stop.
func observe(ctx context.Context, a *app) *observer {
	ctx, cancel := context.WithCancel(ctx)
	o := &observer{app: a, repartition: a.name + "-repartition", judged: map[*program.Process]float64{}, emitted: newSilences(), tasks: newSilences()}
	var all sync.WaitGroup
	o.stop = func() { cancel(); all.Wait() }
	for interval, look := range map[time.Duration]func(context.Context) error{silenceEvery: o.lookAtOffsets, observeEvery: o.lookAtProcesses} {
		all.Go(func() {
			for ctx.Err() == nil {
				began := time.Now()
				if err := look(ctx); err != nil && ctx.Err() == nil {
					o.fail(err)
					return
				}
				_ = kafkatest.Pause(ctx, interval-time.Since(began)) // the condition of the loop sees the end of ctx
			}
		})
	}
	return o
}

func (o *observer) fail(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.err = errors.Join(o.err, fmt.Errorf("observe %s: %w", o.name, err))
}

// lookAtOffsets records for which partitions of the output, and for which tasks, something was committed since
// its last call.
func (o *observer) lookAtOffsets(ctx context.Context) error {
	ends, err := o.admin.ListCommittedOffsets(ctx, o.output())
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return err
	}
	committed, err := o.admin.FetchOffsets(ctx, o.name+"-dedup")
	if err != nil {
		return err
	}
	now := time.Now()
	o.mu.Lock()
	defer o.mu.Unlock()
	for p, end := range ends[o.output()] {
		o.emitted.see(now, o.output()+"/"+strconv.Itoa(int(p)), end.Offset)
	}
	for topic, partitions := range committed {
		for p, at := range partitions {
			o.tasks.see(now, topic+"/"+strconv.Itoa(int(p)), at.At)
		}
	}
	return nil
}

// lookAtProcesses samples rate, memory and disk. If the metrics of one process are missing, for example because it
// was just killed, the sample has no rate.
func (o *observer) lookAtProcesses(ctx context.Context) error {
	o.sampling.Lock()
	defer o.sampling.Unlock()
	broker, err := o.broker.Usage()
	if err != nil {
		return err
	}
	disk, err := bench.DiskBytes(o.broker.Dir)
	if err != nil {
		return err
	}
	whole, rss := true, int64(0)
	for _, s := range o.running() {
		if u, err := s.Usage(); err == nil {
			rss = max(rss, u.RSS)
		}
		m, err := s.Metrics(ctx)
		if err != nil {
			whole = false
			continue
		}
		o.note(s, m.Sum(metricJudged))
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	h := &o.highest
	h.RSS, h.BrokerRSS, h.DiskPeak = max(h.RSS, rss), max(h.BrokerRSS, broker.RSS), max(h.DiskPeak, disk)
	if whole {
		o.samples = append(o.samples, sample{time.Now(), int64(o.events)})
	}
	return nil
}

// note adds the events that a process has judged since the last sample of it.
func (o *observer) note(s *program.Process, judged float64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.events += judged - o.judged[s]
	o.judged[s] = judged
}

// follow sets which processes are running and must be sampled from now on.
func (o *observer) follow(services ...*program.Process) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.services = services
}

func (o *observer) running() []*program.Process {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.services
}

// reset drops the samples and silences so far; it begins a measurement.
func (o *observer) reset() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.samples, o.highest = nil, observed{}
	o.emitted.reset()
	o.tasks.reset()
}

// seen returns the samples since the last reset, and the highest memory and disk use.
func (o *observer) seen() ([]sample, observed, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	h := o.highest
	h.Silent = longestOf(o.emitted.until(time.Now()))
	return o.samples, h, o.err
}

// silentTasks returns, by topic and partition, the longest time in ms during which each task committed nothing.
func (o *observer) silentTasks() map[string]float64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.tasks.until(time.Now())
}

// quiet measures the app for the time that precedes and follows a step.
func (o *observer) quiet(ctx context.Context) (observed, error) {
	o.reset()
	if err := kafkatest.Pause(ctx, o.s.changesTraffic); err != nil {
		return observed{}, err
	}
	samples, was, err := o.seen()
	was.Meanwhile = rateOf(samples)
	return was, err
}

// step measures the app before, during and after do, which changes the app.
func (o *observer) step(ctx context.Context, name string, do func(context.Context) error) (observed, error) {
	before, err := o.quiet(ctx)
	if err != nil {
		return observed{}, err
	}
	waiting, err := o.waiting(ctx)
	if err != nil {
		return observed{}, err
	}
	o.reset()
	if err := o.lookAtProcesses(ctx); err != nil { // so that even a short step has two samples
		return observed{}, err
	}
	began := time.Now()
	if err := do(ctx); err != nil {
		return observed{}, err
	}
	seconds := time.Since(began).Seconds()
	if err := o.lookAtProcesses(ctx); err != nil {
		return observed{}, err
	}
	samples, _, err := o.seen()
	if err != nil {
		return observed{}, err
	}
	caughtUp, err := o.catchUp(ctx, waiting)
	if err != nil {
		return observed{}, err
	}
	_, step, err := o.seen()
	if err != nil {
		return observed{}, err
	}
	after, err := o.quiet(ctx)
	step.Step, step.Seconds, step.CaughtUp = name, seconds, caughtUp
	step.Before, step.Meanwhile, step.Slowest, step.After = before.Meanwhile, rateOf(samples), slowest(samples), after.Meanwhile
	step.SilentBefore, step.DiskBefore, step.DiskAfter = before.Silent, before.DiskPeak, after.DiskPeak
	note("    %s: %.1f s, %.0f events/s before, %.0f meanwhile, %.0f in the slowest second; silent for %.0f ms; caught up after %.1f s", name, seconds, step.Before, step.Meanwhile, step.Slowest, step.Silent, caughtUp)
	return step, err
}

// waiting returns how many events wait in the input and in the repartition topic, including those behind an open
// transaction. Progress records and control records are counted too.
func (o *observer) waiting(ctx context.Context) (int64, error) {
	sum, topic := o.watch.waiting(), o.repartition
	ends, err := o.admin.ListEndOffsets(ctx, topic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return 0, err
	}
	committed, err := o.admin.FetchOffsets(ctx, o.name+"-dedup")
	if err != nil {
		return 0, err
	}
	for p, end := range ends[topic] {
		at, _ := committed.Lookup(topic, p)
		sum += max(0, end.Offset-max(0, at.At))
	}
	return sum, nil
}

// catchUp waits until no more events wait than before the step, or no more than arrive in a second. It returns how
// many seconds this took.
func (o *observer) catchUp(ctx context.Context, before int64) (float64, error) {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, caughtUpMax)
	defer cancel()
	err := kafkatest.AwaitEvery(ctx, 100*time.Millisecond, "the app catches up", func(ctx context.Context) error {
		n, err := o.waiting(ctx)
		if err == nil && n > max(before, int64(o.s.rate)) {
			err = fmt.Errorf("%d events wait, %d did before", n, before)
		}
		return err
	})
	return time.Since(began).Seconds(), err
}

// rateOf returns the rate between the first and the last sample; 0 if there are fewer than two samples.
func rateOf(samples []sample) float64 {
	if len(samples) < 2 {
		return 0
	}
	return rate(samples[0], samples[len(samples)-1])
}

// slowest returns the rate in the slowest second. If the samples cover less than a second, it returns their rate.
func slowest(samples []sample) float64 {
	low, found := 0.0, false
	for i, from := range samples {
		for _, to := range samples[i+1:] {
			if to.at.Sub(from.at) < time.Second {
				continue
			}
			if r := rate(from, to); !found || r < low {
				low, found = r, true
			}
			break
		}
	}
	if !found {
		return rateOf(samples)
	}
	return low
}

// silences has, for each partition, the times between two advances of its offset.
type silences struct {
	at      map[string]int64
	since   map[string]time.Time
	longest map[string]time.Duration
}

func newSilences() *silences {
	return &silences{at: map[string]int64{}, since: map[string]time.Time{}, longest: map[string]time.Duration{}}
}

// see records the offset of a partition at a time.
func (s *silences) see(now time.Time, partition string, offset int64) {
	before, known := s.at[partition]
	switch {
	case !known:
		s.since[partition] = now
	case offset > before:
		s.longest[partition] = max(s.longest[partition], now.Sub(s.since[partition]))
		s.since[partition] = now
	}
	s.at[partition] = max(before, offset)
}

// reset forgets the silences that have ended. The beginning of a silence that has not ended is kept.
func (s *silences) reset() { clear(s.longest) }

// until returns the longest silence of each partition, in ms, including silences that are still going on.
func (s *silences) until(now time.Time) map[string]float64 {
	all := map[string]float64{}
	for partition, since := range s.since {
		all[partition] = float64(max(s.longest[partition], now.Sub(since))) / float64(time.Millisecond)
	}
	return all
}

// longestOf returns the highest of silences in ms.
func longestOf(silent map[string]float64) (longest float64) {
	for ms := range maps.Values(silent) {
		longest = max(longest, ms)
	}
	return longest
}
