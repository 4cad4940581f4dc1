package judge_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/wire"
)

// foldRun is a random run of one task. The test folds the task's checkpoints after each transaction.
type foldRun struct {
	*world
	rand *rand.Rand
	full *app.App // with all routes
	sets []*rules.Routes
	next int // number of the next event
	// pace is the largest number of ms between two transactions.
	pace int64
	// stored has copies of local stores as they were after some transactions.
	stored []storedCheckpoint
}

// storedCheckpoint is what a local store knows of checkpoints, with its position.
type storedCheckpoint struct {
	position int64
	bytes    []byte
}

func newFoldRun(t *testing.T, seed uint64) *foldRun {
	r := &foldRun{world: newWorld(t), rand: rand.New(rand.NewPCG(seed, 0)), pace: 30_000}
	if seed%2 == 1 { // the floor moves past many checkpoints at once
		r.pace = 500_000
	}
	for _, names := range [][]string{{"a", "b", "c", "d"}, {"a", "c"}, {"d"}} {
		var text strings.Builder
		text.WriteString("routes:\n")
		for _, name := range names {
			fmt.Fprintf(&text, "  - {name: %s, topics: [%s.raw], key: [{field: id}], window: 10m, grace: 1m, output: unique, dead_letter: dead}\n", name, name)
		}
		routes, err := rules.ParseRoutes("routes.yaml", []byte(text.String()))
		must(t, err)
		r.sets = append(r.sets, routes)
	}
	r.nextRoutes, r.now = r.sets[0], 1_700_000_000_000
	r.start()
	r.full = r.app
	return r
}

// step produces some events, and ends or aborts a transaction.
func (r *foldRun) step() {
	r.held = true
	for range 1 + r.rand.IntN(5) {
		route := r.routes.Routes[r.rand.IntN(len(r.routes.Routes))]
		at := r.now - r.rand.Int64N(5*60_000) + r.rand.Int64N(60_000)
		r.produce(&kgo.Record{Topic: route.Topics[0], Timestamp: time.UnixMilli(at), Value: fmt.Appendf(nil, `{"id":"%d"}`, r.next-r.rand.IntN(min(r.next, 50)+1))})
		r.next++
	}
	switch r.rand.IntN(8) {
	case 0: // before the checkpoint
		r.judge()
		r.abort()
	case 1: // after it
		r.judge()
		for _, t := range r.sorted() {
			if t.InTransaction {
				t.WriteCheckpoint(r.emitter)
			}
		}
		r.abort()
	}
	r.run()
	r.now += r.rand.Int64N(r.pace)
	switch r.rand.IntN(40) {
	case 0:
		r.restart(false)
	case 1:
		r.restart(true)
	case 2:
		r.nextRoutes = r.sets[r.rand.IntN(len(r.sets))]
		r.restart(false)
	}
}

// changelog returns the records of the task's changelog.
func (r *foldRun) changelog() []*kgo.Record {
	return r.logOf[place(r.app.ChangelogOf(r.app.Topology.Repartition), 0)]
}

// canonical returns a checkpoint without its counts, and the counts of all routes as text.
func (r *foldRun) canonical(f *wire.Fold) (wire.Checkpoint, string) {
	r.t.Helper()
	if !f.IsWhole() {
		r.t.Fatal("a partial checkpoint is relative to a missing one")
	}
	c, counts := f.Newest(), app.NewCounts(r.full)
	_, err := counts.Decode(&c, 0)
	must(r.t, err)
	c.Counts = ""
	return c, counts.Encode()
}

// assertSame compares a fold with the state of the task.
func (r *foldRun) assertSame(name string, f *wire.Fold) {
	r.t.Helper()
	task := r.task(app.TaskID{Topic: r.app.Topology.Repartition, Partition: 0})
	whole := task.Committed
	whole.Counts, whole.Counted = task.Counts.Encode(), true
	var state wire.Fold
	must(r.t, state.Add(0, whole.Append(nil)))
	want, wantCounts := r.canonical(&state)
	if got, counts := r.canonical(f); !reflect.DeepEqual(got, want) || counts != wantCounts {
		r.t.Fatalf("%s: folded to %+v with counts %x, the state is %+v with %x", name, got, counts, want, wantCounts)
	}
	open := task.OpenCounts.Encode()
	if open != task.Counts.Encode() {
		r.t.Fatalf("%s: between transactions the open counts are %x, the committed ones %x", name, open, task.Counts.Encode())
	}
}

// foldLog adds to a fold the checkpoints of a changelog from an offset on.
func (r *foldRun) foldLog(f *wire.Fold, from int64, log []*kgo.Record) *wire.Fold {
	for _, rec := range log {
		if number, ok := wire.CheckpointNumber(rec.Key); ok && rec.Offset >= from {
			must(r.t, f.Add(number, rec.Value))
		}
	}
	return f
}

