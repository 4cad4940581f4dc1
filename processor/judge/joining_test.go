package judge_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/wire"
)

const waitersRoutes = `routes:
  - name: ops
    topics: [ops.raw]
    mode: claim
    key: [{field: id}]
    request: {field: request}
    fingerprint: [amount]
    window: 1h
    output: ops.run
    outcomes: ops.outcomes
    replies: ops.replies
    answers: ops.answers
    lease: 10m
    while_in_progress: wait
    max_waiting: %[1]d
    dead_letter: dead
    http: {path: /ops, signature: {scheme: none}, timeout: 10s}
  - name: more
    namespace: ops
    topics: [more.raw]
    mode: claim
    key: [{field: id}]
    request: {field: request}
    fingerprint: [amount]
    window: 1h
    output: more.run
    outcomes: ops.outcomes
    replies: ops.replies
    answers: ops.answers
    lease: 10m
    while_in_progress: wait
    max_waiting: %[1]d
    collision: %[2]s
    dead_letter: dead
`

func newWaiters(t *testing.T, maxWaiting int, onCollision string) *world {
	t.Helper()
	w := newWorld(t)
	var err error
	w.nextRoutes, err = rules.ParseRoutes("routes.yaml", fmt.Appendf(nil, waitersRoutes, maxWaiting, onCollision))
	must(t, err)
	w.now = 1_700_000_000_000
	w.start()
	w.held = true
	return w
}

// play plays random events and outcomes of a few keys, drawn from a seed. It returns the emitted records, the stored
// rows and the key counts. With batches, the events of a batch are judged in one transaction, otherwise each event in
// a transaction of its own; with aborts, a transaction is judged twice. Some seeds let only few requests join.
func play(t *testing.T, seed uint64, batches, aborts bool) (emitted []string, rows []dedup.Row, keys []app.KeyCount) {
	t.Helper()
	onCollision := []string{"dead_letter", "forward"}[seed%2]
	w := newWaiters(t, 3, onCollision)
	w.task(app.TaskID{Topic: w.app.Topology.Repartition}).JoinsMax = []int{0, 1, 4}[seed%3]
	draw := rand.New(rand.NewPCG(seed, 1))
	run := func() {
		if aborts {
			w.judge()
			w.abort()
		}
		w.run()
	}
	for range 20 {
		w.app.Clock.Set(w.now)
		before := len(w.emitted)
		for range 1 + draw.IntN(12) {
			w.now += []int64{0, 0, 0, 1, 5_000, 20_000, 700_000, 4_000_000}[min(draw.IntN(8), draw.IntN(12))]
			if draw.IntN(6) == 0 {
				w.writeProgress(w.now-[]int64{1, 1_000_000}[draw.IntN(2)], 0, 1, -1)
			} else {
				w.produce(drawEvent(w, draw, w.emitted[:before]))
			}
			if !batches {
				run()
			}
		}
		run()
	}
	for _, r := range w.emitted {
		if w.app.Limit(r.Topic).AppendTime {
			r.Timestamp = time.UnixMilli(0) // the time of its transaction
		}
		emitted = append(emitted, describe(r))
	}
	task := w.task(app.TaskID{Topic: w.app.Topology.Repartition})
	for row, err := range task.Store.Rows() {
		must(t, err)
		rows = append(rows, row)
	}
	return emitted, rows, task.Counts.List(w.app, &task.Committed)
}

// drawEvent returns an event, or an outcome of an emitted event. To make batches and single events draw the same,
// only the records of earlier batches count as emitted.
func drawEvent(w *world, draw *rand.Rand, emitted []*kgo.Record) *kgo.Record {
	r := &kgo.Record{Topic: []string{"ops.raw", "ops.raw", "more.raw"}[draw.IntN(3)], Timestamp: time.UnixMilli(w.now), Key: fmt.Appendf(nil, "k-%d", draw.IntN(5))}
	r.Value = fmt.Appendf(nil, `{"id":"key-%d","request":"request-%d","amount":%d}`, draw.IntN(3), draw.IntN(5), draw.IntN(4)/3)
	if draw.IntN(2) == 0 {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: wire.HeaderReplyTo, Value: dedup.Address{Ingress: 1, Request: 1 + draw.Uint64N(6)}.AppendText(nil)})
	}
	var tokens [][]byte
	for _, r := range emitted {
		if token := headerOf(r, wire.HeaderClaimToken); token != "" {
			tokens = append(tokens, []byte(token))
		}
	}
	if n := len(tokens); n > 0 && draw.IntN(5) == 0 {
		kind := dedup.OutcomeKinds[draw.IntN(len(dedup.OutcomeKinds))].String()
		r.Topic, r.Value = "ops.outcomes", []byte("done")
		r.Headers = []kgo.RecordHeader{
			{Key: wire.HeaderClaimToken, Value: tokens[max(0, n-1-draw.IntN(4))]},
			{Key: wire.HeaderOutcome, Value: []byte(kind)}, {Key: wire.HeaderStartID, Value: []byte("a start id of an executor")},
		}
	}
	return r
}

