//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/benchmarks/internal/bench"
	"oncebus/processor/kafkatest"
)

const mib = 1 << 20

// usual is the number of partitions of parts that do not vary it.
const usual = 12

// inCase starts an app, waits until it is ready and measures it.
func (r *run) inCase(ctx context.Context, name, routes string, partitions int, measure func(a *app, ready time.Duration) error) (err error) {
	a, err := r.newApp(ctx, name, routes, partitions)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.close(ctx)) }()
	ready, err := a.process.AwaitReady(ctx)
	if err != nil {
		return err
	}
	return measure(a, ready)
}

func (r *run) changelog(ctx context.Context) error {
	for _, n := range r.namespaces {
		err := r.inCase(ctx, fmt.Sprint("changelog", n), plainRoutes(n), usual, func(a *app, _ time.Duration) error {
			next := func(i int) *kgo.Record { return event(n, i) }
			judge := func(events int) error {
				return errors.Join(a.produce(ctx, events, r.rate, next), a.await(ctx, a.sent))
			}
			if err := judge(5 * r.rate); err != nil { // to warm up
				return err
			}
			before, err := a.changelogBytes(ctx)
			if err != nil {
				return err
			}
			events := int(r.traffic.Seconds() * float64(r.rate))
			if err := judge(events); err != nil {
				return err
			}
			after, err := a.changelogBytes(ctx)
			r.add("changelog", fmt.Sprint(n, " namespaces"), figure{"bytes of the changelog an event", (after - before) / float64(events)})
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// load produces a backlog and returns the events a second and the µs of CPU for an event.
func (r *run) load(ctx context.Context, a *app, kinds int) (rate, micros float64, err error) {
	before, err := a.process.Usage()
	if err != nil {
		return 0, 0, err
	}
	began := time.Now()
	if err := errors.Join(a.produce(ctx, r.events, 0, func(n int) *kgo.Record { return event(kinds, n) }), a.await(ctx, a.sent)); err != nil {
		return 0, 0, err
	}
	took := time.Since(began).Seconds()
	after, err := a.process.Usage()
	return float64(r.events) / took, float64((after.CPU - before.CPU).Microseconds()) / float64(r.events), err
}

func (r *run) ofRoutes(ctx context.Context) error {
	for _, n := range r.routes {
		err := r.inCase(ctx, fmt.Sprint("routes", n), plainRoutes(n), usual, func(a *app, _ time.Duration) error {
			rate, micros, err := r.load(ctx, a, n)
			r.add("routes", fmt.Sprint(n, " routes"), figure{"events a second", rate}, figure{"µs of CPU an event", micros})
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *run) ofPartitions(ctx context.Context) error {
	for _, n := range r.partitions {
		err := r.inCase(ctx, fmt.Sprint("partitions", n), plainRoutes(1), n, func(a *app, ready time.Duration) error {
			rate, micros, err := r.load(ctx, a, 1)
			if err != nil {
				return err
			}
			if err := errors.Join(a.process.Kill(), a.start(ctx)); err != nil {
				return err
			}
			again, err := a.process.AwaitReady(ctx)
			r.add("partitions", fmt.Sprint(n, " partitions"), figure{"events a second", rate}, figure{"µs of CPU an event", micros},
				figure{"first start to ready, s", ready.Seconds()}, figure{"start after kill -9 to ready, s", again.Seconds()})
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

const backlogRoutes = `  - {name: loud, topics: [APP-in], key: [{field: id}], window: 24h, output: APP-out, dead_letter: APP-dead}
  - {name: live, topics: [APP-live], key: [{field: id}], window: 24h, output: APP-live-out, dead_letter: APP-dead}
`

// backlog measures a live route alone, and while the backlog of another one is judged. Each
// has a topic of its own: in one topic, the live events would be behind the backlog.
func (r *run) backlog(ctx context.Context) error {
	return r.inCase(ctx, "backlog", backlogRoutes, usual, func(a *app, _ time.Duration) error {
		quiet, err := r.latency(ctx, a, func(ctx context.Context) error { return kafkatest.Pause(ctx, r.traffic) })
		if err != nil {
			return err
		}
		if err := a.process.Stop(); err != nil {
			return err
		}
		loud := func(n int) *kgo.Record { return event(1, n) } // of the loud route
		if err := errors.Join(a.produce(ctx, r.events, 0, loud), a.start(ctx)); err != nil {
			return err
		}
		if _, err := a.process.AwaitReady(ctx); err != nil {
			return err
		}
		busy, err := r.latency(ctx, a, func(ctx context.Context) error { return a.await(ctx, r.events) })
		if err != nil {
			return err
		}
		for _, c := range []struct {
			name string
			ms   []float64
		}{{"quiet", quiet}, {"during the backlog", busy}} {
			p50, p99 := bench.Percentile(c.ms, 50), bench.Percentile(c.ms, 99)
			r.add("backlog", c.name, figure{"events", float64(len(c.ms))}, figure{"p50", p50}, figure{"p99", p99},
				figure{"p50 relative to quiet", p50 / bench.Percentile(quiet, 50)}, figure{"p99 relative to quiet", p99 / bench.Percentile(quiet, 99)})
		}
		return nil
	})
}

// latency returns the sorted latencies of events of the live route, in ms, until until returns.
func (r *run) latency(ctx context.Context, a *app, until func(ctx context.Context) error) ([]float64, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type read struct {
		ms  []float64
		err error
	}
	reader, producer := make(chan read, 1), make(chan error, 1)
	go func() {
		ms, err := a.latencies(ctx)
		reader <- read{ms, err}
	}()
	go func() {
		next := func(n int) *kgo.Record {
			return &kgo.Record{Topic: a.name + "-live", Value: fmt.Appendf(nil, `{"sent":%d,"id":"live-%d"}`, time.Now().UnixMicro(), n)}
		}
		for ctx.Err() == nil {
			if err := a.produce(ctx, 10, 100, next); err != nil && ctx.Err() == nil {
				producer <- err
				return
			}
		}
		producer <- nil
	}()
	err := until(ctx)
	cancel()
	got := <-reader
	slices.Sort(got.ms)
	return got.ms, errors.Join(err, <-producer, got.err)
}

func (r *run) memory(ctx context.Context) error {
	const namespaces, partitions, samples = 250, 96, 4
	return r.inCase(ctx, "memory", plainRoutes(namespaces), partitions, func(a *app, _ time.Duration) error {
		for n := range samples {
			if err := a.produce(ctx, int(r.steady.Seconds()*float64(r.rate))/samples, r.rate, func(n int) *kgo.Record { return event(namespaces, n) }); err != nil {
				return err
			}
			used, err := a.process.Usage()
			if err != nil {
				return err
			}
			r.add("memory", (r.steady * time.Duration(n+1) / samples).Round(time.Second).String(), figure{"RSS, MiB", float64(used.RSS) / mib}, figure{"highest, MiB", float64(used.RSSMax) / mib})
		}
		return nil
	})
}

const waitingRoutes = `  - {name: ops, topics: [APP-in], mode: claim, key: [{field: id}], request: {field: request}, window: 1h, output: APP-out, dead_letter: APP-dead,
     outcomes: APP-outcomes, replies: APP-replies, lease: 30m, while_in_progress: wait, max_waiting: 256}
`

func (r *run) waiters(ctx context.Context) error {
	const events = 100_000
	for _, each := range []int{2, 16, 257} {
		err := r.inCase(ctx, fmt.Sprint("waiters", each), waitingRoutes, 1, func(a *app, _ time.Duration) error {
			before, err := a.process.Usage()
			if err != nil {
				return err
			}
			next := func(n int) *kgo.Record {
				return &kgo.Record{Value: fmt.Appendf(nil, `{"id":"key-%d","request":"request-%d"}`, n%(events/each), n)}
			}
			n := events / each * each
			if err := errors.Join(a.produce(ctx, n, 0, next), a.await(ctx, n)); err != nil {
				return err
			}
			after, err := a.process.Usage()
			r.add("waiters", fmt.Sprint(each, " events of a key"), figure{"µs of CPU an event", float64((after.CPU - before.CPU).Microseconds()) / float64(n)}, figure{"highest RSS, MiB", float64(after.RSSMax) / mib})
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}
