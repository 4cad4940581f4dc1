package judge_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/app"
)

// TestForgetDuringASweep makes an erasure and a sweep of the changelog in one transaction. The changelog must end
// with the freed row and the rows after it.
func TestForgetDuringASweep(t *testing.T) {
	t.Parallel()
	const routes = `routes:
  - name: signals
    topics: [signals.raw]
    prepartitioned: true
    key: [{field: id}]
    window: 1h
    output: signals.unique
    dead_letter: dead
`
	w := newWorld(t)
	var err error
	w.now = 1_700_000_000_000
	w.nextRoutes, err = rules.ParseRoutes("routes.yaml", []byte(routes))
	must(t, err)
	w.start()
	send := func(n int) (emitted int) {
		w.emitted = nil
		w.produce(&kgo.Record{Topic: "signals.raw", Timestamp: time.UnixMilli(w.now), Value: fmt.Appendf(nil, `{"id":"%d"}`, n)})
		return len(w.emitted)
	}
	for n := range 5 {
		send(n)
	}
	task := w.tasks[app.TaskID{Topic: "signals.raw"}]
	var erased dedup.Row
	for row, err := range task.store.Rows() {
		must(t, err)
		if row.At.Offset == 2 {
			erased = row
		}
	}
	task.StartSweep()
	task.JoinTransaction()
	n, err := task.Erase(w.judging, &app.ErasureRequest{NamespaceID: erased.NamespaceID, Rows: []app.RowRef{app.RefOf(&erased)}})
	if err != nil || n != 1 {
		t.Fatalf("erased %d rows, %v", n, err)
	}
	must(t, task.Sweep(w.emitter))
	w.end()
	w.restart(true)
	for n := range 5 {
		want := 0
		if n == 2 {
			want = 1
		}
		if got := send(n); got != want {
			t.Errorf("event %d: %d records emitted after the rebuild, want %d", n, got, want)
		}
	}
}

// TestErasureKeepsOtherNamespaces protects that an erasure leaves a row of another namespace in place.
func TestErasureKeepsOtherNamespaces(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var err error
	w.nextRoutes, err = rules.ParseRoutes("routes.yaml", []byte(`routes:
  - {name: a, topics: [a.raw], prepartitioned: true, key: [{field: id}], window: 1h, output: a.unique, dead_letter: dead}
  - {name: b, topics: [b.raw], prepartitioned: true, key: [{field: id}], window: 1h, output: b.unique, dead_letter: dead}
`))
	must(t, err)
	w.start()
	w.produce(&kgo.Record{Topic: "a.raw", Timestamp: time.UnixMilli(w.now), Value: []byte(`{"id":"1"}`)})
	task := w.tasks[app.TaskID{Topic: "a.raw"}]
	for row, err := range task.store.Rows() {
		must(t, err)
		task.JoinTransaction()
		n, err := task.Erase(w.judging, &app.ErasureRequest{NamespaceID: row.NamespaceID + 1, Rows: []app.RowRef{app.RefOf(&row)}})
		if n != 0 || err != nil {
			t.Errorf("erased %d rows of another namespace, %v", n, err)
		}
		w.end()
	}
}
