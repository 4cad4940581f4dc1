//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"oncebus/benchmarks/internal/bench"
	"oncebus/benchmarks/internal/openloop"
	"oncebus/processor/kafkatest/program"
)

const (
	// primers is how many requests are sent before the schedule, over all connections. They show that the server
	// works, and reach every partition.
	primers = 5000
	// connectionsMin and connectionsMax bound the pool of the open loop. The maximum
	// is below ONCEBUS_INGRESS_MAX_REQUESTS' default, 4096.
	connectionsMin, connectionsMax = 512, 4000
	// The pool of connections must suffice for the requests of two commit intervals and of connectionsSpare.
	connectionsSpare = 200 * time.Millisecond
)

// point is one cell in the matrix of measurements: a rate and a commit interval.
type point struct {
	Rate   int           // requests a second
	Commit time.Duration `json:"CommitIntervalNanos"`
}

// connections returns the number of connections: enough for all requests in flight, so that no request waits for a
// connection while the ingress keeps up.
func (p point) connections() int {
	return min(max(connectionsMin, int(time.Duration(p.Rate)*(2*p.Commit+connectionsSpare)/time.Second)), connectionsMax)
}

// latencyRun is one point in one round.
type latencyRun struct {
	point
	PerRequest

	Round    int // from 1
	Requests int // measured
	Statuses map[int]int
	Latency  openloop.Quantiles `json:"LatencyMillis"`
	// Behind is how late the generator passed requests to a connection or to the queue. This is the generator's share
	// of Latency.
	Behind openloop.Quantiles `json:"BehindMillis"`
	// Waited is how many requests waited for a connection.
	Waited int
	// DrainMillis is the time from the last due time until the last response.
	DrainMillis float64
}

// measureLatency measures the program with the schedule of a point.
func (b *bed) measureLatency(ctx context.Context, at point, round int) (m latencyRun, err error) {
	a, err := b.newApp(ctx, fmt.Sprintf("verdict-%d-%v-%d", at.Rate, at.Commit, round), "verdict", at.Commit)
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, a.remove(ctx)) }()
	s, err := a.start(ctx, "run", true)
	if err != nil {
		return m, err
	}
	t := trial{
		app: a, service: s, point: at,
		schedule: openloop.Schedule{Rate: at.Rate, Warmup: b.warmup, Measured: b.measured, Duplicates: b.duplicates},
	}
	m, err = t.run(ctx)
	m.point, m.Round = at, round
	if stopErr := s.Stop(); err == nil {
		err = stopErr
	}
	return m, err
}

// trial is a program under measurement.
type trial struct {
	point

	app       *app
	service   *program.Process
	schedule  openloop.Schedule
	responses *responses
	client    *client
	now       func() time.Duration
	// eventsFrom is added to the numbers of all events.
	eventsFrom int
	// primed and answered, if set, are called before the schedule and when all its
	// requests have a response.
	primed, answered func()
}

// event returns the number of the event in request n.
func (t *trial) event(n int) int { return t.eventsFrom + t.schedule.First(n) }

// run sends the primers and then the schedule, and checks responses and
// output.
func (t *trial) run(ctx context.Context) (m latencyRun, err error) {
	ctx, cancel := bench.While(ctx, t.service)
	defer cancel(nil)
	events := t.schedule.Events()
	t.responses = newResponses(events + primers)
	t.now = openloop.ClockFrom(time.Now()).Now
	t.client, err = dial(ctx, t.service.Address(listensIngress), t.connections(), t.event, func(n, status int) {
		t.responses.take(n, status, t.schedule.Due(n), t.now())
	}, func(err error) { cancel(err) })
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, t.client.close()) }()
	if err := t.prime(ctx, events); err != nil {
		return m, err
	}
	if t.primed != nil {
		t.primed()
	}
	before, err := t.app.cost(ctx, t.service)
	if err != nil {
		return m, err
	}
	g, err := t.generate(ctx)
	if err != nil {
		return m, err
	}
	after, err := t.app.cost(ctx, t.service)
	if err != nil {
		return m, err
	}
	if t.answered != nil {
		t.answered()
	}
	out, err := t.app.drained(ctx, t.service)
	if err != nil {
		return m, err
	}
	m = t.sum(events)
	m.Behind, m.Waited, m.PerRequest = openloop.QuantilesOf(&g.Behind), t.client.waited, perRequest(before, after, events)
	if err := check(promiseVerdict, t.responses.list, t.event, out.from(t.eventsFrom)); err != nil {
		return m, fmt.Errorf("responses and output disagree: %w (responses by status: %v)", err, m.Statuses)
	}
	return m, nil
}

// prime sends the primers on all connections.
func (t *trial) prime(ctx context.Context, first int) error {
	t.responses.expect(primers)
	n, past := first, len(t.responses.list)
	t.client.run(func() (int, bool) {
		n++
		return n - 1, n <= past
	})
	return t.await(ctx, "primers", startMax)
}

func (t *trial) await(ctx context.Context, what string, most time.Duration) error {
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-t.responses.whole:
		return nil
	case <-timer.C:
		return fmt.Errorf("%d %s had no response after %v: lower the rate, or raise -drain", t.responses.left.Load(), what, most)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// generate runs the schedule and waits for the responses.
func (t *trial) generate(ctx context.Context) (*openloop.Generator, error) {
	t.responses.expect(t.schedule.Events())
	if err := t.app.profile(t.service); err != nil {
		return nil, err
	}
	clock := openloop.ClockFrom(time.Now())
	t.now = clock.Now
	g := &openloop.Generator{Schedule: t.schedule, Clock: clock, Send: t.client.submit}
	var wg sync.WaitGroup
	defer wg.Wait()
	failed := make(chan error, 1)
	wg.Go(func() {
		if err := g.Run(ctx); err != nil {
			failed <- err
		}
	})
	err := t.await(ctx, "requests", t.schedule.Due(t.schedule.Events())+t.app.drainMax)
	if err == nil {
		err = t.app.profiled(ctx, t.service)
	}
	select {
	case runErr := <-failed:
		err = errors.Join(err, runErr)
	default:
	}
	return g, err
}

// sum adds up the responses to the first events requests.
func (t *trial) sum(events int) latencyRun {
	m := latencyRun{Statuses: map[int]int{}}
	var latency openloop.Histogram
	var last time.Duration
	for n, a := range t.responses.list[:events] {
		last = max(last, a.got)
		if !t.schedule.Counts(n) {
			continue
		}
		m.Statuses[a.status]++
		latency.Record(a.got - a.due)
	}
	m.Requests, m.Latency = int(latency.Total), openloop.QuantilesOf(&latency)
	m.DrainMillis = openloop.Millis(last - t.schedule.Due(events-1))
	return m
}
