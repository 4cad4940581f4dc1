package processor_test

import (
	"context"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor"
	"oncebus/processor/app"
	"oncebus/processor/move"
	"oncebus/processor/switchover"
)

// startFollowing starts two processes that look at the group often, and never have to count the
// rows of a store.
func (b *bench) startFollowing() (both []*instance) {
	b.t.Helper()
	for _, name := range []string{"one", "other"} {
		both = append(both, b.startWith(b.warmConfig(name), func(p *processor.Processor) {
			p.SetOwnersInterval(100 * time.Millisecond)
			p.SetCounting(func(context.Context) { b.t.Error("a restore counts rows") })
		}))
	}
	for _, i := range both {
		b.ready(i)
	}
	return both
}

// followNext waits until processes follow the new tasks of a generation, n in all, each one
// task once, and have read what was copied.
func (b *bench) followNext(both []*instance, generation int64, n int) {
	b.t.Helper()
	topic := app.RepartitionName("app", generation)
	b.wait("the processes to follow all new tasks", func() bool {
		followed := map[string]int64{}
		for _, i := range both {
			for _, s := range i.State().Standbys {
				if _, twice := followed[s.Task]; twice {
					b.t.Fatalf("two processes follow %s", s.Task)
				}
				followed[s.Task] = s.Position
			}
		}
		ends := b.ends(topic + "-changelog")
		for p := range int32(n) {
			end, ok := ends.Lookup(topic+"-changelog", p)
			if position, follows := followed[app.TaskID{Topic: topic, Partition: p}.String()]; !ok || !follows || position < end.At {
				return false
			}
		}
		return len(followed) == n
	})
}

// moveFollowed moves the keys once the processes follow the new tasks. None of them reads a
// copied row after the act, and each task has its owner.
func (b *bench) moveFollowed(both []*instance, o move.Options) {
	b.t.Helper()
	o.StopBefore = switchover.Holding
	b.stopMove(o)
	b.followNext(both, 2, int(o.Partitions))
	before := []map[string]float64{gather(b.t, both[0]), gather(b.t, both[1])}
	o.StopBefore = switchover.None
	b.move(o)
	warm := 0.0
	for n, i := range both {
		b.awaitGeneration(i, 2)
		after := gather(b.t, i)
		if rows := after["oncebus_restored_rows_total"] - before[n]["oncebus_restored_rows_total"]; rows != 0 {
			b.t.Errorf("process %d read %v rows of new tasks after the act, want none", n, rows)
		}
		const series = `oncebus_restores_total{local_state="warm"}`
		warm += after[series] - before[n][series]
	}
	if warm != float64(o.Partitions) {
		b.t.Errorf("%v new tasks had local rows, want %d", warm, o.Partitions)
	}
}

// liveKeys returns how many keys the tasks of processes have.
func (b *bench) liveKeys(both []*instance) (n uint64) {
	for _, i := range both {
		for _, keys := range i.State().Keys {
			n += keys.Total
		}
	}
	return n
}

// TestNextTasksAreFollowed: before a move acts, each process has read the copied rows of the
// tasks that it then owns.
func TestNextTasksAreFollowed(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	both := b.startFollowing()
	b.share(both[0], both[1])
	const keys, tasks = 6000, 3 // so that a restore would count more than one step of rows
	b.produce(movedEvents(3, 0, keys)...)
	b.drain(both[0], "signals.raw")
	b.moveFollowed(both, move.Options{Partitions: tasks, Limit: time.Minute})
	if n := b.liveKeys(both); n != keys {
		t.Errorf("the new tasks count %d keys, want %d", n, keys)
	}
	b.produce(movedEvents(4, 0, keys+100)...)
	b.drain(both[0], "signals.raw")
	b.checkOnce(keys + 100)
	b.wait("the count of all keys", func() bool { return b.liveKeys(both) == keys+100 })
	b.assertWhole(both[0])
}

// TestNextTasksOfARoutedTopicAreFollowed is the same for the keys of a prepartitioned topic, in
// an app that has no other tasks.
func TestNextTasksOfARoutedTopicAreFollowed(t *testing.T) {
	t.Parallel()
	b := newBench(t, keyedRoutes)
	b.createTopic("signals.raw", 4)
	both := b.startFollowing()
	b.produce(keyedEvents(1, 0, 500, 4)...)
	b.drain(both[0])
	b.useRoutes(routedRoutes)
	b.moveFollowed(both, move.Options{ToRouted: true, Partitions: 6, Limit: time.Minute})
	b.produce(keyedEvents(3, 0, 500, 4)...)
	b.drain(both[0], "signals.raw")
	b.checkOnce(500)
}

// TestNextTasksOfAnUndoneMoveAreLeft: a move is undone, and another one to the same number of
// partitions begins. Its tasks begin with its own copies.
func TestNextTasksOfAnUndoneMoveAreLeft(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	both := b.startFollowing()
	b.share(both[0], both[1])
	var records []*kgo.Record
	for n := range 2 {
		records = append(records, movedEvents(uint64(n), 200*n, 200)...)
		b.produce(movedEvents(uint64(n), 200*n, 200)...)
		b.drain(both[0], "signals.raw")
		o := move.Options{Partitions: 10, Limit: time.Minute, StopBefore: switchover.Holding}
		b.stopMove(o)
		b.followNext(both, int64(2+n), 10)
		if n == 0 {
			_, err := b.mover().Abort(t.Context(), "tester")
			must(t, err)
			b.wait("the standbys to end", func() bool { return len(both[0].State().Standbys)+len(both[1].State().Standbys) == 0 })
		}
	}
	b.move(move.Options{Partitions: 10, Limit: time.Minute})
	for _, i := range both {
		b.awaitGeneration(i, 3)
	}
	b.produce(records...)
	b.drain(both[0], "signals.raw")
	b.checkOnce(400)
	b.assertWhole(both[0])
}
