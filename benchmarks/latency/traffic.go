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
		// No waiting for more events: what becomes due together is sent
		// together all the same, as is what gathers behind requests in flight.
		kgo.ProducerLinger(0),
		// An event that a crashed broker could lose was not produced, and one
		// that a retry could repeat would be an unplanned duplicate: idempotent
		// writes are franz-go's default and need these acks.
		kgo.RequiredAcks(kgo.AllISRAcks()),
		// So many that Produce never waits for a place: an open loop.
		kgo.MaxBufferedRecords(4<<20))
	if err != nil {
		return nil, err
	}
	return &producer{client: client, promise: kgo.AbortingFirstErrPromise(client)}, nil
}

// send gives an event to the client, which sends it in the background.
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

// fetchWait is how long the broker may hold back a response without records. It
// responds as soon as there are some, so this adds no latency; it is small for
// the case that the broker misses the moment at which a transaction's end
// makes them visible.
const fetchWait = 10 * time.Millisecond

// consumer reads the output as its users do, and records what arrives.
type consumer struct {
	client *kgo.Client
	ledger *ledger
	next   map[int32]int64 // offset of each partition
}

func newConsumer(seeds []string, topic string, l *ledger) (*consumer, error) {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(seeds...), kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		// oncebus promises something to read_committed consumers only.
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.FetchMaxWait(fetchWait),
		// The topic ends in a control record: without those the
		// consumer would not see the end.
		kgo.KeepControlRecords())
	if err != nil {
		return nil, err
	}
	return &consumer{client: client, ledger: l, next: map[int32]int64{}}, nil
}

// readUntil reads until done, called after each poll, returns true, or ctx
// ends. The time of an arrival is when the poll that brought it returned.
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

// readToEnd reads what the topic holds now.
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
