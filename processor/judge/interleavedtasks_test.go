package judge_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/app"
	"oncebus/processor/judge"
	"oncebus/processor/restore"
	"oncebus/processor/wire"
	"oncebus/state"
)

// interleavedTask is a task of the repartition topic, with the state that its worker keeps, and its changelog.
type interleavedTask struct {
	*judge.Judge

	x         *interleaving
	store     *state.Store
	stores    int // opened so far
	judging   *judge.Judging
	sent      []*kgo.Record // of the open transaction
	outcomes  []outcome     // of the open transaction
	fetched   int64         // offset to judge next
	changelog []*kgo.Record
	trimmed   int64 // no record below is left
}

// outcome is the verdict of an event.
type outcome struct {
	number  int
	verdict string
}

// cameOut is the outcome of an event that is in the output.
const cameOut = "out"

func (x *interleaving) newTask(partition int) *interleavedTask {
	k := &interleavedTask{x: x}
	k.Judge = &judge.Judge{}
	k.ID = app.TaskID{Topic: x.apps.tasks.Topology.Repartition, Partition: int32(partition)}
	k.open()
	k.begin()
	return k
}

// open opens the store of the newest directory.
func (k *interleavedTask) open() {
	var err error
	dir := filepath.Join(k.x.apps.dir, fmt.Sprint(k.x.number, "-", k.ID.Partition, "-", k.stores))
	k.store, err = k.x.apps.host.Open(dir, []byte(k.ID.String()))
	must(k.x.t, err)
}

// begin begins a life of the task: the task reads the changelog from the store's position to its end.
func (k *interleavedTask) begin() {
	rt := k.x.apps.tasks
	t := &judge.Judge{Repartitioned: true, Metrics: k.x.apps.metrics}
	t.ID, t.App, t.Changelog, t.Store = k.ID, rt, rt.ChangelogOf(k.ID.Topic), k.store
	t.Log, t.StartedAt, t.SweepAfter = slog.New(slog.DiscardHandler), k.x.now, k.x.sweepAfter
	k.Judge, k.sent, k.outcomes = t, nil, nil
	emitter := judge.NewEmitter(rt, k.send)
	k.judging = &judge.Judging{Emitter: emitter, Keys: judge.NewKeys(k.x.logs.routes.NewDeriver(nil), k.x.apps.metrics), Shadows: judge.NewShadows(rt, nil)}
	newest, err := wire.ReadStored(k.store.Checkpoint())
	must(k.x.t, err)
	for _, rec := range k.changelog[max(k.store.Position(), k.trimmed):] {
		if number, ok := wire.CheckpointNumber(rec.Key); ok {
			must(k.x.t, newest.Add(number, rec.Value))
			continue
		}
		if string(rec.Key) == commitMarker {
			continue
		}
		for row, err := range wire.RowsOf(rec) {
			must(k.x.t, err)
			k.store.Put(*row)
		}
	}
	if newest.Has() && !newest.IsWhole() {
		k.x.t.Fatal("a partial checkpoint of the changelog is relative to a missing one")
	}
	c := wire.Checkpoint{Epoch: -1}
	if newest.Has() {
		c = newest.Newest()
	}
	t.GoOn(&c)
	if len(k.changelog) > 0 {
		must(k.x.t, k.store.Apply(int64(len(k.changelog)), t.Committed.Stored()))
	}
	t.Counts, err = restore.CountKeys(context.Background(), rt, &t.Committed, t.Store)
	must(k.x.t, err)
	t.OpenCounts = t.Counts.Open(rt)
	k.fetched = t.Committed.Next
}

// send adds a record to the open transaction.
func (k *interleavedTask) send(rec *kgo.Record) error {
	k.sent = append(k.sent, rec)
	switch {
	case rec.Topic == k.Changelog:
		return nil
	case rec.Topic == "unique":
		k.outcomes = append(k.outcomes, outcome{numberOf(k.x, rec.Value), cameOut})
		return nil
	}
	verdict, _ := (*wire.Headers)(&rec.Headers).Header(wire.HeaderVerdict)
	k.outcomes = append(k.outcomes, outcome{numberOf(k.x, rec.Value), string(verdict)})
	return nil
}

// numberOf returns the number of the event that has this value.
func numberOf(x *interleaving, value []byte) int {
	var of struct{ N int }
	must(x.t, json.Unmarshal(value, &of))
	return of.N
}

// judge judges up to n records.
func (k *interleavedTask) judge(n int) {
	var records []*kgo.Record
	log := k.x.logOf[k.ID.Partition]
	for ; n > 0 && k.fetched < int64(len(log)); k.fetched++ {
		rec := &log[k.fetched]
		if rec.of != nil && !rec.of.ended {
			break
		}
		if rec.of != nil && rec.of.aborted {
			continue
		}
		records = append(records, rec.Record)
		n--
	}
	if len(records) == 0 {
		return
	}
	k.App.Clock.Set(k.x.now)
	must(k.x.t, k.Process(k.judging, records))
}

// commit commits the open transaction, and then deletes everything below the floor of the changelog.
func (k *interleavedTask) commit() {
	if !k.InTransaction {
		return
	}
	must(k.x.t, k.Sweep(k.judging.Emitter))
	k.WriteCheckpoint(k.judging.Emitter)
	for _, rec := range k.sent {
		if rec.Topic != k.Changelog {
			continue
		}
		rec.Offset = int64(len(k.changelog))
		k.changelog = append(k.changelog, &kgo.Record{
			Topic: rec.Topic, Partition: rec.Partition, Offset: rec.Offset, Key: slices.Clone(rec.Key), Value: slices.Clone(rec.Value),
		})
	}
	k.changelog = append(k.changelog, &kgo.Record{Key: []byte(commitMarker), Offset: int64(len(k.changelog))})
	must(k.x.t, k.Commit())
	for _, o := range k.outcomes {
		k.x.verdicts[o.number] = append(k.x.verdicts[o.number], o.verdict)
	}
	k.sent, k.outcomes = nil, nil
	k.judging.Reset()
	if k.x.rng.IntN(2) == 0 {
		k.trimmed = max(k.trimmed, k.TrimTo())
	}
}

// abort aborts the open transaction, so that the task judges its records again.
func (k *interleavedTask) abort() {
	k.sent, k.outcomes = nil, nil
	k.judging.Reset()
	k.Discard()
	k.fetched = k.Committed.Next
}

// restart ends the life of the task without committing its open transaction, and begins another life.
func (k *interleavedTask) restart() {
	k.store.Discard()
	k.begin()
}

// rebuild restarts the task without its local state.
func (k *interleavedTask) rebuild() {
	must(k.x.t, k.store.Abandon())
	k.stores++
	k.open()
	k.begin()
}

// reopen restarts the task with the local state in its files.
func (k *interleavedTask) reopen() {
	k.store.Discard()
	must(k.x.t, k.store.Close())
	k.open()
	k.begin()
}

// progress describes what the task knows, for the account of a failure.
func (k *interleavedTask) progress() string {
	var b strings.Builder
	for _, s := range k.Committed.Sources {
		fmt.Fprintf(&b, "  task %d, namespace %d: time %s, highest %s\n", k.ID.Partition, s.NamespaceID, span(k.Committed.StreamTimes.Of(s.NamespaceID)), span(s.Highest))
	}
	return b.String()
}
