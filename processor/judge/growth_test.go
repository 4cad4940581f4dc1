package judge_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/wire"
)

// Bytes in a Kafka log: of a record without key, value and headers, of a batch header, and of a control batch with a
// commit marker.
const recordBytes, batchBytes, markerBytes = 8, 61, 78

// growth measures how the changelog of a task grows.
type growth struct {
	*world
	namespaces int
	events     int
	// duplicates makes the test send each event a second time, from 500 senders in turn.
	duplicates bool
}

func newGrowth(t *testing.T, namespaces int, more ...string) *growth {
	t.Helper()
	g := &growth{world: newWorld(t), namespaces: namespaces, duplicates: len(more) > 0}
	var text strings.Builder
	text.WriteString("routes:\n")
	for n := range namespaces {
		fmt.Fprintf(&text, "  - {name: r%d, topics: [t%d.raw], key: [{field: id}], window: 1h, output: unique, dead_letter: dead%s}\n", n, n, strings.Join(more, ""))
	}
	var err error
	g.nextRoutes, err = rules.ParseRoutes("routes.yaml", []byte(text.String()))
	must(t, err)
	g.now = 1_700_000_000_000
	g.start()
	g.held = true
	return g
}

// commitEvents commits a transaction with n events, the next events of all namespaces in turn.
func (g *growth) commitEvents(n int) {
	for range n {
		g.sendEvent(nil)
		if g.duplicates {
			g.sendEvent([]kgo.RecordHeader{{Key: "from", Value: fmt.Appendf(nil, "sender-%d", g.events%500)}})
		}
		g.events++
	}
	g.commit()
	g.run()
}

// sendEvent routes the next event.
func (g *growth) sendEvent(headers []kgo.RecordHeader) {
	r := &kgo.Record{Topic: fmt.Sprintf("t%d.raw", g.events%g.namespaces), Timestamp: time.UnixMilli(g.now), Value: fmt.Appendf(nil, `{"id":"event-%d"}`, g.events), Headers: headers}
	g.append(r)
	route(g.router, g.emitter, []*kgo.Record{r})
}

func (g *growth) changelog() []*kgo.Record {
	return g.logOf[place(g.app.ChangelogOf(g.app.Topology.Repartition), 0)]
}

// bytesPerEvent returns the changelog bytes per event, from one whole checkpoint to the next. Each namespace has rows
// over all of its retention.
func (g *growth) bytesPerEvent(perTransaction int) float64 {
	for g.events < 70*g.namespaces {
		g.commitEvents(g.namespaces)
		g.now += (2 * time.Hour).Milliseconds() / 64
	}
	wholes, bytes, events := 0, 0, 0
	for read := len(g.changelog()); wholes < 2; {
		g.commitEvents(perTransaction)
		g.now += 100
		whole, size := false, batchBytes
		for _, r := range g.changelog()[read:] {
			if string(r.Key) == commitMarker {
				size += markerBytes
				continue
			}
			whole = whole || string(r.Key) == wire.CheckpointKey
			size += recordBytes + len(r.Key) + len(r.Value)
			for _, h := range r.Headers {
				size += len(h.Key) + len(h.Value) + 2
			}
		}
		if read = len(g.changelog()); whole {
			wholes++
		}
		if wholes > 0 {
			bytes, events = bytes+size, events+perTransaction
		}
	}
	return float64(bytes) / float64(events)
}

// TestChangelogGrowsWithEvents protects that the changelog grows with the number of events, and hardly with the
// number of namespaces. A transaction has the events that one of 12 tasks gets in 100 ms, at 2,000 and at 200 events
// a second.
func TestChangelogGrowsWithEvents(t *testing.T) {
	for _, perTransaction := range []int{17, 2} {
		var one float64
		for _, namespaces := range []int{1, 10, 50, 250} {
			bytes := newGrowth(t, namespaces).bytesPerEvent(perTransaction)
			t.Logf("%d events a transaction, %d namespaces: %.1f bytes an event", perTransaction, namespaces, bytes)
			if namespaces == 1 {
				one = bytes
			} else if bytes > 1.75*one {
				t.Errorf("%d events a transaction: %.1f bytes an event with one namespace, %.1f with %d", perTransaction, one, bytes, namespaces)
			}
		}
	}
}

// TestChangelogGrowsWithDuplicates is TestChangelogGrowsWithEvents with the counts of duplicates by day, delay and
// sender: half of the events are duplicates, of more senders than a route has counters. A duplicate has no row, so
// the changes of its namespace's counts weigh more.
func TestChangelogGrowsWithDuplicates(t *testing.T) {
	for _, sender := range []string{"", ", sender: {header: from}"} {
		var one float64
		for _, namespaces := range []int{1, 250} {
			bytes := newGrowth(t, namespaces, sender).bytesPerEvent(17)
			t.Logf("%d namespaces%s: %.1f bytes for an event and its duplicate", namespaces, sender, bytes)
			if namespaces == 1 {
				one = bytes
			} else if bytes > 2*one {
				t.Errorf("%.1f bytes for an event and its duplicate with one namespace, %.1f with %d", one, bytes, namespaces)
			}
		}
	}
}

// TestPartialCheckpointCostsWhatChanged protects that the encoding of a partial checkpoint allocates the same for one
// namespace and for 250.
func TestPartialCheckpointCostsWhatChanged(t *testing.T) {
	allocated := func(namespaces int) float64 {
		g := newGrowth(t, namespaces)
		for range 5 {
			g.commitEvents(namespaces)
		}
		task := g.task(app.TaskID{Topic: g.app.Topology.Repartition, Partition: 0})
		return testing.AllocsPerRun(100, func() {
			task.JoinTransaction()
			task.WriteCheckpoint(g.emitter)
			task.Discard()
			g.sent = nil
			g.emitter.Reset()
		})
	}
	if one, many := allocated(1), allocated(250); many > one+1 {
		t.Errorf("%v allocations with one namespace, %v with 250", one, many)
	}
}
