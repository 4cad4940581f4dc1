//go:build unix

package main_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/cmd/oncebus/cli"
	"oncebus/processor/kafkatest"
	"oncebus/processor/kafkatest/program"
)

// redriveRoutes derive keys of a field that FIELD names, in the namespaces SPACE.
const redriveRoutes = `
routes:
  - name: signals
    namespace: SPACE-signals
    topics: [APP.signals.raw]
    key: [{field: FIELD}]
    window: 1h
    output: APP.signals.unique
    dead_letter: APP.dead-letter
  - name: orders
    namespace: SPACE-orders
    topics: [APP.orders.raw]
    prepartitioned: true
    key: [{header: FIELD}]
    window: 1h
    output: APP.orders.unique
    dead_letter: APP.dead-letter
`

func redriveRoutesOf(space, field string) string {
	return strings.NewReplacer("SPACE", space, "FIELD", field).Replace(redriveRoutes)
}

var redriveInputs, redriveOutputs = []string{"signals.raw", "orders.raw"}, []string{"signals.unique", "orders.unique", "dead-letter"}

// mend replaces the routes file of the world.
func (w *world) mend(routes string) {
	w.t.Helper()
	kafkatest.ReplaceFile(w.t, filepath.Join(w.dir, "routes.yaml"), []byte(strings.ReplaceAll(routes, "APP", w.app)))
}

// turnedAway are events that the first rule turned away, by input.
type turnedAway map[string]*ledger

// turnAway sends n events, which a service with the wrong rule turns away.
func (w *world) turnAway(n int) turnedAway {
	w.t.Helper()
	w.createTopics(nil, redriveInputs...)
	sent := turnedAway{}
	for _, input := range redriveInputs {
		sent[input] = newLedger()
	}
	var records []*kgo.Record
	for i := range n {
		input := redriveInputs[i%5/4] // four in five
		r := &kgo.Record{
			Topic: w.topic(input), Partition: int32(w.rng.IntN(realPartitions)), Timestamp: time.Now().Truncate(time.Millisecond),
			Value:   fmt.Appendf(nil, `{"code":"%d","n":%d}`, i, i),
			Headers: []kgo.RecordHeader{withHeader("code", fmt.Append(nil, i)), withHeader("traceparent", []byte("00-1")), withHeader("oncebus-key", []byte("forged"))},
		}
		if i%3 == 0 {
			r.Key = fmt.Appendf(nil, "key-%d", i)
		}
		records = append(records, sent[input].add(fmt.Sprint(i), r))
	}
	w.produce(records...)
	s := w.start("a")
	s.awaitReady()
	w.drained(redriveInputs, redriveOutputs)
	if dead := w.output("dead-letter"); len(dead) != n {
		w.t.Fatalf("%d dead letters, want %d", len(dead), n)
	}
	s.stop()
	return sent
}

// redrive starts 'oncebus dead-letters redrive --yes' as a process.
func (w *world) redrive(name string, args ...string) *program.Process {
	w.t.Helper()
	return w.command(name, append([]string{"dead-letters", "redrive", "--yes", "-o", "json"}, args...)...)
}

// redriveReport is what a redrive prints.
type redriveReport struct {
	Selected, Redriven int
	Skipped            []struct {
		Cause, First string
		Count        int
	}
}

// ended waits for the end of a redrive and returns its exit code and report.
func (w *world) ended(p *program.Process) (code int, report redriveReport) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), realDeadline)
	defer cancel()
	code, err := p.ExitCode(ctx)
	if err != nil {
		w.t.Fatal(err)
	}
	text, err := p.Log.Text()
	if err != nil {
		w.t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(text), &report); err != nil {
		w.t.Fatalf("%s ended with %d and wrote no report: %v\n%s", p.Name, code, err, text)
	}
	return code, report
}

// written returns how many offsets the inputs have, those of open transactions included.
func (w *world) written(ctx context.Context) (n int64, err error) {
	ends, err := w.admin.ListEndOffsets(ctx, w.topicsOf(redriveInputs)...)
	if err == nil {
		err = ends.Error()
	}
	ends.Each(func(o kadm.ListedOffset) { n += o.Offset })
	return n, err
}

