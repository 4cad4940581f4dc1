//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"oncebus/processor/kafkatest"
	"oncebus/processor/kafkatest/proxy"
)

// clockFaults are rows c1 and c2: a wall clock steps by an hour or a day, forwards and backwards.
//
// In row c1 the clock of a process steps. No verdict depends on this clock, so the verdicts must stay equal to
// those of the oracle, and events must still be processed.
//
// In row c2 the clock of a broker steps, which decides about leases and about events from the future. Each
// fault of this row starts a separate broker, because the clock of a broker sets the timestamps of the records
// of all apps.
var clockFaults = []*fault{
	{row: "c1", name: "wall-clock-hour", slots: 1, apply: wallClockSteps(time.Hour)},
	{row: "c1", name: "wall-clock-day", slots: 1, apply: wallClockSteps(24 * time.Hour)},
	{row: "c1", name: "wall-clock-restart", slots: 1, apply: wallClockRestart},
	{row: "c2", name: "broker-clock-hour", apply: brokerClockSteps(time.Hour)},
	{row: "c2", name: "broker-clock-day", apply: brokerClockSteps(24 * time.Hour)},
}

const (
	// clockSlack is how far two readings of one clock may differ in these tests.
	clockSlack = 30 * time.Second
	// followMax is how long an app may take to follow a step of the broker's clock: a process trusts an
	// observation of the clock for 10 s; after that, a new record of the broker shows the step.
	followMax = 30 * time.Second
	// metricOffset is broker time minus the wall clock; metricSteps counts the steps of broker time.
	metricOffset, metricSteps = "oncebus_broker_clock_offset_seconds", "oncebus_broker_clock_steps_total"
)

// wallClockSteps steps the wall clock of a process forth, then back, and then to the right time.
func wallClockSteps(by time.Duration) func(context.Context, *strike) error {
	return func(ctx context.Context, k *strike) (err error) {
		s := k.slots[0]
		before, err := metricsOf(ctx, s, metricSteps)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, s.stepWall(0)) }()
		for _, step := range []time.Duration{by, 0, -by, 0} {
			if err := k.stepAndRecover(ctx, s, step); err != nil {
				return fmt.Errorf("process %s, wall clock stepped by %v: %w", s.name, step, err)
			}
		}
		after, err := metricsOf(ctx, s, metricSteps)
		if err == nil && after[0] != before[0] {
			err = fmt.Errorf("process %s took steps of its wall clock for %v of broker time", s.name, after[0]-before[0])
		}
		return err
	}
}

// stepAndRecover steps the wall clock of a process. It waits until the metrics show the step and events that are made
// later are processed.
func (k *strike) stepAndRecover(ctx context.Context, s *slot, step time.Duration) error {
	if err := s.stepWall(step); err != nil {
		return err
	}
	stepped := time.Now()
	if err := awaitOffset(ctx, s, -step, k.h.patience(restartMax)); err != nil {
		return err
	}
	return k.recovers(ctx, stepped, restartMax)
}

// wallClockRestart kills a process and starts it again with a wall clock that is wrong by a day.
func wallClockRestart(ctx context.Context, k *strike) (err error) {
	s := k.slots[0]
	step := 24 * time.Hour
	if k.rng.IntN(2) == 0 {
		step = -step
	}
	defer func() { err = errors.Join(err, s.stepWall(0)) }()
	if err := errors.Join(s.kill(), s.stepWall(step), s.start(ctx), s.awaitReady(ctx)); err != nil {
		return err
	}
	if err := awaitOffset(ctx, s, -step, k.h.patience(restartMax)); err != nil {
		return err
	}
	if err := k.recovers(ctx, time.Now(), takeOverMax); err != nil {
		return err
	}
	return k.stepAndRecover(ctx, s, 0)
}

// metricsOf reads metrics of a slot's process.
func metricsOf(ctx context.Context, s *slot, names ...string) ([]float64, error) {
	m, err := s.current().Metrics(ctx)
	if err != nil {
		return nil, err
	}
	var values []float64
	for _, name := range names {
		values = append(values, m.Sum(name))
	}
	return values, nil
}

// awaitOffset waits until a process reports that broker time differs from its wall clock by the wanted offset.
func awaitOffset(ctx context.Context, s *slot, want, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return kafkatest.Await(ctx, fmt.Sprintf("process %s says that the clocks are %v apart", s.name, want), func(ctx context.Context) error {
		if ended := s.current().Ended(); ended != nil {
			return kafkatest.Fatal(ended)
		}
		values, err := metricsOf(ctx, s, metricOffset)
		if err != nil {
			return err
		}
		if math.Abs(values[0]-want.Seconds()) > clockSlack.Seconds() {
			return fmt.Errorf("it says %v s", values[0])
		}
		return nil
	})
}

var clockCount atomic.Int64

