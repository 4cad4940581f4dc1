package judge

import (
	"log/slog"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/wire"
	"oncebus/state"
)

// trimmed returns a State with an empty store and one namespace of retention 1,200 ms.
func trimmed(t *testing.T) *State {
	t.Helper()
	host, err := state.NewHost(state.DefaultConfig(), prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	must(t, err)
	t.Cleanup(func() { must(t, host.Close()) })
	store, err := host.Open(t.TempDir(), []byte("x"))
	must(t, err)
	t.Cleanup(func() { must(t, store.Close()) })
	a := &app.App{Routes: []*app.Route{{Route: &rules.Route{Name: "r"}, NamespaceID: 3, Span: dedup.Window{Size: 500, Grace: 200}}}}
	return &State{ID: app.TaskID{Topic: "topic"}, Changelog: "changelog", App: a, Store: store}
}

// commit commits a transaction whose rows end below a changelog offset, at a stream time.
func (t *State) commit(tb testing.TB, offset, streamTime int64) {
	tb.Helper()
	t.Open = t.Committed
	t.Open.Ahead = slices.Clone(t.Open.Ahead)
	t.Open.StreamTimes.At[3], t.Open.StreamTimes.Has[3] = max(streamTime, t.Open.StreamTimes.At[3]), true
	t.Open.DropAhead()
	t.setFences()
	t.Committed = t.Open
	if err := t.Store.Apply(offset, t.Committed.Append(nil)); err != nil {
		tb.Fatal(err)
	}
}

// TestFloorFollowsStreamTime: a fence stands every twelfth of a retention, and the floor
// is less than a sixth behind the offset at which the oldest retained row lies.
func TestFloorFollowsStreamTime(t *testing.T) {
	s := trimmed(t)
	for at := range int64(5000) { // one row a ms, each in a transaction of its own
		s.commit(t, 10*(at+1), at)
		if behind := (at-1200)*10 - s.Committed.Floor; behind > 10*(1200/6) || s.Committed.Floor > max(0, 10*(at-1200)) {
			t.Fatalf("at %d the floor is %d, with fences %+v", at, s.Committed.Floor, s.Committed.Fences)
		}
	}
	if n := len(s.Committed.Fences); n < 11 || n > 14 {
		t.Errorf("%d fences: %+v", n, s.Committed.Fences)
	}
}

// TestClampedRowHoldsItsFence: the row of a clamped event lies ahead of stream time, and
// its fence is due only when the row expires.
func TestClampedRowHoldsItsFence(t *testing.T) {
	s := trimmed(t)
	s.commit(t, 10, 100)
	s.Committed.SetAhead(3, 2000) // its row is the one at offset 10
	s.commit(t, 20, 110)
	s.commit(t, 30, 120)
	for at := int64(130); at < 3200; at += 10 {
		s.commit(t, s.Store.Position()+10, at)
		if s.Committed.Floor > 10 {
			t.Fatalf("at %d the floor is %d", at, s.Committed.Floor)
		}
		if ahead := len(s.Committed.Ahead) > 0; ahead != (at < 2000) {
			t.Fatalf("at %d ahead of stream time are %v", at, s.Committed.Ahead)
		}
	}
	s.commit(t, s.Store.Position()+10, 3400)
	s.commit(t, s.Store.Position()+10, 3400)
	if s.Committed.Floor < 20 {
		t.Errorf("the row has expired, the floor is %d", s.Committed.Floor)
	}
}

// TestFencesAllocateNothing: a checkpoint without a new fence costs no memory.
func TestFencesAllocateNothing(t *testing.T) {
	s := trimmed(t)
	s.commit(t, 10, 100)
	s.commit(t, 20, 110)
	s.Open = s.Committed
	if n := testing.AllocsPerRun(100, func() {
		s.Open.Ahead = slices.Clone(s.Committed.Ahead)
		s.Open.DropAhead()
		s.setFences()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if !slices.EqualFunc(s.Open.Fences, s.Committed.Fences, func(a, b wire.Fence) bool { return a.Offset == b.Offset }) {
		t.Error("a fence was set")
	}
}
