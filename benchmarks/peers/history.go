//go:build unix

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/benchmarks/internal/bench"
)

// shape is the form of a history, and the window with which the systems deduplicate it.
type shape struct {
	Name   string // as in the flag
	Span   time.Duration
	Window time.Duration
	Equal  bool // all partitions have equally many events; otherwise each has half as many as the one before
}

// parseShapes reads a comma separated list of span/window or span/window/equal.
func parseShapes(text string) (shapes []shape, err error) {
	for name := range strings.SplitSeq(text, ",") {
		parts := strings.Split(name, "/")
		s := shape{Name: name, Equal: len(parts) == 3 && parts[2] == "equal"}
		if len(parts) != 2 && !s.Equal {
			return nil, fmt.Errorf("-histories: %q is not span/window or span/window/equal", name)
		}
		for i, d := range []*time.Duration{&s.Span, &s.Window} {
			if *d, err = time.ParseDuration(parts[i]); err != nil || *d <= copyWithin {
				return nil, fmt.Errorf("-histories: %q in %q is not a duration of more than %v", parts[i], name, copyWithin)
			}
		}
		shapes = append(shapes, s)
	}
	return shapes, nil
}

const (
	// copyWithin is how long after an event its duplicate comes at most, in event time.
	copyWithin = time.Minute
	// copied is the share of the events that have a duplicate.
	copied = 0.2
)

// past is one event of a history.
type past struct {
	id        int
	at        time.Duration // counted from the start of the history
	partition int32
}

// pasts draws a history: its ids come evenly over the span, and some have a duplicate in any partition. The events
// are sorted by their times, so they are in order within each partition, too.
func pasts(s shape, seed uint64, ids, partitions int) (events []past) {
	draw := rand.New(rand.NewPCG(seed, 0))
	for id := range ids {
		at := s.Span / time.Duration(ids) * time.Duration(id)
		events = append(events, past{id: id, at: at})
		if draw.Float64() < copied {
			events = append(events, past{id: id, at: min(s.Span, at+time.Duration(draw.Int64N(int64(copyWithin))))})
		}
	}
	slices.SortStableFunc(events, func(a, b past) int { return cmp.Compare(a.at, b.at) })
	for i := range events {
		events[i].partition = s.partition(draw, partitions)
	}
	return events
}

// partition draws the partition of an event.
func (s shape) partition(draw *rand.Rand, partitions int) int32 {
	if s.Equal {
		return draw.Int32N(int32(partitions))
	}
	return int32(partitions - bits.Len64(draw.Uint64N(1<<partitions-1)+1))
}

// idOf returns the id in a payload.
func idOf(ids int, value []byte) (int, bool) {
	var payload struct {
		TraceID string `json:"traceId"`
	}
	if err := json.Unmarshal(value, &payload); err != nil {
		return 0, false
	}
	return bench.Input{Events: ids}.Index([]byte(payload.TraceID))
}

// produce fills a topic with a history that starts at the given time. It then compares the content of the topic with
// the plan.
func produce(ctx context.Context, brokers []string, topic string, events []past, ids int, start time.Time) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerLinger(5*time.Millisecond), kgo.MaxBufferedRecords(100_000))
	if err != nil {
		return err
	}
	defer client.Close()
	promise, planned := kgo.AbortingFirstErrPromise(client), make([]int, ids)
	padding := strings.Repeat("x", 100)
	for _, e := range events {
		at := start.Add(e.at)
		client.Produce(ctx, &kgo.Record{
			Topic: topic, Partition: e.partition, Timestamp: at,
			Value: fmt.Appendf(nil, `{"traceId":"trace-%012d","ts":%d,"pad":"%s"}`, e.id, at.UnixMilli(), padding),
		}, promise.Promise())
		planned[e.id]++
	}
	if err := promise.Err(); err != nil {
		return fmt.Errorf("produce the history: %w", err)
	}
	counts, err := idsIn(ctx, brokers, topic, ids)
	if err == nil && !slices.Equal(counts, planned) {
		err = fmt.Errorf("the topic %s does not have each id as often as planned", topic)
	}
	return err
}

// idsIn returns how often each id occurs in a topic.
func idsIn(ctx context.Context, brokers []string, topic string, ids int) ([]int, error) {
	counts, foreign := make([]int, ids), 0
	err := bench.ReadTopic(ctx, brokers, topic, func(r *kgo.Record) {
		if id, ours := idOf(ids, r.Value); ours {
			counts[id]++
		} else {
			foreign++
		}
	})
	if err == nil && foreign > 0 {
		err = fmt.Errorf("%d records of %s are not of the history", foreign, topic)
	}
	return counts, err
}

// tally says how often the ids of a history came out. The correct result is: each id once.
type tally struct {
	Out     int // number of records
	Once    int // number of ids
	Doubled int // ids that came out twice or more
	Never   int // ids that never came out
	Late    int // records that the system wrote to a separate topic for late records
}

// tallyOf computes the tally from how often each id occurs in the output and in the topic for late records.
func tallyOf(out, late []int) (t tally) {
	for id, n := range out {
		t.Out += n
		t.Late += late[id]
		switch n {
		case 0:
			t.Never++
		case 1:
			t.Once++
		default:
			t.Doubled++
		}
	}
	return t
}