// killRedrive kills a redrive with SIGKILL after it has written so many offsets: in an open
// transaction, or between two of them. It stops the process to look, and lets it go on if the
// moment is not that.
func (w *world) killRedrive(p *program.Process, after int64, inTransaction bool) {
	w.t.Helper()
	at, err := w.written(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	began := at
	eventually(w.t, "the moment to kill "+p.Name, func(ctx context.Context) error {
		if err := p.Ended(); err != nil {
			w.t.Fatalf("%s ended before it was killed: %v", p.Name, err)
		}
		now, err := w.written(ctx)
		if err != nil || now == at || now < began+after {
			return notYetOr(err)
		}
		at = now
		if err := p.Signal(syscall.SIGSTOP); err != nil {
			w.t.Fatal(err)
		}
		open, err := w.openTransactions(ctx, w.topicsOf(redriveInputs)...)
		if err == nil && (len(open) > 0) == inTransaction {
			return p.Kill()
		}
		if err := p.Signal(syscall.SIGCONT); err != nil {
			w.t.Fatal(err)
		}
		return notYetOr(err)
	})
}

// notYetOr returns err, or errNotYet.
func notYetOr(err error) error { return cmp.Or(err, errNotYet) }

// processed waits until all records of the inputs are processed and committed. drained cannot be
// used: a redrive ends the inputs with control records, behind which no group commits.
func (w *world) processed() {
	w.t.Helper()
	for _, topic := range append(w.topicsOf(redriveInputs), w.app+"-repartition") {
		eventually(w.t, topic+" is processed", func(ctx context.Context) error { return w.repartitionDone(ctx, topic) })
	}
	eventually(w.t, "no transaction is open on the outputs", func(ctx context.Context) error {
		open, err := w.openTransactions(ctx, w.topicsOf(redriveOutputs)...)
		if err == nil && len(open) > 0 {
			err = fmt.Errorf("open on %v", open)
		}
		return err
	})
}

// checkRedriven checks the inputs: each event a second time, once, as it was sent, and those of
// a partition in their order.
func (w *world) checkRedriven(sent turnedAway) {
	w.t.Helper()
	for input, ledger := range sent {
		first, second := map[int32][]string{}, map[int32][]string{}
		var again []*kgo.Record
		for _, r := range w.output(input) {
			event := headerOf(r, headerTestEvent)
			if headerOf(r, "oncebus-redrive-attempt") == "" {
				first[r.Partition] = append(first[r.Partition], event)
				continue
			}
			if n := len(r.Headers) - 1; r.Headers[n].Key != "oncebus-redrive-attempt" || string(r.Headers[n].Value) != "1" {
				w.t.Errorf("%s: the last header is %v", at(r), r.Headers[n])
			}
			second[r.Partition] = append(second[r.Partition], event)
			as := *r
			as.Headers = r.Headers[:len(r.Headers)-1]
			again = append(again, &as)
		}
		for partition := range int32(realPartitions) {
			if !slices.Equal(first[partition], second[partition]) {
				w.t.Errorf("%s/%d: %d events were sent and %d redriven, or the order differs", w.topic(input), partition, len(first[partition]), len(second[partition]))
			}
		}
		for _, r := range again {
			_, original, err := ledger.match(r)
			if err != nil {
				w.t.Fatal(err)
			}
			if r.Partition != original.Partition || !r.Timestamp.Equal(original.Timestamp) || !bytes.Equal(r.Key, original.Key) || (r.Key == nil) != (original.Key == nil) ||
				!bytes.Equal(r.Value, original.Value) || fmt.Sprint(r.Headers) != fmt.Sprint(original.Headers) {
				w.t.Errorf("%s differs from what was sent: %v, %v", at(r), r, original)
			}
		}
	}
}

// TestRealRedrive: a wrong rule turned 10,000 events away. The routes file is mended and the
// service restarted. The redrive is killed with SIGKILL four times, two of them in a
// transaction. Each event is in the output once, and in the inputs as it was.
func TestRealRedrive(t *testing.T) {
	t.Parallel()
	const events = 10_000
	w := newWorld(t, redriveRoutesOf("v1", "id"))
	sent := w.turnAway(events)
	w.mend(redriveRoutesOf("v2", "code"))
	if _, problems, code := w.oncebus("", "apply", "--yes", "--forget-keys", "v1-signals,v1-orders", filepath.Join(w.dir, "routes.yaml")); code != cli.ExitStopped {
		t.Fatalf("apply ended with %d: %s", code, problems)
	}
	s := w.start("a")
	s.awaitReady()
	// Slow enough that even a busy machine finds the moment: 50 records a transaction, ten of them a second.
	for n, after := range []int64{1, 1000, 2000, 500} {
		w.killRedrive(w.redrive(fmt.Sprint("redrive-", n), "--rate", "500"), after, n%2 == 0)
	}
	code, report := w.ended(w.redrive("redrive-last"))
	if code != cli.ExitStopped || report.Redriven == 0 || report.Redriven >= events || report.Selected != report.Redriven {
		t.Errorf("the last redrive ended with %d: %+v", code, report)
	}
	t.Logf("four killed redrives sent %d, the last one %d", events-report.Redriven, report.Redriven)
	w.processed()
	w.checkRedriven(sent)
	for input, ledger := range sent {
		ledger.checkOnce(t, w.output(strings.Replace(input, "raw", "unique", 1)))
	}
	if dead := w.output("dead-letter"); len(dead) != events {
		t.Errorf("%d dead letters, want no further one", len(dead))
	}
	if code, report := w.ended(w.redrive("redrive-none")); code != cli.ExitStopped || report.Selected != 0 {
		t.Errorf("a further redrive ended with %d: %+v", code, report)
	}
	s.stop()
}

// TestRealRedriveLoop: records that are turned away each time are redriven as often as
// --max-attempts says, and then no more. The exit code and the report say so.
func TestRealRedriveLoop(t *testing.T) {
	t.Parallel()
	w := newWorld(t, redriveRoutesOf("v1", "id"))
	w.turnAway(20)
	w.checkDeadLetterCommands(20)
	s := w.start("a")
	s.awaitReady()
	for round := range 3 {
		code, report := w.ended(w.redrive(fmt.Sprint("redrive-", round), "--max-attempts", "2"))
		stopped := round == 2
		if stopped && (code != cli.ExitFailed || report.Redriven != 0 || len(report.Skipped) != 1 || report.Skipped[0].Cause != "at_bound" || report.Skipped[0].Count != 20) {
			t.Errorf("at the bound the redrive ended with %d: %+v", code, report)
		}
		if !stopped && (code != cli.ExitStopped || report.Redriven != 20) {
			t.Errorf("redrive %d ended with %d: %+v", round, code, report)
		}
		w.processed()
	}
	dead := w.output("dead-letter")
	attempts := map[string]int{}
	for _, r := range dead {
		attempts[headerOf(r, "oncebus-redrive-attempt")]++
	}
	if len(dead) != 60 || attempts[""] != 20 || attempts["1"] != 20 || attempts["2"] != 20 {
		t.Errorf("dead letters by attempt: %v", attempts)
	}
	s.stop()
}
