//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strings"
	"time"

	"oncebus/benchmarks/internal/bench"
	"oncebus/benchmarks/internal/openloop"
	"oncebus/processor/kafkatest"
	"oncebus/processor/kafkatest/program"
)

// contender is a server that accepts requests and responds 202 once Kafka has their events.
type contender string

const (
	plainProduce contender = "plain produce"
	// ingressAlone is a process of `oncebus ingress`, which has no tasks and judges nothing.
	ingressAlone contender = "oncebus ingress"
	// ingressAndRun is `oncebus run` with an ingress, which also judges.
	ingressAndRun contender = "oncebus run"
)

// contenders in the order of a round.
var contenders = []contender{plainProduce, ingressAlone, ingressAndRun}

// throughputRun is one contender with a number of connections in one round.
type throughputRun struct {
	PerRequest

	Contender   contender
	Connections int
	Round       int // from 1
	Requests    int // measured
	Rate        float64
	Latency     openloop.Quantiles `json:"LatencyMillis"` // from when a request is sent
}

// rateMax is above the rate of every contender, in requests a second. The benchmark allocates memory for that many
// responses.
const rateMax = 100_000

// measureThroughput measures the highest rate of a contender.
func (b *bed) measureThroughput(ctx context.Context, c contender, connections, round int) (m throughputRun, err error) {
	a, err := b.newApp(ctx, fmt.Sprintf("async-%s-%d-%d", strings.ReplaceAll(string(c), " ", "-"), connections, round), "async", asyncCommit)
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, a.remove(ctx)) }()
	s, addr, err := a.startContender(ctx, c)
	if err != nil {
		return m, err
	}
	f := &flood{app: a, service: s}
	out := tally{}
	m, err = f.run(ctx, addr, connections)
	if err == nil && c == ingressAndRun {
		out, err = a.drained(ctx, s)
	}
	if stopErr := s.Stop(); err == nil {
		err = stopErr
	}
	if err != nil {
		return m, err
	}
	m.Contender, m.Connections, m.Round = c, connections, round
	p := promiseOnce
	switch c {
	case plainProduce:
		p = promiseEach
		out, err = readTally(ctx, b.broker.Seeds(), a.input())
	case ingressAlone:
		out, err = a.judgeLater(ctx)
	}
	if err != nil {
		return m, err
	}
	sent := f.responses.list[:f.sent]
	if err := check(p, sent, f.event, out); err != nil {
		return m, fmt.Errorf("responses and topic disagree: %w", err)
	}
	for n := range sent {
		if sent[n].status != http.StatusAccepted {
			return m, fmt.Errorf("request %d got %d, want 202 for all", n, sent[n].status)
		}
	}
	return m, nil
}

// asyncCommit is the commit interval in the closed loop, oncebus's default.
const asyncCommit = 100 * time.Millisecond

// startContender returns the process and its address for requests.
func (a *app) startContender(ctx context.Context, c contender) (s *program.Process, addr string, err error) {
	switch c {
	case plainProduce:
		if s, err = a.startPlain(ctx); err != nil {
			return nil, "", err
		}
		addr = s.Address(program.ListensHTTP)
		return s, addr, nil
	case ingressAlone:
		// The app must exist, with its topics and its manifest.
		if s, err = a.start(ctx, "run", false); err != nil {
			return nil, "", err
		}
		if err := s.Stop(); err != nil {
			return nil, "", err
		}
		s, err = a.start(ctx, "ingress", true)
	default:
		s, err = a.start(ctx, "run", true)
	}
	if err != nil {
		return nil, "", err
	}
	addr = s.Address(listensIngress)
	return s, addr, nil
}

// judgeLater starts a process that judges the events of an ingress.
func (a *app) judgeLater(ctx context.Context) (tally, error) {
	s, err := a.start(ctx, "run", false)
	if err != nil {
		return tally{}, err
	}
	out, err := a.drained(ctx, s)
	return out, errors.Join(err, s.Stop())
}

// flood is a closed loop: each connection sends its next request when the response to the previous request has
// arrived.
type flood struct {
	app       *app
	service   *program.Process
	responses *responses
	began     []time.Duration // by request
	sent      int
}

// run warms up, measures, and waits for the last responses.
func (f *flood) run(ctx context.Context, addr string, connections int) (m throughputRun, err error) {
	ctx, cancel := bench.While(ctx, f.service)
	defer cancel(nil)
	end := f.app.warmup + f.app.measured
	room := int(end.Seconds() * rateMax)
	f.responses, f.began = newResponses(room), make([]time.Duration, room)
	f.responses.expect(math.MaxInt) // unknown: the run ends when all connections are free
	now := openloop.ClockFrom(time.Now()).Now
	k, err := dial(ctx, addr, connections, f.event, func(n, status int) { f.responses.take(n, status, f.began[n], now()) }, func(err error) { cancel(err) })
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, k.close()) }()
	began := now()
	// The client calls this for one request at a time.
	k.run(func() (int, bool) {
		at := now()
		if at-began >= end || f.sent == room {
			return 0, false
		}
		f.began[f.sent] = at
		f.sent++
		return f.sent - 1, true
	})
	before, from, err := f.look(ctx, f.app.warmup, now)
	if err != nil {
		return m, err
	}
	if err := f.app.profile(f.service); err != nil {
		return m, err
	}
	after, to, err := f.look(ctx, f.app.measured, now)
	if err != nil {
		return m, err
	}
	if err := errors.Join(f.app.profiled(ctx, f.service), k.rest(ctx)); err != nil {
		return m, err
	}
	var latency openloop.Histogram
	for _, a := range f.responses.list[:f.sent] {
		if a.got >= from && a.got < to {
			latency.Record(a.got - a.due)
		}
	}
	m.Requests, m.Latency = int(latency.Total), openloop.QuantilesOf(&latency)
	m.Rate = float64(m.Requests) / (to - from).Seconds()
	m.PerRequest = perRequest(before, after, max(1, m.Requests))
	return m, nil
}

// look waits for the given time, and then returns all costs and the time.
func (f *flood) look(ctx context.Context, after time.Duration, now func() time.Duration) (c cost, at time.Duration, err error) {
	if err := kafkatest.Pause(ctx, after); err != nil {
		return c, 0, err
	}
	if c, err = f.app.cost(ctx, f.service); err != nil {
		return c, 0, err
	}
	return c, now(), nil
}

// event returns the number of a request's event: some are duplicates.
func (f *flood) event(n int) int {
	s := openloop.Schedule{Rate: len(f.responses.list), Measured: time.Second, Duplicates: f.app.duplicates} // only to choose the duplicates
	return s.First(n)
}
