//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"oncebus/benchmarks/internal/bench"
	"oncebus/benchmarks/internal/openloop"
	"oncebus/processor/kafkatest/program"
)

const (
	// primers is how many events are sent before the schedule, as fast as possible. They show that the contender
	// works, reach every partition, and let a JVM compile its code.
	primers = 20_000
	// startMax is how long a contender may take until it has emitted the primers.
	startMax = 2 * time.Minute
)

// point is one cell in the matrix of measurements: a rate and a commit interval.
type point struct {
	Rate   int           // events a second
	Commit time.Duration `json:"CommitIntervalNanos"`
}

// measurement is one contender at one point in one round.
type measurement struct {
	Contender string
	point
	Round   int                // from 1
	Events  int                // measured
	Latency openloop.Quantiles `json:"LatencyMillis"`
	// Behind is how late the generator passed events to its client. This is the generator's share of Latency.
	Behind openloop.Quantiles `json:"BehindMillis"`
	// DrainMillis is the time from the last due time until the last arrival.
	DrainMillis     float64
	CPUMicros       float64 // of the contender's process per event
	BrokerCPUMicros float64 // of the broker's process per event
	RSSMaxBytes     int64   // of the contender's process

	latency *openloop.Histogram
}

// trial is a contender under measurement.
type trial struct {
	schedule  openloop.Schedule
	task      bench.Task
	broker    *bench.Broker
	contender *program.Process
	producer  *producer
	consumer  *consumer
	ledger    *ledger
	drainMax  time.Duration
}

// measure measures one contender, as a separate process, with the schedule.
func measure(ctx context.Context, broker *bench.Broker, s settings, c contender, at point, round int) (m measurement, err error) {
	app := fmt.Sprintf("latency-%s-%d-%v-%d", strings.NewReplacer(" ", "-", ",", "").Replace(c.name), at.Rate, at.Commit, round)
	t := trial{
		schedule: openloop.Schedule{Rate: at.Rate, Warmup: s.warmup, Measured: s.measured, Duplicates: s.duplicates},
		task: bench.Task{
			Role: c.role, App: app, Brokers: broker.Seeds(), Input: app + "-input", Partitions: s.partitions,
			Workers: s.workers, Commit: at.Commit, StateDir: filepath.Join(broker.Dir, app),
		},
		broker: broker, drainMax: s.drainMax,
	}
	t.ledger = newLedger(t.schedule, c.dedups, primers)
	if err := broker.CreateTopics(ctx, s.partitions, append(t.task.Topics(), t.task.Input)...); err != nil {
		return m, err
	}
	defer func() {
		err = errors.Join(err, broker.DeleteApp(context.WithoutCancel(ctx), app), os.RemoveAll(t.task.StateDir))
	}()
	if t.producer, err = newProducer(broker.Seeds(), t.task.Input); err != nil {
		return m, err
	}
	defer t.producer.client.Close()
	if t.consumer, err = newConsumer(broker.Seeds(), t.task.Output(), t.ledger); err != nil {
		return m, err
	}
	defer t.consumer.client.Close()
	cmd, err := c.command(ctx, t.task)
	if err != nil {
		return m, err
	}
	if t.contender, err = program.Start(c.name, cmd, ""); err != nil {
		return m, err
	}
	m, err = t.run(ctx)
	if stopErr := t.contender.Stop(); err == nil {
		err = stopErr
	}
	m.Contender, m.point, m.Round = c.name, at, round
	return m, err
}

// run sends the primers and then the schedule.
func (t *trial) run(ctx context.Context) (m measurement, err error) {
	ctx, cancel := bench.While(ctx, t.contender)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(nil)
	if err := t.prime(ctx); err != nil {
		return m, err
	}
	before, err := t.usage()
	if err != nil {
		return m, err
	}
	g := openloop.Generator{Schedule: t.schedule, Clock: openloop.ClockFrom(time.Now())}
	g.Send = func(n int) { t.producer.send(ctx, newEvent(n, t.schedule.First(n), time.Now())) }
	generated := make(chan struct{})
	wg.Go(func() {
		defer close(generated)
		if err := errors.Join(g.Run(ctx), t.producer.sent()); err != nil {
			cancel(err)
		}
	})
	if err := t.collect(ctx, g.Clock.Now); err != nil {
		return m, errors.Join(err, t.ledger.verdict())
	}
	<-generated
	after, err := t.usage()
	if err != nil {
		return m, err
	}
	micros := func(i int) float64 {
		return float64((after[i].CPU - before[i].CPU).Microseconds()) / float64(t.schedule.Events())
	}
	return measurement{
		Events: int(t.ledger.latency.Total), Latency: openloop.QuantilesOf(&t.ledger.latency), Behind: openloop.QuantilesOf(&g.Behind),
		DrainMillis: openloop.Millis(t.ledger.drain()), CPUMicros: micros(0), BrokerCPUMicros: micros(1), RSSMaxBytes: after[0].RSSMax,
		latency: &t.ledger.latency,
	}, t.ledger.verdict()
}

// prime sends the primers and waits until they arrive.
func (t *trial) prime(ctx context.Context) error {
	first, past := t.schedule.Events(), len(t.ledger.arrived)
	ctx, cancel := context.WithTimeoutCause(ctx, startMax, fmt.Errorf("the contender did not emit its first %d events within %v", past-first, startMax))
	defer cancel()
	for number := first; number < past; number++ {
		t.producer.send(ctx, newEvent(number, number, time.Now()))
	}
	if err := t.producer.sent(); err != nil {
		return err
	}
	beforeStart := func() time.Duration { return 0 } // primers have no latency
	return t.consumer.readUntil(ctx, beforeStart, t.ledger.primed)
}

// collect reads until every expected event has arrived, and then the rest of the output. The schedule ends with
// events without duplicates (openloop.Cooldown), so no duplicate can come after that.
func (t *trial) collect(ctx context.Context, now func() time.Duration) error {
	whole := t.schedule.Due(t.schedule.Events()) + t.drainMax
	ctx, cancel := context.WithTimeoutCause(ctx, whole, fmt.Errorf("not all events had arrived %v after the last was due: raise -drain, or lower the rate", t.drainMax))
	defer cancel()
	if err := t.consumer.readUntil(ctx, now, t.ledger.complete); err != nil {
		return err
	}
	return t.consumer.readToEnd(ctx, now, t.task.Output())
}

// usage returns the resource usage of contender and broker.
func (t *trial) usage() (u [2]program.Usage, err error) {
	if u[0], err = t.contender.Usage(); err != nil {
		return u, err
	}
	u[1], err = t.broker.Usage()
	return u, err
}
