//go:build unix

package main_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/cmd/oncebus/cli"
	"oncebus/processor/app"
)

const poisonRoutes = `
routes:
  - name: ids
    topics: [APP.ids.raw]
    key: [{field: id}]
    window: 1h
    output: APP.ids.unique
    dead_letter: APP.dead-letter
`

// TestRealUnreadableRecord: a stranger writes one record of one byte without a key to the
// repartition topic, and records with foreign keys to a changelog. The processes live on, and their
// other partitions too, over a kill of the one that met the record. After the decisions everything
// that was sent is emitted once.
func TestRealUnreadableRecord(t *testing.T) {
	t.Parallel()
	w := newWorld(t, poisonRoutes)
	w.createTopics(nil, "ids.raw", "ids.unique", "dead-letter")
	inputs, outputs := []string{"ids.raw"}, []string{"ids.unique", "dead-letter"}
	sent := newLedger()
	send := func(phase string) {
		var records []*kgo.Record
		for n := range 1200 {
			id := fmt.Sprint(phase, "-", n%400)
			records = append(records, sent.add(id, &kgo.Record{
				Topic: w.topic("ids.raw"), Partition: int32(w.rng.IntN(realPartitions)), Key: []byte(id), Value: fmt.Appendf(nil, `{"id":%q}`, id),
				Timestamp: time.Now().Truncate(time.Millisecond),
			}))
		}
		w.produce(records...)
	}
	accept := func(task string) {
		t.Helper()
		if stdout, stderr, code := w.oncebus("", "accept", "--task", task, "--skip"); code != cli.ExitStopped {
			t.Fatalf("accept of %s: exit code %d: %s%s", task, code, stdout, stderr)
		}
	}
	// awaits waits until exactly this record waits for a decision.
	awaits := func(r *kgo.Record) {
		t.Helper()
		eventually(t, "the refusal of "+at(r), func(context.Context) error {
			var refusals []app.Refusal
			stdout, stderr, code := w.oncebus("", "accept", "--json")
			if err := json.Unmarshal([]byte(stdout), &refusals); err != nil || code != cli.ExitStopped {
				return fmt.Errorf("accept: exit code %d, %w: %s%s", code, err, stdout, stderr)
			}
			if len(refusals) != 1 || refusals[0].Record != at(r) || refusals[0].Problem != app.RecordUnreadable {
				return fmt.Errorf("waiting are %v", refusals)
			}
			return nil
		})
	}
	a, b := w.start("a"), w.start("b")
	a.awaitReady()
	b.awaitReady()
	send("before")
	w.drained(inputs, outputs)

	bad := &kgo.Record{Topic: w.app + "-repartition", Partition: 2, Value: []byte("x")}
	w.produce(bad)
	task := fmt.Sprintf("%s-repartition/2", w.app)
	awaits(bad)
	send("meanwhile")
	w.taken(w.topicsOf(inputs)) // both processes route, and judge all but one of six partitions
	eventually(t, "the events of the other partitions", func(context.Context) error {
		if n := len(w.output("ids.unique")); n < 400+200 {
			return fmt.Errorf("%d events are in the output", n)
		}
		return nil
	})
	if got := w.doctor(0); !strings.Contains(got.Stdout, "oncebus accept --task "+task+" --skip") || !strings.Contains(got.Stdout, `key null, value "x"`) {
		t.Errorf("doctor says:\n%s%s", got.Stdout, got.Stderr)
	}
	a.kill()
	b.kill()
	c := w.start("c")
	awaits(bad)
	accept(task)
	w.drained(inputs, outputs)
	c.awaitReady()
	c.stop()

	// A changelog is compacted, so a broker refuses a record without a key there.
	foreign := &kgo.Record{Topic: w.app + "-repartition-changelog", Partition: 3, Key: []byte("customer-17"), Value: []byte("x")}
	w.produce(foreign)
	d := w.start("d")
	awaits(foreign)
	accept(fmt.Sprintf("%s-repartition/3", w.app))
	d.awaitReady()
	send("after")
	w.drained(inputs, outputs)
	sent.checkOnce(t, w.output("ids.unique"))
	if dead := w.output("dead-letter"); len(dead) > 0 {
		t.Errorf("%d dead letters, the first: %v", len(dead), dead[0].Headers)
	}
}
