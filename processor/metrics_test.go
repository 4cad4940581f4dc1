package processor_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor"
	"oncebus/processor/app"
	"oncebus/processor/kafkatest/golden"
)

// TestMetricsCountWhatHappened compares every figure that a small run determines, including a restart and a restore.
func TestMetricsCountWhatHappened(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	cfg := b.onePartition("one")
	i := b.ready(b.start(cfg))
	var records []*kgo.Record
	for n := range 130 { // two of them are timed, one in 64
		records = append(records, signal(fmt.Sprint("id-", n), 0, testTime))
	}
	bad := signal("", 0, testTime)
	b.produce(append(records, signal("id-0", 0, testTime), signal("id-1", 0, testTime), bad)...)
	b.drain(i, "signals.raw")
	const task = `{partition="0",topic="app-repartition"}`
	b.wait("the lag to be known as 0", func() bool { return gather(t, i)[`oncebus_task_lag_records`+task] == 0 })
	got := gather(t, i)
	for series, want := range map[string]float64{
		`oncebus_events_total{route="signals",verdict="unique"}`:       130,
		`oncebus_events_total{route="signals",verdict="duplicate"}`:    2,
		`oncebus_events_total{route="signals",verdict="missing_key"}`:  1,
		`oncebus_events_total{route="signals",verdict="after_window"}`: 0,
		`oncebus_events_total{route="signals",verdict="late"}`:         0,
		`oncebus_events_total{route="signals",verdict="invalid"}`:      0,
		`oncebus_dead_letters_total{route="signals"}`:                  1,
		`oncebus_transactions_total{outcome="aborted",stage="route"}`:  0,
		`oncebus_transactions_total{outcome="aborted",stage="dedup"}`:  0,
		`oncebus_transactions_total{outcome="unknown",stage="route"}`:  0,
		`oncebus_transactions_total{outcome="unknown",stage="dedup"}`:  0,
		`oncebus_clients_rebuilt_total{stage="route"}`:                 0,
		`oncebus_clients_rebuilt_total{stage="dedup"}`:                 0,
		`oncebus_rejoins_total{stage="route"}`:                         0,
		`oncebus_rejoins_total{stage="dedup"}`:                         0,
		`oncebus_tasks{state="running"}`:                               1,
		`oncebus_tasks{state="restoring"}`:                             0,
		`oncebus_tasks{state="created"}`:                               0,
		`oncebus_restore_remaining_records` + task:                     0,
		`oncebus_task_lag_records` + task:                              0,
		`oncebus_task_lag_seconds` + task:                              0,
		`oncebus_restored_rows_total`:                                  0,
		`oncebus_restore_seconds`:                                      1,
		`oncebus_key_derivation_seconds`:                               2,
		`oncebus_decision_seconds`:                                     2,
		`oncebus_reread_records_total`:                                 0,
		`oncebus_quarantined_stores_total`:                             0,
		`oncebus_broker_up`:                                            1,
		`oncebus_state_rows`:                                           130,
		`oncebus_state_evicted_rows_total`:                             0,
	} {
		if have, ok := got[series]; !ok || have != want {
			t.Errorf("%s is %v (there: %v), want %v", series, have, ok, want)
		}
	}
	for _, stage := range []string{processor.StageRoute, processor.StageDedup} {
		commits := got[fmt.Sprintf("oncebus_transactions_total{outcome=\"committed\",stage=%q}", stage)]
		if timed := got[fmt.Sprintf("oncebus_commit_seconds{stage=%q}", stage)]; commits < 1 || timed != commits {
			t.Errorf("stage %s: %v transactions committed, %v timed", stage, commits, timed)
		}
	}
	// Rows and verdicts are packed into fewer records, so these figures have only a lower bound.
	for series, least := range map[string]float64{
		`oncebus_kafka_fetch_records_total{client="route"}`:     133,
		`oncebus_kafka_produce_records_total{client="route"}`:   1,
		`oncebus_kafka_fetch_records_total{client="dedup"}`:     1,
		`oncebus_kafka_produce_records_total{client="dedup"}`:   131,
		`oncebus_kafka_produce_records_total{client="process"}`: 1, // the manifest
	} {
		if got[series] < least {
			t.Errorf("%s is %v, want %v or more", series, got[series], least)
		}
	}
	if err := i.stop(); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(cfg.StateDir); err != nil {
		t.Fatal(err)
	}
	i = b.ready(b.start(cfg))
	if restored := gather(t, i)["oncebus_restored_rows_total"]; restored != 130 {
		t.Errorf("%v rows restored from the changelog, want those of 130 keys", restored)
	}
}

