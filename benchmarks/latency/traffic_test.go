//go:build unix

package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/benchmarks/internal/bench"
	"oncebus/benchmarks/internal/openloop"
	"oncebus/processor/kafkatest/embedded"
)

const testMax = time.Minute

// testTrial returns a trial on an embedded broker, with a contender in this process.
// The contender emits the events for which passes returns true, in transactions. It
// aborts one transaction with all of them before it commits the next.
func testTrial(t *testing.T, s openloop.Schedule, dedups bool, passes func(n int) bool) *trial {
	t.Helper()
	cluster := embedded.Start(t)
	cluster.CreateTopic("test-input", 4)
	cluster.CreateTopic("test-output", 4)
	l := newLedger(s, dedups, 100)
	tr := &trial{schedule: s, ledger: l, drainMax: testMax, task: bench.Task{App: "test", Input: "test-input"}}
	var err error
	if tr.producer, err = newProducer(cluster.ListenAddrs(), tr.task.Input); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tr.producer.client.Close)
	if tr.consumer, err = newConsumer(cluster.ListenAddrs(), tr.task.Output(), l); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tr.consumer.client.Close)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- pass(ctx, cluster.ListenAddrs(), tr.task, passes) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return tr
}

func pass(ctx context.Context, seeds []string, task bench.Task, passes func(n int) bool) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(seeds...), kgo.ConsumeTopics(task.Input), kgo.DefaultProduceTopic(task.Output()),
		kgo.TransactionalID("contender"), kgo.FetchMaxWait(100*time.Millisecond))
	if err != nil {
		return err
	}
	defer client.Close()
	for {
		fetches := client.PollFetches(ctx)
		if ctx.Err() != nil {
			return nil
		}
		for _, commit := range []kgo.TransactionEndTry{kgo.TryAbort, kgo.TryCommit} {
			if err := client.BeginTransaction(); err != nil {
				return err
			}
			fetches.EachRecord(func(r *kgo.Record) {
				if passes(eventNumber(r.Value)) {
					client.Produce(ctx, &kgo.Record{Key: r.Key, Value: r.Value}, nil)
				}
			})
			if err := errors.Join(client.Flush(ctx), client.EndTransaction(ctx, commit)); err != nil && ctx.Err() == nil {
				return err
			}
		}
	}
}

// hasty returns a clock on which every event is due at once.
func hasty() openloop.Clock {
	var at time.Duration
	return openloop.Clock{Now: func() time.Duration { return at }, Sleep: func(d time.Duration) { at += d }}
}

// play sends the whole schedule and collects the output.
func play(t *testing.T, tr *trial) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testMax)
	defer cancel()
	if err := tr.prime(ctx); err != nil {
		t.Fatal(err)
	}
	g := openloop.Generator{Schedule: tr.schedule, Clock: hasty(), Send: func(n int) {
		tr.producer.send(ctx, newEvent(n, tr.schedule.First(n), time.Now()))
	}}
	if err := errors.Join(g.Run(ctx), tr.producer.sent()); err != nil {
		t.Fatal(err)
	}
	if err := tr.collect(ctx, hasty().Now); err != nil {
		t.Fatal(errors.Join(err, tr.ledger.verdict()))
	}
	return tr.ledger.verdict()
}

var short = openloop.Schedule{Rate: 2000, Measured: time.Second, Duplicates: 10}

func TestTrialOfADeduplicator(t *testing.T) {
	tr := testTrial(t, short, true, func(n int) bool { return short.First(n) == n })
	if err := play(t, tr); err != nil {
		t.Error(err)
	}
}

func TestTrialOfAPassthrough(t *testing.T) {
	tr := testTrial(t, short, false, func(int) bool { return true })
	if err := play(t, tr); err != nil {
		t.Error(err)
	}
}

// TestTrialFindsAnEmittedDuplicate: the last duplicate, after which only the cooldown
// comes.
func TestTrialFindsAnEmittedDuplicate(t *testing.T) {
	last := 0
	for n := range short.Events() {
		if short.First(n) != n {
			last = n
		}
	}
	tr := testTrial(t, short, true, func(n int) bool { return short.First(n) == n || n == last })
	if err := play(t, tr); err == nil || !strings.Contains(err.Error(), "1 arrivals are duplicates") {
		t.Errorf("verdict %v, want that a duplicate was emitted", err)
	}
}
