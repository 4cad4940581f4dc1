package processor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"oncebus/processor/judge"
	"oncebus/processor/kafka"
	"oncebus/processor/restore"
	"oncebus/state"
)

// taskState is a task's place in its life:
//
//	created --> restoring <--> running
//	   \         ^    |           |
//	    \        |    v           |
//	     \       bypassing          |
//	      \__________|____________|____> closed
//
// There is one way back: boot, rebalance, abort and doubt all pass through
// restoring, which is nearly free when nothing is missing. A task is bypassing
// while its store cannot be used and its routes do not wait for it.
type taskState uint8

const (
	created taskState = iota
	restoring
	bypassing
	running
	closed
	taskStates
)

func (s taskState) String() string {
	return [...]string{"created", "restoring", "bypassing", "running", "closed"}[s]
}

var moves = [taskStates][]taskState{
	created:   {restoring, closed},
	restoring: {bypassing, running, closed},
	bypassing: {restoring, closed},
	running:   {restoring, closed},
}

// A task is one partition of a topic whose records are partitioned by dedup
// key, in this process: its judge, and what its life needs. It belongs to one
// worker's goroutine; while restoring, its store belongs to the restore.
type task struct {
	*judge.Judge

	state taskState
	// groupOffset is where the group says to go on, as far as we know.
	// groupCommitted says that the group has committed it; else it is the
	// pinned start.
	groupOffset    int64
	groupCommitted bool
	highWatermark  int64 // of the input partition, as last fetched; -1 before
	// stable says that no transaction was open in that fetch: what then
	// follows without a record are control records and aborted records.
	stable bool
	since  time.Time

	broken  error            // why the store cannot go on as it is
	restore *restore.Restore // while restoring or bypassing
	bypass  *restore.Bypass  // while restoring: the way without the store
	release func()           // gives the directory back; to be called once the store is closed
	life    *metrics
}

// to moves the task. An illegal move is our bug: stop, do not limp.
func (t *task) to(next taskState) {
	if !slices.Contains(moves[t.state], next) {
		panic(fmt.Errorf("%w: task %v: no move from %v to %v", kafka.ErrIllegalState, t.ID, t.state, next))
	}
	t.life.tasks.WithLabelValues(t.state.String()).Dec()
	if next != closed {
		t.life.tasks.WithLabelValues(next.String()).Inc()
	}
	t.state = next
	t.Blind = next == bypassing
	t.since = time.Now()
}

// close gives the store up. Rows not flushed yet come back from the changelog.
func (t *task) close() error {
	t.dropBypass()
	if t.restore != nil {
		t.restore.Stop()
		t.Store, t.restore = t.restore.Store, nil
	}
	t.to(closed)
	partition := strconv.Itoa(int(t.ID.Partition))
	t.life.lag.DeleteLabelValues(t.ID.Topic, partition)
	if t.Store == nil {
		return nil
	}
	defer t.release()
	err := t.Store.Close()
	t.Store = nil
	if err != nil && !errors.Is(err, state.ErrCorrupt) {
		return fmt.Errorf("close the store of %v: %w", t.ID, err)
	}
	return nil
}

// startRestore moves the task to restoring.
func (t *task) startRestore(ctx context.Context, src *restore.Source, finished func()) {
	if t.state != restoring {
		t.to(restoring)
	}
	t.restore = restore.Start(ctx, src, t.ID, t.Log, t.Store, t.broken, finished)
	t.Store, t.broken = nil, nil
}

func (t *task) showLag() {
	t.life.lag.WithLabelValues(t.ID.Topic, strconv.Itoa(int(t.ID.Partition))).Set(float64(t.lag()))
}

// lag is the number of input records after the last committed one.
func (t *task) lag() int64 {
	if t.highWatermark < 0 || t.Committed.Next < 0 {
		return -1
	}
	if t.stable && time.Since(t.since) >= idlePoll {
		return 0 // polls came back without records
	}
	return max(0, t.highWatermark-t.Committed.Next)
}
