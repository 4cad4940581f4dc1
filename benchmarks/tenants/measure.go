//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/benchmarks/internal/bench"
	"oncebus/benchmarks/internal/openloop"
	"oncebus/processor/kafkatest/program"
)

// part has the latency of one tenant in one part of a round.
type part struct {
	Events      int                // number of measured events
	Latency     openloop.Quantiles `json:"LatencyMillis"`
	Behind      openloop.Quantiles `json:"BehindMillis"` // the share of the latency that the generator caused
	DeadLetters int                // dead letters of the noisy tenant
}

// trial is the app under measurement, with the clients of both tenants.
type trial struct {
	settings
	task         bench.Task
	app          *program.Process
	quiet, noisy *kgo.Client
	output, dead *kgo.Client
	first        int // number of the next event
}

// start starts an app with one route and two tenants.
func start(ctx context.Context, broker *bench.Broker, s settings) (t *trial, err error) {
	const app = "tenants"
	t = &trial{settings: s, task: bench.Task{
		Role: bench.Role{Oncebus: true, Routed: true}, App: app, Brokers: broker.Seeds(), Input: app + "-input", Partitions: partitions, Workers: 1, Commit: s.commit,
		StateDir: filepath.Join(broker.Dir, app),
		Route:    fmt.Sprintf("    tenant: {header: x-tenant}\n    quota: {tenants: {noisy: {events_per_second: %d}}}\n", s.quota),
	}}
	if err := broker.CreateTopics(ctx, partitions, append(t.task.Topics(), t.task.Input)...); err != nil {
		return nil, err
	}
	produce := []kgo.Opt{kgo.SeedBrokers(broker.Seeds()...), kgo.DefaultProduceTopic(t.task.Input), kgo.ProducerLinger(0), kgo.MaxBufferedRecords(1 << 20)}
	consume := func(topic string) []kgo.Opt {
		return []kgo.Opt{kgo.SeedBrokers(broker.Seeds()...), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.FetchMaxWait(10 * time.Millisecond)}
	}
	for client, opts := range map[**kgo.Client][]kgo.Opt{&t.quiet: produce, &t.noisy: produce, &t.output: consume(t.task.Output()), &t.dead: consume(t.task.Side())} {
		if *client, err = kgo.NewClient(opts...); err != nil {
			return nil, err
		}
	}
	cmd, err := t.task.Command(ctx)
	if err != nil {
		return nil, err
	}
	if t.app, err = program.Start(app, cmd, ""); err != nil {
		return nil, err
	}
	return t, nil
}

func (t *trial) stop() error {
	for _, client := range []*kgo.Client{t.quiet, t.noisy, t.output, t.dead} {
		client.Close()
	}
	return t.app.Stop()
}

// eventOf makes an event of a tenant. Each event has a new key.
func eventOf(tenant string, number int) *kgo.Record {
	id := tenant + "-" + strconv.Itoa(number)
	return &kgo.Record{
		Key: []byte(id), Headers: []kgo.RecordHeader{{Key: "x-tenant", Value: []byte(tenant)}},
		Value: fmt.Appendf(nil, `{"traceId":%q,"symbol":"BTCUSDT","exchange":"BINANCE","action":"buy","price":"40000.25","quantity":"0.50","strategy":"breakout-v3","timestamp":"2026-11-20T10:00:00Z"}`, id),
	}
}

// numberOf returns the number of an event of the given tenant; false for an event of another tenant.
func numberOf(tenant string, r *kgo.Record) (int, bool) {
	text, ok := strings.CutPrefix(string(r.Key), tenant+"-")
	number, err := strconv.Atoi(text)
	return number, ok && err == nil
}

// arrivedMax is how long after its due time the last event may arrive. Otherwise the run fails.
const arrivedMax = time.Minute

