package judge

import (
	"bytes"
	"log/slog"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"

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
	a := &app.App{Clock: app.NewBrokerClock(), Routes: []*app.Route{{Route: &rules.Route{Name: "r"}, NamespaceID: 3, Span: dedup.Window{Size: 500, Grace: 200}}}}
	return &State{ID: app.TaskID{Topic: "topic"}, Changelog: "changelog", App: a, Store: store}
}

// commit commits a transaction at a stream time, whose rows end below a changelog offset.
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

// TestFloorFollowsStreamTime protects that a fence is set every twelfth of a retention, and that the floor is less
// than a sixth of the retention behind the offset of the oldest retained row.
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

// TestClampedRowHoldsItsFence covers the row of a clamped event, which is ahead of stream time: its fence is due only
// when the row expires.
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

// TestFencesAllocateNothing protects that a checkpoint without a new fence costs no memory.
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

// changelogOf has the committed records of a State whose transactions are committed without a broker.
type changelogOf struct {
	*State
	emitter *Emitter
	open    []*kgo.Record
	all     []*kgo.Record           // committed
	rows    map[dedup.Digest][]byte // newest value at or above from
	from    int64
	end     int64
}

// endTransaction commits or aborts the transaction, which includes a chunk of a sweep.
func (l *changelogOf) endTransaction(t *testing.T, commit bool) {
	t.Helper()
	must(t, l.Sweep(l.emitter))
	l.WriteCheckpoint(l.emitter)
	for _, r := range l.open {
		r.Offset = l.end
		l.end++
		if commit {
			l.all = append(l.all, &kgo.Record{Offset: r.Offset, Key: slices.Clone(r.Key), Value: slices.Clone(r.Value), Headers: r.Headers})
		}
		if !commit || wire.IsCheckpoint(r.Key) || r.Offset < l.from {
			continue
		}
		for row, err := range wire.RowsOf(r) {
			must(t, err)
			l.rows[row.Digest] = row.AppendValue(nil)
		}
	}
	l.end++ // the control record
	if commit {
		must(t, l.Commit())
	} else {
		l.Discard()
	}
	l.open = nil
	l.emitter.Reset()
}

// write stores a row in the open transaction.
func (l *changelogOf) write(row *dedup.Row) {
	l.put(l.emitter, &change{row: row})
}

// TestSweepSurvivesAborts sweeps a store in several chunks while other rows are written, and aborts half of the
// transactions. At the end the changelog from the floor on must have the current row of each live key, and no dead
// row.
func TestSweepSurvivesAborts(t *testing.T) {
	t.Run("single rows", func(t *testing.T) { sweepSurvivesAborts(t, false) })
	t.Run("packed rows", func(t *testing.T) { sweepSurvivesAborts(t, true) })
}

func sweepSurvivesAborts(t *testing.T, packed bool) {
	s := trimmed(t)
	s.App.Packed[3] = packed
	s.Log = slog.New(slog.DiscardHandler)
	s.App.Limits.Store(&map[string]app.TopicLimits{"changelog": {MaxBytes: 1 << 20}})
	rng := rand.New(rand.NewPCG(12, 1))
	row := func(first int64) *dedup.Row {
		r := &dedup.Row{First: first, NamespaceID: 3, At: dedup.Position{Offset: rng.Int64N(1 << 40)}}
		for i := range r.Digest {
			r.Digest[i] = byte(rng.Uint32())
		}
		return r
	}
	live, dead := map[dedup.Digest]*dedup.Row{}, map[dedup.Digest]bool{}
	for n := range 3 * sweepRowsMax {
		r := row(int64(n % 2 * 5000))
		s.Store.Put(*r)
		if r.First == 0 {
			dead[r.Digest] = true
		} else {
			live[r.Digest] = r
		}
	}
	s.commit(t, 100, 5500) // the rows of 0 ms are dead
	s.commit(t, 200, 5500)
	l := &changelogOf{State: s, rows: map[dedup.Digest][]byte{}, from: 200, end: 200}
	l.emitter = NewEmitter(s.App, func(r *kgo.Record) error { l.open = append(l.open, r); return nil })
	s.StartSweep()
	chunks := 0
	for ; s.Sweeping(); chunks++ {
		s.JoinTransaction()
		commit := rng.IntN(2) == 0
		for _, old := range live { // a duplicate after its window replaces the row
			changed := *old
			changed.At.Offset++ // as often as it is written
			l.write(&changed)
			if commit {
				live[old.Digest] = &changed
			}
			break
		}
		l.endTransaction(t, commit)
	}
	if chunks < 2 || s.Committed.Floor != 200 {
		t.Errorf("%d transactions, floor %d", chunks, s.Committed.Floor)
	}
	for d, r := range live {
		if got := l.rows[d]; !bytes.Equal(got, r.AppendValue(nil)) {
			t.Fatalf("key %v has the row %x, want %x", d, got, r.AppendValue(nil))
		}
	}
	for d := range l.rows {
		if dead[d] {
			t.Fatalf("the dead row of %v was written", d)
		}
	}
}

// TestSweepRefusesARowThatIsTooLong covers a row that the changelog does not accept: a transaction with such a row
// would abort for ever.
func TestSweepRefusesARowThatIsTooLong(t *testing.T) {
	s := trimmed(t)
	s.Log = slog.New(slog.DiscardHandler)
	s.App.Limits.Store(&map[string]app.TopicLimits{"changelog": {MaxBytes: 1000}})
	s.Store.Put(dedup.Row{NamespaceID: 3, First: 100, Result: make([]byte, 1000), HasResult: true})
	s.commit(t, 10, 100)
	l := &changelogOf{State: s, rows: map[dedup.Digest][]byte{}, from: 10, end: 10}
	l.emitter = NewEmitter(s.App, func(r *kgo.Record) error { l.open = append(l.open, r); return nil })
	s.StartSweep()
	s.JoinTransaction()
	l.endTransaction(t, true)
	if s.Sweeping() || len(l.rows) != 0 || s.Committed.Floor != 0 {
		t.Errorf("sweeping %v, %d rows, floor %d", s.Sweeping(), len(l.rows), s.Committed.Floor)
	}
}

// TestLongChangelogIsSwept protects that a sweep starts when the changelog has four rows for each row of the store,
// and SweepAfter more. Rows below the floor do not count.
func TestLongChangelogIsSwept(t *testing.T) {
	s := trimmed(t)
	s.Log = slog.New(slog.DiscardHandler)
	for n := range 10 {
		s.Store.Put(dedup.Row{Digest: dedup.Digest{byte(n)}, NamespaceID: 9, First: 100})
	}
	s.commit(t, 10, 100)
	for _, c := range []struct {
		rows   int64
		sweeps bool
	}{{SweepAfter + 40 + 7, false}, {SweepAfter + 41 + 7, true}} {
		s.Committed.Rows, s.Committed.FloorRows = c.rows, 7
		s.commit(t, s.Store.Position()+1, 100)
		if s.sweepIfLong(); s.Sweeping() != c.sweeps {
			t.Errorf("at %d rows sweeping is %v", c.rows, !c.sweeps)
		}
	}
}
