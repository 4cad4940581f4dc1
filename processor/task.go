package processor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/app"
	"oncebus/processor/judge"
	"oncebus/processor/kafka"
	"oncebus/processor/restore"
	"oncebus/state"
)

// taskState is a state of a task. These are the moves between the states:
//
//	created   -> restoring
//	restoring -> running, or bypassing
//	running   -> restoring, or waiting
//	bypassing -> restoring
//	waiting   -> restoring
//	any state -> closed
//
// A start, a rebalance, an abort and an unknown commit outcome all lead through restoring, which takes two
// requests if nothing is missing. A task is bypassing while its store cannot be used and one of its routes fails
// open. A task is waiting in three cases: before a record that its process cannot judge, for example of a route
// that the process does not know (taskwaits.go); if its checkpoint is of a newer route set than the process has
// (awaitSet); and when it is closed for a switch (awaitSwitch).
type taskState uint8

const (
	created taskState = iota
	restoring
	bypassing
	running
	waiting
	closed
	taskStates
)

func (s taskState) String() string {
	return [...]string{"created", "restoring", "bypassing", "running", "waiting", "closed"}[s]
}

// moves lists the states to which a task may move from each state.
var moves = [taskStates][]taskState{
	created:   {restoring, closed},
	restoring: {bypassing, running, closed},
	bypassing: {restoring, closed},
	running:   {restoring, waiting, closed},
	waiting:   {restoring, closed},
}

// A task processes one partition of a topic whose records are partitioned by dedup key: the repartition
// topic, or a prepartitioned topic. It consists of the judge of the partition and of what this process
// knows about the partition. Only the goroutine of the task's worker uses it. While the task restores, the
// restore owns its store.
type task struct {
	*judge.Judge

	state taskState
	// groupOffset is the group's offset at the assignment, or after the last commit. groupCommitted reports that
	// the group had a committed offset at the assignment; if it had none, groupOffset is the start that the
	// manifest pinned.
	groupOffset    int64
	groupCommitted bool
	clockSteps     uint64 // the steps that the broker clock had made at StartedAt
	highWatermark  int64  // of the input partition, in the last fetch; -1 before the first fetch
	// stable reports that no transaction was open in the partition at that fetch. If a later poll then brings no
	// records, only control records and aborted records are left.
	stable bool
	since  time.Time
	// waitsSince is the broker time, in ms, of the oldest input record that no transaction has committed,
	// or of the record before it; 0 before the first fetch. processedTo is the broker time of the last
	// record in the open transaction.
	waitsSince, processedTo int64
	lagClock                *lagClock // the lag that setLagGauge published last

	unknown  *judge.UnknownRouteError  // the record of an unknown route before which the task waits; else nil
	unread   *judge.PendingSchemaError // the record whose schema was not read, before which it waits; else nil
	asks     *restore.RecordDecision   // asks an operator about an unreadable record before which it waits; else nil
	skipTo   int64                     // the offset after a batch that an operator skips; 0 to start at its checkpoint
	storeErr error                     // why the store is unusable; nil if it is usable
	corrupt  bool                      // its partition waits at a batch with a wrong checksum
	pausedAt time.Time                 // when the fetching of its topic was last seen paused
	restore  *restore.Restore          // the restore in progress, while restoring or bypassing
	bypass   *restore.Bypass           // reads the checkpoint for a bypass; nil unless the task is restoring
	// erased are the requested erasures that the open transaction applies; erasedRows is how many rows they
	// freed.
	erased     []*app.ErasureRequest
	erasedRows int
	holding
	release func() // releases the store's directory; runs after the store is closed
	metrics *metrics
}

// to moves the task to another state. A move that moves does not list is a defect, so it panics.
func (t *task) to(next taskState) {
	if !slices.Contains(moves[t.state], next) {
		panic(fmt.Errorf("%w: task %v: no move from %v to %v", kafka.ErrIllegalState, t.ID, t.state, next))
	}
	t.metrics.tasks.WithLabelValues(t.state.String()).Dec()
	if next != closed {
		t.metrics.tasks.WithLabelValues(next.String()).Inc()
	}
	t.setUnknown(nil)
	t.unread = nil
	if t.asks != nil {
		t.asks.Stop()
		t.asks = nil
	}
	t.state = next
	t.Blind = next == bypassing
	t.since = time.Now()
}

