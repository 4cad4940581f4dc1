//go:build unix

package bench

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Input is a topic with trade signals of about 230 bytes, whose record key is the trace id. Some of them are
// duplicates of earlier signals. The n-th event of an Input is always the same.
type Input struct {
	Topic      string
	Partitions int
	Events     int
	Duplicates int       // percent, at most 50
	First      int       // the lowest id; Inputs that must not share ids start at different ones
	Start      time.Time // event time of the first event
}

// Every block of blockEvents events begins with its duplicates. A duplicate repeats the event that is
// duplicateDistance, half a block, before it. As long as at most half of the events are duplicates, that earlier
// event is not a duplicate itself.
const (
	blockEvents       = 100
	duplicateDistance = 950
	// eventsPerMilli is the number of events in a millisecond of event time.
	eventsPerMilli = 1000
)

// isDuplicate reports whether the n-th event is a duplicate.
func (in Input) isDuplicate(n int) bool {
	return n%blockEvents < in.Duplicates && n >= duplicateDistance
}

// Record returns the n-th event, from 0.
func (in Input) Record(n int) *kgo.Record {
	id := in.First + n
	if in.isDuplicate(n) {
		id -= duplicateDistance
	}
	return &kgo.Record{
		Topic: in.Topic, Key: fmt.Appendf(nil, "%s%012d", keyPrefix, id), Value: payload(id),
		Timestamp: in.Start.Add(time.Duration(n/eventsPerMilli) * time.Millisecond),
	}
}

// Distinct returns the number of distinct ids among the events.
func (in Input) Distinct() int {
	// All blocks have the same number of duplicates, except for the first blocks, which have no earlier event to
	// repeat.
	duplicates := in.Events/blockEvents*in.Duplicates + min(in.Events%blockEvents, in.Duplicates)
	early := min(in.Events, duplicateDistance)
	duplicates -= early/blockEvents*in.Duplicates + min(early%blockEvents, in.Duplicates)
	return in.Events - duplicates
}

const keyPrefix = "trace-"

// Index returns the position of a record's id among the ids of the input, from 0. It returns false for a record that
// is not from this input.
func (in Input) Index(key []byte) (int, bool) {
	if len(key) < len(keyPrefix) || string(key[:len(keyPrefix)]) != keyPrefix {
		return 0, false
	}
	id, err := strconv.Atoi(string(key[len(keyPrefix):]))
	return id - in.First, err == nil && id >= in.First && id < in.First+in.Events
}

func payload(id int) []byte {
	return fmt.Appendf(nil, `{"traceId":"%s%012d","symbol":"BTCUSDT","exchange":"BINANCE","action":"buy","price":"%d.25","quantity":"0.50","strategy":"breakout-v3","interval":"15m","timestamp":"2026-11-20T10:00:00Z","comment":"close above band"}`,
		keyPrefix, id, 40_000+id%1000)
}

// Generate creates the topic and fills it.
func (in Input) Generate(ctx context.Context, b *Broker) error {
	if in.Duplicates < 0 || in.Duplicates > blockEvents/2 {
		return fmt.Errorf("generate the input: duplicates are %d percent, need 0 to %d", in.Duplicates, blockEvents/2)
	}
	if err := b.CreateTopics(ctx, in.Partitions, in.Topic); err != nil {
		return err
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(b.Seeds()...), kgo.ProducerLinger(5*time.Millisecond), kgo.MaxBufferedRecords(100_000))
	if err != nil {
		return err
	}
	defer client.Close()
	promise := kgo.AbortingFirstErrPromise(client)
	for n := range in.Events {
		client.Produce(ctx, in.Record(n), promise.Promise())
	}
	if err := promise.Err(); err != nil {
		return fmt.Errorf("generate the input: %w", err)
	}
	return nil
}
