package judge_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/judge"
)

const allocRoutes = `routes:
  - name: routed
    topics: [routed.raw]
    key: [{field: id}]
    window: 1h
    output: routed.unique
    dead_letter: dead
%[1]s  - name: prepartitioned
    topics: [prepartitioned.raw]
    prepartitioned: true
    key: [{field: id}]
    window: 1h
    output: prepartitioned.unique
    dead_letter: dead
%[1]s`

// allocBatch is the number of records in a batch of these tests; allocRuns is the number of batches that are
// measured.
const allocBatch, allocRuns = 2000, 5

// perPoll is how many allocations a poll may cost per record, for the goroutine that derives keys.
const perPoll = 8.0 / allocBatch

// allocWorld is a process whose records go nowhere.
type allocWorld struct {
	*world
	sent []*kgo.Record // copies, while keep is set
	keep bool
}

func newAllocWorld(tb testing.TB, sender string) *allocWorld {
	tb.Helper()
	w := &allocWorld{world: newWorld(tb)}
	var err error
	w.nextRoutes, err = rules.ParseRoutes("routes.yaml", fmt.Appendf(nil, allocRoutes, sender))
	must(tb, err)
	w.now = 1_700_000_000_000
	w.start()
	w.emitter = judge.NewEmitter(w.app, func(r *kgo.Record) error {
		if w.keep {
			c := *r
			c.Key, c.Headers = bytes.Clone(r.Key), slices.Clone(r.Headers)
			c.Offset, c.Timestamp = int64(len(w.sent)), time.UnixMilli(w.now)
			w.sent = append(w.sent, &c)
		}
		return nil
	})
	w.judging.Emitter = w.emitter
	w.app.DuplicateLog = app.DuplicateLog{Level: slog.LevelInfo, Max: 10} // so all but the first duplicates are over the rate
	return w
}

// raw returns the batches of unique events that a measurement needs.
func (w *allocWorld) raw(topic string) (records []*kgo.Record) {
	for n := range allocBatch * (allocRuns + 2) {
		records = append(records, &kgo.Record{Topic: topic, Offset: int64(n), Timestamp: time.UnixMilli(w.now), Value: fmt.Appendf(nil, `{"id":"event-%d","by":"sender-%d"}`, n, n%500), Headers: []kgo.RecordHeader{{Key: "from", Value: fmt.Appendf(nil, "sender-%d", n%500)}}, ProducerID: int64(n % 500)})
	}
	return records
}

// assert fails if the processing of a record allocates more than most objects on average. The first batches are not
// counted: they fill the memory that later batches use again.
func (w *allocWorld) assert(name string, most float64, records []*kgo.Record, process func([]*kgo.Record)) {
	w.t.Helper()
	next := func() {
		process(records[:allocBatch])
		records = records[allocBatch:]
		w.emitter.Reset()
	}
	next()
	if n := testing.AllocsPerRun(allocRuns, next) / allocBatch; n > most {
		w.t.Errorf("%s: %.4f allocations, want at most %v", name, n, most)
	}
}

// TestEventsAllocateNothing protects that routing an event and judging a duplicate allocate nothing. Judging a unique
// event allocates nothing but the table of new rows, which grows.
func TestEventsAllocateNothing(t *testing.T) {
	for _, sender := range allocSenders {
		t.Run("sender "+sender, func(t *testing.T) { eventsAllocateNothing(t, sender) })
	}
}

// allocSenders are the kinds of senders. There are more senders than counters.
var allocSenders = []string{"", "    sender: {header: from}\n", "    sender: {field: by}\n", "    sender: producer_id\n"}

func eventsAllocateNothing(t *testing.T, sender string) {
	w := newAllocWorld(t, sender)
	raw := w.raw("routed.raw")
	routes := func(records []*kgo.Record) { route(w.router, w.emitter, records) }
	w.keep = true
	routes(raw)
	w.keep = false
	w.emitter.Reset()
	w.assert("routed", perPoll, raw, routes)
	for _, input := range []struct {
		topic   string
		records []*kgo.Record
	}{{w.app.Topology.Repartition, w.sent}, {"prepartitioned.raw", w.raw("prepartitioned.raw")}} {
		task := w.task(app.TaskID{Topic: input.topic})
		process := func(records []*kgo.Record) { must(t, task.Process(w.judging, records)) }
		w.assert(input.topic+": unique events", 0.02, input.records, process)
		for i := range input.records {
			input.records[i].Offset += int64(len(input.records))
		}
		w.assert(input.topic+": duplicates", perPoll, input.records, process)
	}
}

// TestUnsampledEventsAllocateNothing protects that, with tracing on, an event whose trace is not sampled costs only a
// look at its headers.
func TestUnsampledEventsAllocateNothing(t *testing.T) {
	w := newAllocWorld(t, "")
	w.emitter.Trace = true
	task := w.task(app.TaskID{Topic: "prepartitioned.raw"})
	process := func(records []*kgo.Record) { must(t, task.Process(w.judging, records)) }
	records := w.raw("prepartitioned.raw")
	headers := []kgo.RecordHeader{{Key: "traceparent", Value: []byte("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00")}}
	for _, r := range records {
		r.Headers = headers
	}
	w.assert("unique events", 0.02, records, process)
	for i := range records {
		records[i].Offset += int64(len(records))
	}
	w.assert("duplicates", perPoll, records, process)
	if len(w.emitter.Traced) != 0 {
		t.Errorf("%d events are traced, whose traces are not sampled", len(w.emitter.Traced))
	}
}

// BenchmarkDuplicate judges duplicates of a routed topic for each way to name a sender: 2,000 duplicates of 500
// senders in each turn of the loop.
func BenchmarkDuplicate(b *testing.B) {
	for _, sender := range allocSenders {
		b.Run(strings.TrimSpace("sender"+strings.TrimPrefix(strings.TrimSpace(sender), "sender")), func(b *testing.B) {
			w := newAllocWorld(b, sender)
			w.keep = true
			route(w.router, w.emitter, w.raw("routed.raw")[:allocBatch])
			w.keep = false
			w.emitter.Reset()
			task := w.task(app.TaskID{Topic: w.app.Topology.Repartition})
			must(b, task.Process(w.judging, w.sent))
			for b.Loop() {
				b.StopTimer()
				w.emitter.Reset()
				for i := range w.sent {
					w.sent[i].Offset += allocBatch
				}
				b.StartTimer()
				must(b, task.Process(w.judging, w.sent))
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/allocBatch, "ns/duplicate")
		})
	}
}