// close ends whatever the task does, and closes its store. Rows that were not on disk yet are lost; the next
// restore reads them from the changelog.
func (t *task) close() error {
	t.stopBypass()
	t.LogOmitted(true)
	if t.restore != nil {
		t.restore.Stop()
		t.Store, t.restore = t.restore.Store, nil
	}
	t.to(closed)
	partition := strconv.Itoa(int(t.ID.Partition))
	t.metrics.lag.DeleteLabelValues(t.ID.Topic, partition)
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

// startRestore moves the task to restoring and starts its restore, which takes over the store. The
// restore's goroutine calls finished at its end.
func (t *task) startRestore(ctx context.Context, src *restore.Source, finished func()) {
	if t.state != restoring {
		t.to(restoring)
	}
	t.restore = restore.Start(ctx, src, t.ID, t.Log, t.Store, t.Waiting, t.storeErr, t.groupOffset, finished)
	t.Store, t.Waiting, t.storeErr = nil, nil, nil
}

// setLagGauge publishes the task's lag.
func (t *task) setLagGauge() {
	lag := t.lag()
	t.metrics.lag.WithLabelValues(t.ID.Topic, strconv.Itoa(int(t.ID.Partition))).Set(float64(lag))
	t.lagClock.set(lag, t.waitsSince)
}

// lagClock holds the lag of a task, and the broker time, in ms, since when the task's oldest unprocessed record
// waits. It has a lock because a scrape of the metrics reads it at any time.
type lagClock struct {
	mu         sync.Mutex
	lag, since int64
}

func (c *lagClock) set(lag, since int64) {
	c.mu.Lock()
	c.lag, c.since = lag, since
	c.mu.Unlock()
}

// seconds returns how long, at the broker time now in ms, the oldest record of the lag has waited: 0 without
// lag, -1 while the lag is not known. The value keeps rising while the task makes no progress.
func (c *lagClock) seconds(now int64) float64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lag <= 0 {
		return float64(c.lag)
	}
	return float64(max(0, now-c.since)) / 1000
}

// lag is the number of input records after the last committed one; -1 while it is not known.
func (t *task) lag() int64 {
	fetchedNothing := t.highWatermark < 0
	if t.Committed.Next < 0 || fetchedNothing && (t.state != running || time.Since(t.pausedAt) < idlePoll) {
		return -1
	}
	if (t.stable || fetchedNothing) && !t.waitsAtRecord() && !t.corrupt && time.Since(t.since) >= idlePoll {
		return 0 // the last polls returned no records, so none are left
	}
	if fetchedNothing || t.corrupt && t.highWatermark <= t.Committed.Next {
		return -1
	}
	return max(0, t.highWatermark-t.Committed.Next)
}

// waitsAtRecord reports whether the task waits before a record whose route or schema is unknown, or that cannot
// be read.
func (t *task) waitsAtRecord() bool { return t.unknown != nil || t.unread != nil || t.asks != nil }

// takeStart returns the offset at which the task starts to fetch, if its checkpoint is at next. The start is
// higher than next if an operator skips a batch that could not be decompressed: it is then after the batch,
// because the client would not return the batch again.
func (t *task) takeStart(next int64) int64 {
	at := max(next, t.skipTo)
	t.skipTo = 0
	return at
}

// processes notes the time of the records that the task is about to process.
func (t *task) processes(records []*kgo.Record) {
	if len(records) > 0 && !t.InTransaction {
		t.waitsSince = records[0].Timestamp.UnixMilli()
		t.processedTo = t.waitsSince
	}
}

// processed notes the time of the last of these records below an offset, once the open transaction contains
// it.
func (t *task) processed(records []*kgo.Record, below int64) {
	for i := len(records) - 1; i >= 0; i-- {
		if records[i].Offset < below {
			t.processedTo = records[i].Timestamp.UnixMilli()
			return
		}
	}
}

// During a rolling update that adds or removes a route, a process may own a task with records of a route that
// the process does not know. It cannot judge such a record, because the route defines the key, the window and
// the output. So the task waits before the record: it judges nothing more, and the process is not ready. The
// records before it are committed, and all other tasks are processed. The task continues in a process that knows
// the route. That may be this process, after its restart or once it has taken the route's set, or another
// process that gets the partition.

// setUnknown stores the unknown route for which the task waits; nil if it does not wait for a route.
func (t *task) setUnknown(unknown *judge.UnknownRouteError) {
	if t.unknown != nil {
		t.metrics.unknownRoutes.WithLabelValues(t.unknown.Route).Dec()
	}
	t.unknown = unknown
	if unknown != nil {
		t.metrics.unknownRoutes.WithLabelValues(unknown.Route).Inc()
	}
}

// judges reports whether the task has a store and a checkpoint from which this process may continue. That is so
// while the task runs or waits at a record. It is not so if the task is closed for a switch, or if its
// checkpoint is of a newer route set.
func (t *task) judges() bool {
	return t.state == running || t.state == waiting && !t.Ahead() && t.Committed.Closed == 0
}

// ahead reports whether the task waits because its checkpoint is of a newer route set than the process has.
func (t *task) ahead() bool { return t.state == waiting && t.Ahead() }

// stepped makes the leases of a task begin again after a step of the broker clock.
func (s *taskSet) stepped(t *task, steps uint64) {
	now := s.clock.Now()
	t.StartedAt, t.SteppedAt, t.clockSteps = now, now, steps
}
