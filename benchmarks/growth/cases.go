//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/benchmarks/internal/bench"
	"oncebus/processor/kafkatest"
)

const mib = 1 << 20

// usual is the number of partitions in parts that measure something else.
const usual = 12

// inCase starts an app, waits until it is ready and measures it.
func (r *run) inCase(ctx context.Context, name, routes string, partitions int, measure func(a *app, ready time.Duration) error) (err error) {
	r.progress.Next("%s", name)
	a, err := r.newApp(ctx, name, routes, partitions)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.close(ctx)) }()
	ready, err := a.process.AwaitReady(ctx)
	if err == nil {
		err = measure(a, ready)
	}
	if err == nil {
		r.progress.Done("%s", name)
	}
	return err
}

// each measures one case of a part for each size.
func (r *run) each(ctx context.Context, part, unit string, sizes []int, routes func(n int) string, measure func(a *app, n int) ([]figure, error)) error {
	for _, n := range sizes {
		err := r.inCase(ctx, fmt.Sprint(part, n), routes(n), usual, func(a *app, _ time.Duration) error {
			figures, err := measure(a, n)
			if err == nil {
				r.add(part, fmt.Sprint(n, " ", unit), float64(n), figures...)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *run) changelog(ctx context.Context) error {
	return r.each(ctx, "changelog", "namespaces", r.namespaces, plainRoutes, func(a *app, n int) ([]figure, error) {
		next := func(i int) *kgo.Record { return event(n, i) }
		judge := func(events int) error {
			return errors.Join(a.produce(ctx, events, r.rate, next), a.await(ctx, a.sent))
		}
		if err := judge(int(warmUp.Seconds()) * r.rate); err != nil {
			return nil, err
		}
		before, err := a.changelogBytes(ctx)
		if err != nil {
			return nil, err
		}
		events := int(r.traffic.Seconds() * float64(r.rate))
		if err := judge(events); err != nil {
			return nil, err
		}
		after, err := a.changelogBytes(ctx)
		return []figure{{changelogBytes, (after - before) / float64(events)}}, err
	})
}

// load produces a backlog. It returns the events a second, and the CPU time in µs per event, of the process and of
// the broker.
func (r *run) load(ctx context.Context, a *app, events int, next func(n int) *kgo.Record) ([]figure, error) {
	cpu, brokerCPU, err := a.costs()
	if err != nil {
		return nil, err
	}
	began := time.Now()
	if err := errors.Join(a.produce(ctx, events, 0, next), a.await(ctx, a.sent)); err != nil {
		return nil, err
	}
	took := time.Since(began).Seconds()
	cpuAfter, brokerAfter, err := a.costs()
	each := func(d time.Duration) float64 { return float64(d.Microseconds()) / float64(events) }
	return []figure{{eventRate, float64(events) / took}, {cpuMicros, each(cpuAfter - cpu)}, {brokerMicros, each(brokerAfter - brokerCPU)}}, err
}

func (r *run) ofRoutes(ctx context.Context) error {
	return r.each(ctx, "routes", "routes", r.routes, plainRoutes, func(a *app, n int) ([]figure, error) {
		return r.load(ctx, a, r.events, func(i int) *kgo.Record { return event(n, i) })
	})
}

func (r *run) ofPartitions(ctx context.Context) error {
	for _, n := range r.partitions {
		err := r.inCase(ctx, fmt.Sprint("partitions", n), plainRoutes(1), n, func(a *app, ready time.Duration) error {
			figures, err := r.load(ctx, a, r.events, func(i int) *kgo.Record { return event(1, i) })
			if err != nil {
				return err
			}
			if err := errors.Join(a.process.Kill(), a.start(ctx)); err != nil {
				return err
			}
			again, err := a.process.AwaitReady(ctx)
			r.add("partitions", fmt.Sprint(n, " partitions"), float64(n), append(figures, figure{firstStart, ready.Seconds()}, figure{againStart, again.Seconds()})...)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// ofMembers varies how many members the JSON object of an event has.
func (r *run) ofMembers(ctx context.Context) error {
	one := func(int) string { return plainRoutes(1) }
	return r.each(ctx, "members", "members", r.members, one, func(a *app, n int) ([]figure, error) {
		var more strings.Builder
		for i := range n - 2 { // the other two members are id and kind
			fmt.Fprintf(&more, `,"member-%05d":%d`, i, i)
		}
		next := func(i int) *kgo.Record {
			return &kgo.Record{Value: fmt.Appendf(nil, `{"id":"event-%d","kind":"kind-0"%s}`, i, more.String())}
		}
		bytes := float64(len(next(0).Value))
		figures, err := r.load(ctx, a, r.events/5, next)
		if err != nil {
			return nil, err
		}
		return append(figures, figure{"bytes of an event", bytes}, figure{byteNanos, 1000 * figures[1].Value / bytes}), nil
	})
}

const backlogRoutes = `  - {name: loud, topics: [APP-in], key: [{field: id}], window: 24h, output: APP-out, dead_letter: APP-dead}
  - {name: live, topics: [APP-live], key: [{field: id}], window: 24h, output: APP-live-out, dead_letter: APP-dead}
`

// warmUp is how long traffic flows before a measurement that depends on whether the broker's code is compiled.
const warmUp = 5 * time.Second

// catchUp measures a live route twice: alone, and while the backlog of another route is judged. Each route has
// its own topic, because in a common topic the live events would have to wait behind the backlog.
func (r *run) catchUp(ctx context.Context) error {
	return r.inCase(ctx, "backlog", backlogRoutes, usual, func(a *app, _ time.Duration) error {
		if _, err := r.latency(ctx, a, func(ctx context.Context) error { return kafkatest.Pause(ctx, warmUp) }); err != nil {
			return err
		}
		quiet, err := r.latency(ctx, a, func(ctx context.Context) error { return kafkatest.Pause(ctx, r.traffic) })
		if err != nil {
			return err
		}
		if err := a.process.Stop(); err != nil {
			return err
		}
		loud := func(n int) *kgo.Record { return event(1, n) } // an event of the route with the backlog
		if err := errors.Join(a.produce(ctx, r.backlog, 0, loud), a.start(ctx)); err != nil {
			return err
		}
		if _, err := a.process.AwaitReady(ctx); err != nil {
			return err
		}
		busy, err := r.latency(ctx, a, func(ctx context.Context) error { return a.await(ctx, r.backlog) })
		if err != nil {
			return err
		}
		for i, ms := range [][]float64{quiet, busy} {
			name := []string{"quiet", "during the backlog"}[i]
			if len(ms) == 0 {
				return fmt.Errorf("%s: no live event arrived", name)
			}
			middle, late := bench.Percentile(ms, 50), bench.Percentile(ms, 99)
			r.add("backlog", name, float64(i), figure{"live events", float64(len(ms))}, figure{p50, middle}, figure{p99, late},
				figure{"p50 relative to quiet", middle / bench.Percentile(quiet, 50)}, figure{"p99 relative to quiet", late / bench.Percentile(quiet, 99)})
		}
		return nil
	})
}

// latency returns the sorted latencies, in ms, of events of the live route. It measures until the function until
// returns.
func (r *run) latency(ctx context.Context, a *app, until func(ctx context.Context) error) ([]float64, error) {
	producing := ctx // if an event were cancelled, the later events in its batch would fail, too
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
			if err := a.produce(producing, 10, 100, next); err != nil {
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

// sample is the memory of the process at one moment.
type sample struct {
	Seconds        float64 // since the traffic began
	RSS, Anonymous float64 // MiB
}

const sampleEvery = time.Second

// steadyMemory samples the memory during steady traffic, and adds the highest memory of each third of the time.
func (r *run) steadyMemory(ctx context.Context) error {
	const namespaces, partitions = 250, 96
	return r.inCase(ctx, "memory", plainRoutes(namespaces), partitions, func(a *app, _ time.Duration) error {
		began, each := time.Now(), int(sampleEvery.Seconds()*float64(r.rate))
		for time.Since(began) < r.steady {
			if err := a.produce(ctx, each, r.rate, func(n int) *kgo.Record { return event(namespaces, n) }); err != nil {
				return err
			}
			used, err := a.process.Usage()
			if err != nil {
				return err
			}
			r.memory = append(r.memory, sample{time.Since(began).Seconds(), float64(used.RSS) / mib, float64(used.RSSAnon) / mib})
		}
		for i, third := range thirds(r.memory) {
			rss := slices.MaxFunc(third, func(a, b sample) int { return int(a.RSS - b.RSS) })
			anonymous := slices.MaxFunc(third, func(a, b sample) int { return int(a.Anonymous - b.Anonymous) })
			r.add("memory", fmt.Sprintf("%.0f to %.0f s", third[0].Seconds, third[len(third)-1].Seconds), float64(i), figure{rssHighest, rss.RSS}, figure{anonHighest, anonymous.Anonymous})
		}
		return a.await(ctx, a.sent)
	})
}

// thirds divides the samples, of which there must be at least three, into three parts.
func thirds(all []sample) [3][]sample {
	a, b := len(all)/3, 2*len(all)/3
	return [3][]sample{all[:a], all[a:b], all[b:]}
}

const waitingRoutes = `  - {name: ops, topics: [APP-in], mode: claim, key: [{field: id}], request: {field: request}, window: 1h, output: APP-out, dead_letter: APP-dead,
     outcomes: APP-outcomes, replies: APP-replies, lease: 30m, while_in_progress: wait, max_waiting: 256}
`

// waiting is how many events of one key wait in each case of the part waiters; there are waitingEvents events in all.
var waiting = []int{2, 16, 257}

const waitingEvents = 100_000

func (r *run) waiters(ctx context.Context) error {
	for _, each := range waiting {
		err := r.inCase(ctx, fmt.Sprint("waiters", each), waitingRoutes, 1, func(a *app, _ time.Duration) error {
			n := waitingEvents / each * each
			figures, err := r.load(ctx, a, n, func(i int) *kgo.Record {
				return &kgo.Record{Value: fmt.Appendf(nil, `{"id":"key-%d","request":"request-%d"}`, i%(waitingEvents/each), i)}
			})
			if err != nil {
				return err
			}
			used, err := a.process.Usage()
			r.add("waiters", fmt.Sprint(each, " events of a key"), float64(each), append(figures, figure{rssHighest, float64(used.RSSMax) / mib})...)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

const collisionRoutes = `  - {name: orders, topics: [APP-in], key: [{field: id}], fingerprint: [amount], window: 24h, output: APP-out, dead_letter: APP-dead}
`

// collisions sends each key twice, with different details.
func (r *run) collisions(ctx context.Context) error {
	return r.inCase(ctx, "collisions", collisionRoutes, usual, func(a *app, _ time.Duration) error {
		keys := r.events / 10
		next := func(n int) *kgo.Record {
			return &kgo.Record{Value: fmt.Appendf(nil, `{"id":"order-%d","amount":%d}`, n%keys, n/keys)}
		}
		if _, err := r.load(ctx, a, keys, next); err != nil {
			return err
		}
		before, err := os.Stat(a.path("log"))
		if err != nil {
			return err
		}
		figures, err := r.load(ctx, a, keys, next)
		if err != nil {
			return err
		}
		after, err := os.Stat(a.path("log"))
		if err != nil {
			return err
		}
		r.add("collisions", fmt.Sprint(keys, " collisions"), float64(keys), append(figures, figure{"bytes of the log", float64(after.Size() - before.Size())})...)
		return nil
	})
}

// pages measures the HTTP pages of a process that has many series and tasks.
func (r *run) pages(ctx context.Context) error {
	const routes, partitions, times = 254, 384, 10
	return r.inCase(ctx, "pages", plainRoutes(routes), partitions, func(a *app, _ time.Duration) error {
		if _, err := r.load(ctx, a, r.events/10, func(i int) *kgo.Record { return event(routes, i) }); err != nil {
			return err
		}
		for i, page := range []string{"/metrics", "/state"} {
			before, _, err := a.costs()
			if err != nil {
				return err
			}
			bytes, began := 0, time.Now()
			for range times {
				body, err := a.process.Page(ctx, page)
				if err != nil {
					return err
				}
				bytes = len(body)
			}
			took := time.Since(began)
			after, _, err := a.costs()
			if err != nil {
				return err
			}
			r.add("pages", page, float64(i), figure{"KB of a response", float64(bytes) / 1000}, figure{"ms of a response", took.Seconds() * 1000 / times}, figure{"ms of CPU", (after - before).Seconds() * 1000 / times})
		}
		return nil
	})
}
