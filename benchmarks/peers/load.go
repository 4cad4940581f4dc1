//go:build unix

package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/benchmarks/internal/bench"
	"oncebus/benchmarks/internal/openloop"
)

// traffic is the load of one system: which events are sent, and when each of them arrives in the output.
type traffic struct {
	in   bench.Input
	rate int
	// warm is the number of events that are sent as fast as possible before the load starts.
	warm int

	client *kgo.Client

	mu        sync.Mutex
	start     time.Time // start of the load
	partition []int32   // partition of each id in the input
	arrived   []time.Time
	last      time.Time // time of the latest arrival, duplicates included
}

func newTraffic(brokers []string, in bench.Input, rate int) (*traffic, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ProducerLinger(time.Millisecond), kgo.MaxBufferedRecords(1_000_000))
	return &traffic{in: in, rate: rate, warm: rate, client: client, partition: make([]int32, in.Events), arrived: make([]time.Time, in.Events)}, err
}

// sent returns when an event was due, counted from the start of the load.
func (l *traffic) sent(n int) time.Duration {
	return time.Duration(n-l.warm) * time.Second / time.Duration(l.rate)
}

// send produces the n-th event.
func (l *traffic) send(ctx context.Context, n int) {
	l.client.Produce(ctx, l.in.Record(n), func(r *kgo.Record, err error) {
		if id, ours := l.in.Index(r.Key); ours && err == nil {
			l.mu.Lock()
			l.partition[id] = r.Partition
			l.mu.Unlock()
		}
	})
}

// warmUp sends the first events and waits until some of them have arrived from every partition.
func (l *traffic) warmUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startMax)
	defer cancel()
	for n := range l.warm {
		l.send(ctx, n)
	}
	if err := l.client.Flush(ctx); err != nil {
		return err
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !l.flows() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("no events from every partition within %v: %w", startMax, ctx.Err())
		}
	}
	return nil
}

// flows reports whether an event from each partition has arrived.
func (l *traffic) flows() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	seen := map[int32]bool{}
	for id, at := range l.arrived[:l.warm] {
		if !at.IsZero() {
			seen[l.partition[id]] = true
		}
	}
	return len(seen) == l.in.Partitions
}

// run sends the other events when they are due. It returns when the broker has stored all of them.
func (l *traffic) run(ctx context.Context) error {
	schedule := openloop.Schedule{Rate: l.rate, Measured: l.sent(l.in.Events) - openloop.Cooldown}
	g := openloop.Generator{Schedule: schedule, Clock: openloop.ClockFrom(l.begin()), Send: func(n int) {
		if n += l.warm; n < l.in.Events {
			l.send(ctx, n)
		}
	}}
	if err := g.Run(ctx); err != nil {
		return err
	}
	return l.client.Flush(ctx)
}

// begin starts the clock of the load.
func (l *traffic) begin() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.start = time.Now()
	return l.start
}

// watch reads the committed output until ctx ends.
func (l *traffic) watch(ctx context.Context, brokers []string, topic string) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.FetchMaxWait(100*time.Millisecond))
	if err != nil {
		return err
	}
	defer client.Close()
	for ctx.Err() == nil {
		fetches := client.PollFetches(ctx) // the client retries while the broker is down
		now := time.Now()
		l.mu.Lock()
		fetches.EachRecord(func(r *kgo.Record) {
			l.last = now
			if id, ours := l.in.Index(r.Key); ours && l.arrived[id].IsZero() {
				l.arrived[id] = now
			}
		})
		l.mu.Unlock()
	}
	return nil
}

// quietFor returns the time since the latest arrival.
func (l *traffic) quietFor() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Since(l.last)
}

// recovery returns the time from moment until each partition has an event in the output that was sent after moment.
// complete is false if a partition has no such event.
func (l *traffic) recovery(moment time.Duration) (longest time.Duration, complete bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	first := map[int32]time.Duration{}
	for id, at := range l.arrived {
		if at.IsZero() || id < l.warm || l.sent(id) < moment {
			continue
		}
		p, after := l.partition[id], at.Sub(l.start)-moment
		if old, is := first[p]; !is || after < old {
			first[p] = after
		}
	}
	for _, d := range first {
		longest = max(longest, d)
	}
	return longest, len(first) == l.in.Partitions
}
