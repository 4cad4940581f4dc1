package processor_test

import (
	"context"
	"fmt"
	"regexp"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor"
	"oncebus/processor/app"
	"oncebus/processor/move"
	"oncebus/processor/switchover"
)

// followers are processes that look at their group often.
type followers struct {
	*bench
	all     []*instance
	names   []string
	counted atomic.Int64 // steps in which a restore counted rows
}

// startFollowers starts processes.
func (b *bench) startFollowers(names ...string) *followers {
	b.t.Helper()
	f := &followers{bench: b, names: names}
	for _, name := range names {
		f.all = append(f.all, b.startWith(b.warmConfig(name), func(p *processor.Processor) {
			p.SetOwnersInterval(100 * time.Millisecond)
			p.SetCounting(func(context.Context) { f.counted.Add(1) })
		}))
	}
	for _, i := range f.all {
		b.ready(i)
	}
	return f
}

// followNext waits until processes follow the n new tasks of a generation, each task in one process, and have read
// what was copied. It returns the process that follows each task.
func (b *followers) followNext(generation int64, n int) (by map[string]string) {
	b.t.Helper()
	topic := app.RepartitionName("app", generation)
	b.wait("the processes to follow all new tasks", func() bool {
		followed := map[string]int64{}
		by = map[string]string{}
		for at, i := range b.all {
			for _, s := range i.State().Standbys {
				if _, twice := followed[s.Task]; twice {
					b.t.Fatalf("two processes follow %s", s.Task)
				}
				followed[s.Task], by[s.Task] = s.Position, b.names[at]
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
	return by
}

// restored matches the log line of a restore that ended.
var restored = regexp.MustCompile(`msg=restored instance=(\S+) worker=\S+ task=(\S+) from=\d+ to=\d+ rows=(\d+)`)

// moveFollowed moves the keys once the processes follow the new tasks. After the act, no process may read or count a
// copied row of a task that it has followed. If one process goes over before the other, the group at first gives the
// new tasks of both to that process and the old tasks of both to the other: the rows that they read for those tasks
// are left out here.
func (b *followers) moveFollowed(o move.Options) {
	b.t.Helper()
	o.StopBefore = switchover.Holding
	b.stopMove(o)
	followed := b.followNext(2, int(o.Partitions))
	before := len(b.logs.String())
	o.StopBefore = switchover.None
	b.move(o)
	for _, i := range b.all {
		b.awaitGeneration(i, 2)
	}
	b.wait("a share of the tasks for each process", func() bool {
		for _, i := range b.all {
			if len(i.State().Tasks) < int(o.Partitions)/len(b.all) || i.Ready() != nil {
				return false
			}
		}
		return true
	})
	taken := 0
	for _, line := range restored.FindAllStringSubmatch(b.logs.String()[before:], -1) {
		instance, task, rows := line[1], line[2], line[3]
		if followed[task] != instance {
			continue
		}
		delete(followed, task) // another process may have added rows when it gets the task again
		taken++
		if rows != "0" {
			b.t.Errorf("%s read %s rows of %s, which it had followed; want none", instance, rows, task)
		}
	}
	if taken == 0 || len(b.all) == 1 && taken != int(o.Partitions) {
		b.t.Errorf("%d of %d new tasks were restored by the process that had followed them", taken, o.Partitions)
	}
	if steps := b.counted.Load(); len(b.all) == 1 && steps > 0 {
		b.t.Errorf("the restores counted rows in %d steps, want none", steps)
	}
}

// liveKeys returns how many keys the tasks of all processes have in total.
func (b *followers) liveKeys() (n uint64) {
	for _, i := range b.all {
		for _, keys := range i.State().Keys {
			n += keys.Total
		}
	}
	return n
}

// TestNextTasksAreFollowed protects that, before a move acts, each process has read the copied rows of the tasks that
// it owns afterwards.
func TestNextTasksAreFollowed(t *testing.T) {
	t.Parallel()
	for _, names := range [][]string{{"one"}, {"one", "other"}} {
		t.Run(fmt.Sprint(names), func(t *testing.T) {
			b := newBench(t, benchRoutes).startFollowers(names...)
			const keys, tasks = 6000, 3 // so that a restore would count more than one step of rows
			b.produce(movedEvents(3, 0, keys)...)
			b.drain(b.all[0], "signals.raw")
			b.moveFollowed(move.Options{Partitions: tasks, Limit: time.Minute})
			if n := b.liveKeys(); n != keys {
				t.Errorf("the new tasks count %d keys, want %d", n, keys)
			}
			b.produce(movedEvents(4, 0, keys+100)...)
			b.drain(b.all[0], "signals.raw")
			b.checkOnce(keys + 100)
			b.wait("the count of all keys", func() bool { return b.liveKeys() == keys+100 })
			b.assertWhole(b.all[0])
		})
	}
}

// TestNextTasksOfARoutedTopicAreFollowed is TestNextTasksAreFollowed for the keys of a prepartitioned topic, in an
// app that has no other tasks.
func TestNextTasksOfARoutedTopicAreFollowed(t *testing.T) {
	t.Parallel()
	for _, names := range [][]string{{"one"}, {"one", "other"}} {
		t.Run(fmt.Sprint(names), func(t *testing.T) {
			bench := newBench(t, keyedRoutes)
			bench.createTopic("signals.raw", 4)
			b := bench.startFollowers(names...)
			b.produce(keyedEvents(1, 0, 500, 4)...)
			b.drain(b.all[0])
			b.useRoutes(routedRoutes)
			b.moveFollowed(move.Options{ToRouted: true, Partitions: 6, Limit: time.Minute})
			b.produce(keyedEvents(3, 0, 500, 4)...)
			b.drain(b.all[0], "signals.raw")
			b.checkOnce(500)
		})
	}
}

// TestNextTasksOfAnUndoneMoveAreLeft undoes a move and begins another to the same number of partitions. The tasks of
// the second move begin with its own copies, and not with those of the first.
func TestNextTasksOfAnUndoneMoveAreLeft(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes).startFollowers("one", "other")
	b.share(b.all[0], b.all[1])
	var records []*kgo.Record
	for n := range 2 {
		records = append(records, movedEvents(uint64(n), 200*n, 200)...)
		b.produce(movedEvents(uint64(n), 200*n, 200)...)
		b.drain(b.all[0], "signals.raw")
		o := move.Options{Partitions: 10, Limit: time.Minute, StopBefore: switchover.Holding}
		b.stopMove(o)
		b.followNext(int64(2+n), 10)
		if n == 0 {
			_, err := b.mover().Abort(t.Context(), "tester")
			must(t, err)
			b.wait("the standbys to end", func() bool { return len(b.all[0].State().Standbys)+len(b.all[1].State().Standbys) == 0 })
		}
	}
	b.move(move.Options{Partitions: 10, Limit: time.Minute})
	for _, i := range b.all {
		b.awaitGeneration(i, 3)
	}
	b.produce(records...)
	b.drain(b.all[0], "signals.raw")
	b.checkOnce(400)
	b.assertWhole(b.all[0])
}