// compacted returns a changelog of which the log cleaner has compacted the records below an offset: of these records
// only the newest of each key is left.
func compacted(log []*kgo.Record, below int) (left []*kgo.Record) {
	newest := map[string]int64{}
	for _, rec := range log[:below] {
		newest[string(rec.Key)] = rec.Offset
	}
	for i, rec := range log {
		if i >= below || newest[string(rec.Key)] == rec.Offset {
			left = append(left, rec)
		}
	}
	return left
}

// TestFoldIsTheState protects that the checkpoints of the changelog fold to the state of the task, whatever aborts,
// restarts, rebuilds and route changes come between, and that the checkpoints of the local store do so, too. The same
// must hold after compaction of any part of the changelog, from any older local store on, and from the floor on.
func TestFoldIsTheState(t *testing.T) {
	partial, floors := 0, map[int64]bool{}
	for seed := range uint64(4) {
		r := newFoldRun(t, seed)
		for n := range 150 {
			r.step()
			log := r.changelog()
			if len(log) == 0 {
				continue
			}
			r.assertSame("changelog", r.foldLog(&wire.Fold{}, 0, log))
			task := r.task(app.TaskID{Topic: r.app.Topology.Repartition, Partition: 0})
			stored, err := wire.ReadStored(task.store.Checkpoint())
			must(t, err)
			r.assertSame("local store", &stored)
			floors[task.Committed.Floor] = true
			r.assertSame("trimmed changelog", r.foldLog(&wire.Fold{}, task.TrimTo(), log))
			r.assertSame("changelog from its floor on", r.foldLog(&wire.Fold{}, task.Committed.Floor, log))
			if n%20 == 0 {
				r.stored = append(r.stored, storedCheckpoint{task.store.Position(), task.store.Checkpoint()})
			}
			left := compacted(log, r.rand.IntN(len(log)+1))
			r.assertSame("compacted changelog", r.foldLog(&wire.Fold{}, 0, left))
			old := r.stored[r.rand.IntN(len(r.stored))]
			base, err := wire.ReadStored(old.bytes)
			must(t, err)
			r.assertSame("compacted changelog after an old store", r.foldLog(&base, old.position, left))
		}
		partial += len(slices.DeleteFunc(r.changelog(), func(rec *kgo.Record) bool {
			number, ok := wire.CheckpointNumber(rec.Key)
			return !ok || number == 0
		}))
	}
	if partial < 100 || len(floors) < 5 {
		t.Errorf("the runs have %d partial checkpoints and %d floors: too few to show anything", partial, len(floors))
	}
}

// TestRestoreThatEndsDuringABypass covers a restore that ends while its task bypasses the store: the restore stores
// what it read. The task writes more to the changelog, which the next restore adds to the store.
func TestRestoreThatEndsDuringABypass(t *testing.T) {
	r := &foldRun{world: newWorld(t)}
	routes, err := rules.ParseRoutes("routes.yaml", []byte(`routes:
  - {name: a, topics: [a.raw], key: [{field: id}], window: 10m, output: unique, dead_letter: dead, on_state_failure: fail_open}
`))
	must(t, err)
	r.nextRoutes, r.now = routes, 1_700_000_000_000
	r.start()
	r.full = r.app
	task := r.task(app.TaskID{Topic: r.app.Topology.Repartition, Partition: 0})
	transactions := func(n int) {
		for range n {
			r.next++
			r.now += 1000
			r.produce(&kgo.Record{Topic: "a.raw", Timestamp: time.UnixMilli(r.now), Value: fmt.Appendf(nil, `{"id":"%d"}`, r.next)})
			r.run()
		}
	}
	transactions(3)
	r.lose(task)
	transactions(3)
	log := r.changelog()
	ended := r.foldLog(&wire.Fold{}, 0, log)
	read := ended.Newest()
	must(t, task.store.Apply(int64(len(log)), read.Stored()))
	transactions(3)

	stored, err := wire.ReadStored(task.store.Checkpoint())
	must(t, err)
	next := r.foldLog(&stored, task.store.Position(), r.changelog())
	r.canonical(next) // it must be whole
	if c := next.Newest(); c.Sequence != read.Sequence+3 || !reflect.DeepEqual(c.StreamTimes, task.Committed.StreamTimes) {
		t.Errorf("the second restore has transaction %d with %v, the task %d with %v", c.Sequence, c.StreamTimes, task.Committed.Sequence, task.Committed.StreamTimes)
	}
}