// measure measures the quiet tenant once, with or without traffic of the noisy tenant.
func (t *trial) measure(ctx context.Context, noisy bool) (p part, err error) {
	ctx, cancel := bench.While(ctx, t.app)
	defer cancel(nil)
	g := openloop.Generator{Schedule: openloop.Schedule{Rate: t.rate, Warmup: warmup, Measured: t.part}, Clock: openloop.ClockFrom(time.Now())}
	first := t.first
	t.first += g.Schedule.Events()
	sent := kgo.AbortingFirstErrPromise(t.quiet)
	g.Send = func(n int) { t.quiet.Produce(ctx, eventOf("quiet", first+n), sent.Promise()) }
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		if err := errors.Join(g.Run(ctx), sent.Err()); err != nil {
			cancel(err)
		}
	})
	flood := openloop.Generator{Schedule: openloop.Schedule{Rate: t.settings.noisy, Warmup: warmup, Measured: t.part}, Clock: g.Clock}
	if noisy {
		flooded := kgo.AbortingFirstErrPromise(t.noisy)
		begin := t.first
		t.first += flood.Schedule.Events()
		flood.Send = func(n int) { t.noisy.Produce(ctx, eventOf("noisy", begin+n), flooded.Promise()) }
		wg.Go(func() {
			if err := errors.Join(flood.Run(ctx), flooded.Err()); err != nil {
				cancel(err)
			}
		})
	}
	var latency openloop.Histogram
	arrived := make([]bool, g.Schedule.Events())
	limit, stop := context.WithTimeout(ctx, g.Schedule.Due(g.Schedule.Events())+arrivedMax)
	defer stop()
	noisyOut, err := t.readOutput(limit, g.Schedule, first, arrived, &latency, g.Clock.Now)
	if err != nil {
		return p, err
	}
	wg.Wait()
	if noisy {
		if p.DeadLetters, err = t.readDead(limit, flood.Schedule.Events()-noisyOut); err != nil {
			return p, err
		}
	}
	p.Events, p.Latency, p.Behind = int(latency.Total), openloop.QuantilesOf(&latency), openloop.QuantilesOf(&g.Behind)
	return p, nil
}

// readOutput reads until all events of the quiet tenant have arrived. It returns how many events of the noisy tenant
// came before that.
func (t *trial) readOutput(ctx context.Context, s openloop.Schedule, first int, arrived []bool, latency *openloop.Histogram, now func() time.Duration) (noisy int, err error) {
	for missing := len(arrived); missing > 0; {
		fetches := t.output.PollFetches(ctx)
		at := now()
		if ctx.Err() != nil {
			return 0, fmt.Errorf("%d events have not arrived: %w", missing, context.Cause(ctx))
		}
		if err := fetches.Err(); err != nil {
			return 0, err
		}
		fetches.EachRecord(func(r *kgo.Record) {
			number, ok := numberOf("quiet", r)
			number -= first
			switch {
			case !ok:
				noisy++
			case number < 0 || number >= len(arrived) || arrived[number]:
				err = fmt.Errorf("event %s was emitted twice", r.Key)
			default:
				arrived[number] = true
				missing--
				if s.Counts(number) {
					latency.Record(at - s.Due(number))
				}
			}
		})
		if err != nil {
			return 0, err
		}
	}
	return noisy, nil
}

// readDead reads dead letters until their number is nearly the expected number. It does not wait for all, because the
// last events of the noisy tenant may still be emitted instead.
func (t *trial) readDead(ctx context.Context, about int) (n int, err error) {
	for n < about*9/10 {
		fetches := t.dead.PollFetches(ctx)
		if ctx.Err() != nil {
			return n, fmt.Errorf("%d dead letters of about %d: %w", n, about, context.Cause(ctx))
		}
		if err := fetches.Err(); err != nil {
			return n, err
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if n++; strings.HasPrefix(string(r.Key), "quiet") {
				err = fmt.Errorf("event %s is a dead letter", r.Key)
			}
		})
		if err != nil {
			return n, err
		}
	}
	return n, nil
}