// TestRequestsThatJoinInOneTransaction protects that events which are judged in one transaction emit and store the
// same as in transactions of their own.
func TestRequestsThatJoinInOneTransaction(t *testing.T) {
	for seed := range uint64(16) {
		emitted, rows, keys := play(t, seed, false, false)
		for _, aborts := range []bool{false, true} {
			gotEmitted, gotRows, gotKeys := play(t, seed, true, aborts)
			for i := range max(len(emitted), len(gotEmitted)) {
				if i >= len(emitted) || i >= len(gotEmitted) || emitted[i] != gotEmitted[i] {
					t.Fatalf("batches of seed %d, aborts %v: record %d is %s; of single events it is %s", seed, aborts, i, at(gotEmitted, i), at(emitted, i))
				}
			}
			if !slices.EqualFunc(rows, gotRows, func(a, b dedup.Row) bool { return fmt.Sprint(a) == fmt.Sprint(b) }) {
				t.Fatalf("batches of seed %d, aborts %v: rows %v, want %v", seed, aborts, gotRows, rows)
			}
			if fmt.Sprint(keys) != fmt.Sprint(gotKeys) {
				t.Fatalf("batches of seed %d, aborts %v: counts %v, want %v", seed, aborts, gotKeys, keys)
			}
		}
	}
}

func at(texts []string, i int) string {
	if i < len(texts) {
		return texts[i]
	}
	return "none"
}

// costOfWaiters returns the bytes that an event allocates, and the bytes that it writes to the changelog. Each key
// has each events, in transactions of perTransaction events.
func costOfWaiters(t *testing.T, keys, each, perTransaction int) (allocated, changelog float64) {
	t.Helper()
	w := newWaiters(t, 256, "dead_letter")
	for i := range keys * each {
		w.produce(&kgo.Record{Topic: "ops.raw", Timestamp: time.UnixMilli(w.now), Value: fmt.Appendf(nil, `{"id":"key-%d","request":"request-%d"}`, i%keys, i)})
	}
	id := app.TaskID{Topic: w.app.Topology.Repartition}
	task, log := w.task(id), w.logOf[place(id.Topic, 0)]
	var before, after runtime.MemStats
	for len(log) > 0 {
		n := min(perTransaction, len(log))
		runtime.ReadMemStats(&before)
		must(t, task.Process(w.judging, log[:n]))
		task.WriteCheckpoint(w.emitter)
		runtime.ReadMemStats(&after)
		log = log[n:]
		allocated += float64(after.TotalAlloc - before.TotalAlloc)
		for _, r := range w.sent {
			if r.Topic == task.Changelog {
				changelog += float64(len(r.Key) + len(r.Value))
			}
		}
		w.commit()
	}
	events := float64(keys * each)
	return allocated / events, changelog / events
}

// TestWaitersOfAKeyCostTheSame protects that a waiting duplicate costs the same behind 8 others and behind 256, and
// so does a duplicate that finds no place.
func TestWaitersOfAKeyCostTheSame(t *testing.T) {
	allocated, changelog := costOfWaiters(t, 8, 8, 4096)
	for _, each := range []int{257, 1000} {
		a, c := costOfWaiters(t, 8, each, 4096)
		t.Logf("%d events for each key: %.0f bytes allocated and %.1f of the changelog an event; with 8: %.0f and %.1f", each, a, c, allocated, changelog)
		if a > 1.5*allocated || c > 1.5*changelog {
			t.Errorf("%d events for each key: %.0f bytes allocated and %.1f of the changelog an event; with 8: %.0f and %.1f", each, a, c, allocated, changelog)
		}
	}
}
