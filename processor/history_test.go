package processor_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor"
	"oncebus/processor/wire"
)

// A history is the past of a topic: events over some time. Each partition has them in order except for an
// out-of-order time, and a copy within a minute follows a fifth of them.
type history struct {
	partitions int
	equal      bool // else each partition has half of the events of the one before
	span       time.Duration
	disorder   time.Duration
	ids        int
}

// records returns the records of the history in the order in which they are sent.
func (h *history) records(seed uint64) (all []*kgo.Record) {
	rng := rand.New(rand.NewPCG(seed, 39))
	place := func() int32 {
		if h.equal {
			return int32(rng.IntN(h.partitions))
		}
		for p := range int32(h.partitions - 1) {
			if rng.IntN(2) == 0 {
				return p
			}
		}
		return int32(h.partitions - 1)
	}
	type sent struct {
		at int64
		id int
	}
	step := h.span.Milliseconds() / int64(h.ids)
	var copies []sent
	for n := range h.ids {
		at := testTime + int64(n)*step
		for len(copies) > 0 && copies[0].at <= at {
			all = append(all, signal(fmt.Sprint("id-", copies[0].id), place(), copies[0].at))
			copies = copies[1:]
		}
		if rng.IntN(5) == 0 {
			copies = append(copies, sent{at + minute, n})
		}
		if h.disorder > 0 {
			at -= rng.Int64N(h.disorder.Milliseconds())
		}
		all = append(all, signal(fmt.Sprint("id-", n), place(), at))
	}
	return all
}

// often makes a processor look at its inputs so often that a test does not have to wait for stream time.
func often(p *processor.Processor) { p.SetInputsInterval(50 * time.Millisecond) }

// upToDate waits until the stream time of each namespace in each task is at least the time of its latest event, which
// is so once the routing stage has said that it has read all inputs.
func (b *bench) upToDate() {
	b.t.Helper()
	b.wait("stream time to be that of the latest events", func() bool {
		all := b.checkpoints()
		latest := map[uint8]int64{}
		for _, c := range all {
			for _, s := range c.Sources {
				for _, at := range append(slices.Clone(s.Front), s.Ingress) {
					if before, known := latest[s.NamespaceID]; !known || at > before {
						latest[s.NamespaceID] = at
					}
				}
			}
		}
		for _, c := range all {
			for _, s := range c.Sources {
				if c.StreamTimes.Of(s.NamespaceID) < latest[s.NamespaceID] {
					return false
				}
			}
		}
		return true
	})
}

// TestFirstStartOnATopicWithHistory protects that each id is emitted once and none of its events is late, however
// unequal the partitions of a topic are and however far one partition is read before another.
func TestFirstStartOnATopicWithHistory(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name      string
		window    string
		processes int
		history
	}{
		{"unequal", "1h", 1, history{partitions: 6, span: 7 * 24 * time.Hour, ids: 6000}},
		{"equal, two processes", "1h", 2, history{partitions: 8, equal: true, span: 7 * 24 * time.Hour, ids: 6000}},
		{"window of a day", "24h", 1, history{partitions: 6, span: 7 * 24 * time.Hour, ids: 6000}},
		{"out of order", "5m", 2, history{partitions: 3, span: 72 * time.Minute, disorder: 3 * time.Minute, ids: 6000}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, strings.ReplaceAll(benchRoutes, "window: 1h", "window: "+c.window))
			b.createTopic("signals.raw", int32(c.partitions))
			records := c.records(1)
			b.produce(records...)
			var first *instance
			for n := range c.processes {
				i := b.startWith(b.config(fmt.Sprint("p", n)), often)
				if n == 0 {
					first = i
				}
			}
			b.drain(b.ready(first), "signals.raw")
			out := b.outputs("signals.unique")
			if len(out) != c.ids {
				t.Errorf("%d of %d ids came out", len(out), c.ids)
			}
			for id, verdicts := range out {
				if verdicts != "unique" {
					t.Errorf("%s came out as %s", id, verdicts)
				}
			}
			if dead := b.read("dead"); len(dead) > 0 {
				t.Errorf("%d of %d events are dead letters; one: %s", len(dead), len(records), header(dead[0], wire.HeaderReason))
			}
		})
	}
}

// TestInputThatIsNotReadMakesNoEventLate lets a router read nothing from one of two inputs while the other goes on
// for ten times window and grace. The events that the router then reads get the verdicts that they would have got at
// once, and stream time goes on with them.
func TestInputThatIsNotReadMakesNoEventLate(t *testing.T) {
	t.Parallel()
	b := newBench(t, strings.ReplaceAll(benchRoutes, "[signals.raw]", "[signals.raw, alerts.raw]"))
	b.createTopic("signals.raw", 3)
	b.createTopic("alerts.raw", 2)
	i := b.ready(b.startWith(b.config("one"), often))
	resume := i.PauseRouting("alerts.raw")
	const hours, every = 12, 5 // of event time, minutes
	var signals, alerts []*kgo.Record
	for n := range hours * 60 / every {
		at := testTime + int64(n*every)*minute
		signals = append(signals, signal(fmt.Sprint("s-", n), int32(n%3), at), signal(fmt.Sprint("both-", n), int32(n%3), at))
		for _, r := range []*kgo.Record{signal(fmt.Sprint("a-", n), int32(n%2), at), signal(fmt.Sprint("both-", n), int32(n%2), at+minute)} {
			r.Topic = "alerts.raw"
			alerts = append(alerts, r)
		}
	}
	b.produce(alerts...)
	for part := range slices.Chunk(signals, 24) {
		b.produce(part...)
		b.drain(i, "signals.raw")
	}
	resume()
	b.drain(i, "signals.raw", "alerts.raw")
	b.assertNoneTwice(append(signals, onlyOf(alerts, "k-a-")...))
	if dead := b.read("dead"); len(dead) > 0 {
		t.Errorf("%d of %d events of the input that was not read are dead letters; one: %s", len(dead), len(alerts), header(dead[0], wire.HeaderReason))
	}
	b.upToDate()
	late := signal("late", 0, testTime)
	b.produce(late)
	b.drain(i, "signals.raw")
	if dead := b.read("dead"); len(dead) != 1 {
		t.Errorf("%d dead letters, want the event from before the window", len(dead))
	}
}

// onlyOf returns the records whose keys begin with prefix.
func onlyOf(records []*kgo.Record, prefix string) (some []*kgo.Record) {
	for _, r := range records {
		if strings.HasPrefix(string(r.Key), prefix) {
			some = append(some, r)
		}
	}
	return some
}
