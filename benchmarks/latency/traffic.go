//go:build unix

package main

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// producer sends events with settings for low latency and without loss.
type producer struct {
	client  *kgo.Client
	promise *kgo.FirstErrPromise
}

func newProducer(seeds []string, topic string) (*producer, error) {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(seeds...), kgo.DefaultProduceTopic(topic),
		// The producer does not linger: events that are due at the same time share a request anyway, and so do events
		// that arrive while a request is in flight.
		kgo.ProducerLinger(0),
		// All in-sync replicas must acknowledge, because a crash of the broker must not lose an event. Idempotent
		// writes, franz-go's default, also require this; without them a repeated record would be an unplanned
		// duplicate.
		kgo.RequiredAcks(kgo.AllISRAcks()),
		// The buffer is so large that Produce never blocks, because the loop is open.
		kgo.MaxBufferedRecords(4<<20))
	if err != nil {
		return nil, err
	}
	return &producer{client: client, promise: kgo.AbortingFirstErrPromise(client)}, nil
}

// send passes an event to the client, which sends it in the background.
func (p *producer) send(ctx context.Context, r *kgo.Record) {
	p.client.Produce(ctx, r, p.promise.Promise())
}

// sent waits until the broker has acknowledged all events.
func (p *producer) sent() error {
	if err := p.promise.Err(); err != nil {
		return fmt.Errorf("produce: %w", err)
	}
	return nil
}

// fetchWait is how long the broker may delay a response that has no records. It adds no latency, because the broker
// responds as soon as there are records. It is short, because the broker may miss that the end of a transaction made
// records visible.
const fetchWait = 10 * time.Millisecond

// consumer reads the output as its users do, and records the arrivals.
type consumer struct {
	client *kgo.Client
	ledger *ledger
	next   map[int32]int64 // offset of each partition
}

func newConsumer(seeds []string, topic string, l *ledger) (*consumer, error) {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(seeds...), kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		// only read_committed consumers get each event once
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.FetchMaxWait(fetchWait),
		// The last record of the topic is a control record. The consumer keeps control records, so that it notices
		// the end.
		kgo.KeepControlRecords())
	if err != nil {
		return nil, err
	}
	return &consumer{client: client, ledger: l, next: map[int32]int64{}}, nil
}

// readUntil reads until ctx ends or done returns true; it calls done after each poll. An event counts as arrived when
// its poll returns.
func (c *consumer) readUntil(ctx context.Context, now func() time.Duration, done func() bool) error {
	for !done() {
		fetches := c.client.PollFetches(ctx)
		at := now()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := fetches.Err(); err != nil {
			return fmt.Errorf("read the output: %w", err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			c.next[r.Partition] = r.Offset + 1
			if !r.Attrs.IsControl() {
				c.ledger.arrive(eventNumber(r.Value), at)
			}
		})
	}
	return nil
}

// readToEnd reads the topic to its current end.
func (c *consumer) readToEnd(ctx context.Context, now func() time.Duration, topic string) error {
	ends, err := kadm.NewClient(c.client).ListCommittedOffsets(ctx, topic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return fmt.Errorf("find the end of %s: %w", topic, err)
	}
	return c.readUntil(ctx, now, func() bool {
		behind := false
		ends.Each(func(o kadm.ListedOffset) { behind = behind || c.next[o.Partition] < o.Offset })
		return !behind
	})
}