// TestSeriesOfATaskGoWithIt protects that the metrics do not report a partition twice after it has moved to another
// process.
func TestSeriesOfATaskGoWithIt(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	i := b.ready(b.start(b.config("one")))
	perTask := func() (n int) {
		for series := range gather(t, i) {
			if strings.Contains(series, `partition="`) {
				n++
			}
		}
		return n
	}
	if n := perTask(); n != 12 {
		t.Errorf("%d series of 4 tasks, want both lags and remaining records of each", n)
	}
	if err := i.stop(); err != nil {
		t.Fatal(err)
	}
	if n := perTask(); n != 0 {
		t.Errorf("%d series of tasks that are closed", n)
	}
	for _, state := range []fmt.Stringer{processor.TaskCreated, processor.TaskRestoring, processor.TaskRunning} {
		if n := gather(t, i)[fmt.Sprintf("oncebus_tasks{state=%q}", state)]; n != 0 {
			t.Errorf("%v tasks are %v after all were closed", n, state)
		}
	}
}

// TestNotReadyWhileATaskRestores holds up the restore of a task by an open transaction in its changelog. Until the
// transaction ends, nobody knows whether the rows behind its start count, and the process is not ready.
func TestNotReadyWhileATaskRestores(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	cfg := b.config("one")
	b.runOnce(cfg, "signals.raw")
	client := b.newClient(kgo.TransactionalID("stranger"), kgo.TransactionTimeout(10*time.Minute), kgo.DefaultProduceTopic("app-repartition-changelog"))
	if err := client.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	if err := client.ProduceSync(t.Context(), &kgo.Record{Partition: 2, Key: []byte("a row's key, 16b"), Value: []byte("?")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	i := b.start(cfg)
	const remaining = `oncebus_restore_remaining_records{partition="2",topic="app-repartition"}`
	b.wait("all tasks but one to run", func() bool {
		values := gather(t, i)
		return values[`oncebus_tasks{state="running"}`] == 3 && values[`oncebus_tasks{state="restoring"}`] == 1 && values[remaining] > 0
	})
	const reason = "task app-repartition/2 is restoring"
	b.wait("readiness to name the task", func() bool { err := i.Ready(); return err != nil && err.Error() == reason })
	if s := i.State(); s.Ready || s.Reason != reason || !s.BrokerUp || len(s.Tasks) != 4 || s.Tasks[2].State != "restoring" || s.Tasks[2].Store != nil || s.Tasks[2].NextOffset != -1 {
		t.Errorf("state %+v", s)
	}
	if err := client.EndTransaction(t.Context(), kgo.TryAbort); err != nil {
		t.Fatal(err)
	}
	b.ready(i)
	if s := i.State(); !s.Ready || s.Reason != "" || s.Tasks[2].State != "running" || s.Tasks[2].Store == nil {
		t.Errorf("state %+v", s)
	}
	if n := gather(t, i)[remaining]; n != 0 {
		t.Errorf("%s is %v after the restore", remaining, n)
	}
}

// TestNotReadyBeforeABrokerAnswers protects that readiness names the reason while no broker answers.
func TestNotReadyBeforeABrokerAnswers(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	p, err := processor.New(b.config("one"), b.routes, prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Ready(); err == nil || err.Error() != "no broker responds" {
		t.Errorf("ready before it ran: %v", err)
	}
	if s := p.State(); s.Ready || s.Reason != "no broker responds" || s.Tasks == nil || s.Workers == nil {
		t.Errorf("state %+v", s)
	}
}

// TestStateFieldsAreAnInterface protects the names of the fields of /state, because scripts read them.
func TestStateFieldsAreAnInterface(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	cfg := b.config("one")
	i := b.ready(b.start(cfg))
	text, err := json.Marshal(i.State())
	if err != nil {
		t.Fatal(err)
	}
	notReady, err := json.Marshal(processor.State{Reason: "x", Hold: &app.Hold{LimitMS: 1, Switch: "x", By: "x"}, TimeHeld: []app.HeldTime{{Routes: []string{"x"}, Since: time.UnixMilli(testTime)}}, Inputs: []processor.InputState{{}}})
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, b := range [][]byte{text, notReady} {
		var value any
		decoder := json.NewDecoder(bytes.NewReader(b))
		decoder.UseNumber()
		if err := decoder.Decode(&value); err != nil {
			t.Fatal(err)
		}
		fieldsOf(value, "", names)
	}
	golden.Assert(t, "state_fields.txt", strings.Join(slices.Sorted(maps.Keys(names)), "\n")+"\n")
}

// fieldsOf collects the paths of all members of a JSON value, with the kind of each.
func fieldsOf(value any, path string, names map[string]bool) {
	switch v := value.(type) {
	case map[string]any:
		for name, member := range v {
			fieldsOf(member, path+"."+name, names)
		}
	case []any:
		for _, element := range v {
			fieldsOf(element, path+"[]", names)
		}
	case json.Number:
		names[path+" number"] = true
	case nil: // an empty list, of a state without tasks
	default:
		names[fmt.Sprintf("%s %T", path, v)] = true
	}
}