// brokerClockSteps runs a ledger on its own broker, whose clock steps.
func brokerClockSteps(by time.Duration) func(context.Context, *strike) error {
	return func(ctx context.Context, k *strike) (err error) {
		h, end, err := k.h.ownBroker(ctx)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, end()) }()
		l, err := h.openLedger(ctx)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, l.leave()) }()
		if err := l.brokerClockSteps(ctx, by); err != nil {
			return err
		}
		for _, v := range h.violated() {
			err = errors.Join(err, fmt.Errorf("%s: %s", v.Promise, v.Message))
		}
		k.note("%d events accounted for", len(l.events))
		return err
	}
}

// ownBroker starts a broker whose clock can step, and returns a harness for it.
func (h *harness) ownBroker(ctx context.Context) (own *harness, end func() error, err error) {
	name := fmt.Sprintf("clock-%d", clockCount.Add(1))
	own = &harness{ctx: h.ctx, set: h.set, dir: filepath.Join(h.dir, name), binary: h.binary, rng: rand.New(rand.NewPCG(h.set.seed, 5)), began: h.began, journal: h.journal}
	own.set.nodes = 1
	if err := os.MkdirAll(filepath.Join(own.dir, "logs"), 0o700); err != nil {
		return nil, nil, err
	}
	px, err := proxy.Listen(ctx, 1)
	if err != nil {
		return nil, nil, err
	}
	own.cluster = &cluster{proxy: px}
	own.cluster.kafka, err = kafkatest.StartCluster(ctx, filepath.Join(own.dir, "kafka"), 1, kafkatest.WithSteppedClock(), kafkatest.WithShortLife(), kafkatest.WithHeapMiB(256),
		kafkatest.WithListener(kafkatest.Listener{Name: listenerName, Advertise: px.Addrs()}), kafkatest.WithProperty("log.retention.ms", "-1"))
	if err == nil {
		err = px.Forward(own.cluster.kafka.ListenAddrs(listenerName))
	}
	if err == nil {
		err = own.connect()
	}
	if err != nil {
		return nil, nil, errors.Join(err, own.cluster.close())
	}
	return own, func() error {
		own.client.Close()
		return own.cluster.close()
	}, nil
}

// brokerClockSteps steps the broker's clock forth and back. Leases must still work, only the broker's clock may
// decide whether an event is from the future, and no event may be emitted twice or lost.
func (l *ledger) brokerClockSteps(ctx context.Context, by time.Duration) error {
	const ops = 40
	do := func(f func(context.Context, int, int) error, a, b int) step {
		return func(ctx context.Context) error { return f(ctx, a, b) }
	}
	to := func(d time.Duration) step { return func(ctx context.Context) error { return l.stepBroker(ctx, d) } }
	again := inOrderStep(do(l.sendOps, 0, ops), l.goOn)
	// The event times are now long before broker time. That does not make events late: lateness depends only on the
	// event times.
	if err := inOrder(ctx, do(l.sendOps, 0, ops), do(l.awaitOps, ops, 0), to(by), again, do(l.awaitOps, ops, ops)); err != nil {
		return err
	}
	// Then the event times are after broker time by more than the skew, so the events are from the future.
	if err := inOrder(ctx, to(0), again, do(l.awaitOps, ops, 2*ops), to(-by), l.sendFuture, l.account); err != nil {
		return err
	}
	// Now the events are no longer from the future, and their earlier verdict must not have stored rows for
	// their keys.
	return inOrder(ctx, to(0), l.presentAgain, do(l.sendOps, 0, ops), l.goOn, do(l.awaitOps, ops, 3*ops))
}

// inOrderStep combines several steps into one step.
func inOrderStep(steps ...step) step {
	return func(ctx context.Context) error { return inOrder(ctx, steps...) }
}

// stepBroker steps the broker's clock, and then sends events until the process follows. A task that takes
// broker time from its records follows the step at once. Any other task still judges some events by the former
// time, so these events may be emitted or become dead letters.
func (l *ledger) stepBroker(ctx context.Context, to time.Duration) error {
	if err := l.h.cluster.kafka.StepClock(to); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, l.h.patience(followMax))
	defer cancel()
	return kafkatest.AwaitEvery(ctx, 500*time.Millisecond, fmt.Sprintf("the app follows the broker's clock to %v", to), func(ctx context.Context) error {
		from := len(l.events)
		if err := l.sendEach(ctx, 1); err != nil {
			return err
		}
		for _, e := range l.events[from:] {
			e.fate = maybeLate
		}
		values, err := metricsOf(ctx, l.s, metricOffset)
		if err != nil {
			return err
		}
		if math.Abs(values[0]-to.Seconds()) > clockSlack.Seconds() {
			return fmt.Errorf("it says %v s", values[0])
		}
		return nil
	})
}

// sendFuture sends events that are from the future by the broker's clock.
func (l *ledger) sendFuture(ctx context.Context) error {
	from := len(l.events)
	err := l.send(ctx)
	for _, e := range l.events[from:] {
		e.fate = deadLetter
	}
	return err
}

// presentAgain changes the expectation for the events that were from the future: they are ordinary events now, and
// when they are sent again, each must be emitted once.
func (l *ledger) presentAgain(context.Context) error {
	for _, e := range l.events {
		if e.fate == deadLetter {
			e.fate = emittedOnceLater
		}
	}
	return nil
}
