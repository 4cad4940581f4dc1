package processor

import (
	"errors"
	"fmt"
	"log/slog"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/processor/app"
	"oncebus/processor/judge"
	"oncebus/processor/kafka"
	"oncebus/processor/wire"
	"oncebus/state"
)

// emptyStore opens an empty store.
func emptyStore(t *testing.T) *state.Store {
	t.Helper()
	host, err := state.NewHost(state.DefaultConfig(), prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	store, err := host.Open(t.TempDir(), []byte("x"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(store.Close(), host.Close()); err != nil {
			t.Error(err)
		}
	})
	return store
}

// TestRecordsOutliveATransactionThatPanics: franz-go reads them until its
// process is gone. One that could not be flushed is read, too.
func TestRecordsOutliveATransactionThatPanics(t *testing.T) {
	for name, c := range map[string]struct {
		end   func() error
		keeps bool
	}{
		"panic":       {func() error { panic("ours") }, true},
		"not flushed": {func() error { return kafka.AsCommitUnknown(fmt.Errorf("%w within 5s", errNotFlushed)) }, true},
		"aborted":     {func() error { return kafka.ErrMustAbort }, false},
		"committed":   {func() error { return nil }, false},
	} {
		x := &transactions{emitter: judge.NewEmitter(&app.App{}, nil), produced: newProduced(nil)}
		r := x.emitter.NewRecord()
		r.Topic = "signals.unique"
		func() {
			defer func() { _ = recover() }()
			_ = x.during(c.end)
		}()
		if kept := r.Topic != ""; kept != c.keeps {
			t.Errorf("%s: the records are kept: %v", name, kept)
		}
	}
}

// TestCheckpointsAloneCarryOffsetsToo: a transaction in which an idle task sweeps its
// changelog has no input, and has to be fenced like any other (invariant
// 5, hazard A7). A request without offsets, member or generation goes nowhere.
func TestCheckpointsAloneCarryOffsetsToo(t *testing.T) {
	id := app.TaskID{Topic: "app-repartition", Partition: 2}
	rt := &app.App{Topology: &app.Topology{Topics: map[string]app.Topic{}}}
	idle := &task{Judge: &judge.Judge{State: judge.State{ID: id, App: rt, Store: emptyStore(t), Log: slog.New(slog.DiscardHandler), Committed: wire.Checkpoint{Next: 7, Epoch: 3}}}, state: running}
	s := &taskSet{shared: &shared{rt: rt}, tasks: map[app.TaskID]*task{id: idle}}
	x := &transactions{shared: s.shared, tasks: s, oversized: newOversized()}
	member := func() *kmsg.TxnOffsetCommitRequest {
		req := kmsg.NewPtrTxnOffsetCommitRequest()
		req.MemberID, req.Generation = "member", 1
		return req
	}
	if err := x.guard(member()); err == nil {
		t.Error("a transaction without offsets may commit")
	}
	idle.StartSweep()
	if !s.due() {
		t.Fatal("the sweep is not due")
	}
	if err := s.joinSweep(nil); err != nil {
		t.Fatal(err)
	}
	req := member()
	if err := x.guard(req); err != nil {
		t.Fatal(err)
	}
	if len(req.Topics) != 1 || len(req.Topics[0].Partitions) != 1 {
		t.Fatalf("the request holds %+v", req.Topics)
	}
	if p := req.Topics[0].Partitions[0]; req.Topics[0].Topic != id.Topic || p.Partition != 2 || p.Offset != 7 || p.LeaderEpoch != 3 {
		t.Errorf("the request says %s %+v", req.Topics[0].Topic, p)
	}
	for name, unfenced := range map[string]func(*kmsg.TxnOffsetCommitRequest){
		"no member":     func(r *kmsg.TxnOffsetCommitRequest) { r.MemberID = "" },
		"no generation": func(r *kmsg.TxnOffsetCommitRequest) { r.Generation = -1 },
	} {
		req := member()
		unfenced(req)
		if err := x.guard(req); err == nil {
			t.Errorf("%s: a group would not fence this commit (B9)", name)
		}
	}
}
