package processor

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"
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

// TestRecordsOutliveATransactionThatPanics protects that the emitter does not use the records of a transaction again
// after a panic, because franz-go reads them until its process is gone. The same holds for a transaction that could
// not be flushed.
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
		x := &transactions{shared: &shared{budget: kafka.NewBudget(0)}, emitter: judge.NewEmitter(&app.App{}, nil), produced: newProduced(nil, nil, 0)}
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

// TestRecordThatWasNeverPlacedIsWrittenNowhere covers a client that is closed while no broker answers: it fails
// records for which it has not chosen a partition. Their partition field still has the number by which the
// partitioner chooses, which is no partition.
func TestRecordThatWasNeverPlacedIsWrittenNowhere(t *testing.T) {
	refusing, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := refusing.Close(); err != nil {
		t.Fatal(err)
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(refusing.Addr().String()), kgo.RecordPartitioner(app.NewPartitioner(nil)))
	if err != nil {
		t.Fatal(err)
	}
	p := newProduced(client, &app.Topology{}, 0)
	failed := make(chan struct{}, 2)
	for _, number := range []int32{17, 1023} {
		client.Produce(t.Context(), &kgo.Record{Topic: "signals.unique", Partition: number}, func(r *kgo.Record, err error) {
			p.promise(r, err)
			failed <- struct{}{}
		})
	}
	client.Close()
	<-failed
	<-failed
	if written := p.written.take(); len(written) > 0 {
		t.Errorf("written to %v", written)
	}
	if err := p.err(); err == nil || !strings.HasPrefix(err.Error(), "produce to signals.unique: ") {
		t.Errorf("the error is %v", err)
	}
}

// TestCheckpointsAloneCarryOffsetsToo protects that a transaction in which an idle task sweeps its changelog, and
// which has no input, is fenced like any other (invariant 5, hazard A7). A request without offsets, member or
// generation is never sent.
func TestCheckpointsAloneCarryOffsetsToo(t *testing.T) {
	id := app.TaskID{Topic: "app-repartition", Partition: 2}
	rt := &app.App{Topology: &app.Topology{Topics: map[string]app.Topic{}}, Clock: app.NewBrokerClock()}
	idle := &task{Judge: &judge.Judge{State: judge.State{ID: id, App: rt, Store: emptyStore(t), Log: slog.New(slog.DiscardHandler), Committed: wire.Checkpoint{Next: 7, Epoch: 3}}}, state: running}
	s := &taskSet{shared: &shared{}, edition: &edition{rt: rt}, tasks: map[app.TaskID]*task{id: idle}}
	x := &transactions{shared: s.shared, edition: s.edition, tasks: s, oversized: newOversized(), member: &membership{id: "member"}}
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
		"other member":  func(r *kmsg.TxnOffsetCommitRequest) { r.MemberID = "member taken back" },
		"no generation": func(r *kmsg.TxnOffsetCommitRequest) { r.Generation = -1 },
	} {
		req := member()
		unfenced(req)
		if err := x.guard(req); err == nil {
			t.Errorf("%s: a group would not fence this commit (B9)", name)
		}
	}
}

// TestBoundFollowsTimeouts plays transactions whose duration depends on their size. It expects that they commit, and
// that their size comes close to what the timeout allows.
func TestBoundFollowsTimeouts(t *testing.T) {
	const timeout = 15 * time.Second
	for name, c := range map[string]struct {
		took     func(records int) time.Duration
		min, max int // of the bound, in the end
		failures int // at most, in 400 transactions
	}{
		"fast":                 {func(int) time.Duration { return time.Second }, transactionRecordsMax, transactionRecordsMax, 0},
		"a millisecond each":   {func(n int) time.Duration { return time.Duration(n) * time.Millisecond }, 5_000, 15_000, 40},
		"a second each":        {func(n int) time.Duration { return time.Duration(n) * time.Second }, 3, 15, 45},
		"14 seconds each":      {func(n int) time.Duration { return time.Duration(n) * 14 * time.Second }, 1, 2, 45},
		"10 seconds, any size": {func(int) time.Duration { return 10 * time.Second }, transactionRecordsMax, transactionRecordsMax, 0},
	} {
		b := newTransactionBound(timeout, prometheus.NewGauge(prometheus.GaugeOpts{Name: "bound"}))
		failures, inRow := 0, 0
		for range 400 {
			n := b.records
			took := c.took(n)
			if took < timeout {
				b.committed(took)
				inRow = 0
				continue
			}
			failures++
			if inRow++; inRow > 8 {
				t.Fatalf("%s: %d timeouts in a row, the bound is %d", name, inRow, b.records)
			}
			if !b.failed(n, took) || b.records >= n && n > 1 {
				t.Fatalf("%s: after a timeout with %d records the bound is %d", name, n, b.records)
			}
		}
		if b.records < c.min || b.records > c.max || failures > c.failures {
			t.Errorf("%s: the bound is %d after %d timeouts, want %d to %d after at most %d", name, b.records, failures, c.min, c.max, c.failures)
		}
	}
}

// TestBoundGrowsBackAfterSlowBrokers protects that brokers which need two thirds of the timeout for any transaction
// do not keep the bound at one record.
func TestBoundGrowsBackAfterSlowBrokers(t *testing.T) {
	b := newTransactionBound(15*time.Second, prometheus.NewGauge(prometheus.GaugeOpts{Name: "bound"}))
	for b.records > 1 {
		b.failed(b.records, 15*time.Second)
	}
	if b.failed(1, time.Second) || b.failed(0, time.Minute) {
		t.Error("an abort before the timeout, or without records, counts as a timeout")
	}
	for n := 0; b.records < 1000; n++ {
		if n > 500 {
			t.Fatalf("the bound is %d after %d commits", b.records, n)
		}
		b.committed(12 * time.Second)
	}
	for range 7 {
		b.committed(time.Second)
	}
	if b.records != transactionRecordsMax {
		t.Errorf("the bound is %d after fast commits, want %d", b.records, transactionRecordsMax)
	}
}
