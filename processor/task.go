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

// taskState is a state of a task:
//
//	created --> restoring <--> running --> waiting
//	   \         ^    |           |           |
//	    \        |    v           |           |
//	     \      bypassing         |           |
//	      \__________|____________|___________|____> closed
//
// Start, rebalance, abort and unknown commit outcome all lead through restoring, which
// takes two requests if nothing is missing. A task is bypassing while its store cannot be
// used and one of its routes fails open. It is waiting at a record of a route that its
// process does not know.
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

var moves = [taskStates][]taskState{
	created:   {restoring, closed},
	restoring: {bypassing, running, closed},
	bypassing: {restoring, closed},
	running:   {restoring, waiting, closed},
	waiting:   {restoring, closed},
}

// A task processes one partition of a topic whose records are partitioned by dedup key.
// It has the judge of the partition and its state in this process. Only its worker's
// goroutine uses it. While it restores, the restore owns its store.
type task struct {
	*judge.Judge

	state taskState
	// groupOffset is the group's offset at the assignment, or of the last commit.
	// groupCommitted reports that the group had committed it; else it is the pinned
	// start.
	groupOffset    int64
	groupCommitted bool
	clockSteps     uint64 // of the broker clock at StartedAt
	highWatermark  int64  // of the input partition, as last fetched; -1 before
	// stable reports that no transaction was open at that fetch. Polls without
	// records then skip control records and aborted records only.
	stable bool
	since  time.Time
	// waitsSince is the broker time, in ms, of the oldest input record that no transaction has
	// committed, or of the record before it; 0 before the first fetch. processedTo is that of
	// the last record of the open transaction.
	waitsSince, processedTo int64
	lagClock                *lagClock // of the last setLagGauge

	unknown  *judge.UnknownRouteError  // why the task waits; nil if it does not
	unread   *judge.PendingSchemaError // likewise, for a schema
	asks     *restore.RecordDecision   // likewise, for a record that cannot be read
	skipTo   int64                     // where it goes on, after a batch that an operator skips; 0 for its checkpoint
	storeErr error                     // why the store is unusable; nil if it is usable
	corrupt  bool                      // its partition waits at a wrong checksum
	pausedAt time.Time                 // when the fetching of its topic was last seen paused
	restore  *restore.Restore          // while restoring or bypassing
	bypass   *restore.Bypass           // while restoring: reads the checkpoint for a bypass
	// erased are the requested erasures of the open transaction, erasedRows how many rows
	// they freed.
	erased     []*app.ErasureRequest
	erasedRows int
	holding
	release func() // releases the store's directory; runs after the store is closed
	metrics *metrics
}

// to moves the task to a state. An illegal move is a defect, so it panics.
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

// close closes the store. The next restore reads unflushed rows from the changelog.
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

// startRestore moves the task to restoring.
func (t *task) startRestore(ctx context.Context, src *restore.Source, finished func()) {
	if t.state != restoring {
		t.to(restoring)
	}
	t.restore = restore.Start(ctx, src, t.ID, t.Log, t.Store, t.Waiting, t.storeErr, t.groupOffset, finished)
	t.Store, t.Waiting, t.storeErr = nil, nil, nil
}

func (t *task) setLagGauge() {
	lag := t.lag()
	t.metrics.lag.WithLabelValues(t.ID.Topic, strconv.Itoa(int(t.ID.Partition))).Set(float64(lag))
	t.lagClock.set(lag, t.waitsSince)
}

// lagClock has the lag of a task and the broker time, in ms, since when it waits. Scrapes read
// it at any time.
type lagClock struct {
	mu         sync.Mutex
	lag, since int64
}

func (c *lagClock) set(lag, since int64) {
	c.mu.Lock()
	c.lag, c.since = lag, since
	c.mu.Unlock()
}

// seconds returns the lag in seconds at a broker time in ms: 0 without lag, -1 while it is not
// known. It goes on rising while the task makes no progress.
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
		return 0 // polls came back without records
	}
	if fetchedNothing || t.corrupt && t.highWatermark <= t.Committed.Next {
		return -1
	}
	return max(0, t.highWatermark-t.Committed.Next)
}

// waitsAtRecord reports whether the task reads no further than a record: its route or schema is
// unknown, or it cannot be read.
func (t *task) waitsAtRecord() bool { return t.unknown != nil || t.unread != nil || t.asks != nil }

// takeStart returns the offset at which the task starts to fetch, with a checkpoint at next. The
// client does not return a batch again that it did not decompress, so such a batch is left out here.
func (t *task) takeStart(next int64) int64 {
	at := max(next, t.skipTo)
	t.skipTo = 0
	return at
}

// processes stores the times of records that the task is to process, before it does so.
func (t *task) processes(records []*kgo.Record) {
	if len(records) > 0 && !t.InTransaction {
		t.waitsSince = records[0].Timestamp.UnixMilli()
		t.processedTo = t.waitsSince
	}
}

// processed stores the time of the last of these records below an offset. From then on the
// open transaction has it.
func (t *task) processed(records []*kgo.Record, below int64) {
	for i := len(records) - 1; i >= 0; i-- {
		if records[i].Offset < below {
			t.processedTo = records[i].Timestamp.UnixMilli()
			return
		}
	}
}

// While a rolling update adds or removes a route, a process may own a task with records
// of a route that it does not know. Such a record needs its route: the key, the window
// and the output are the route's. So the task waits before the record: it judges nothing
// more, and is not ready. Its records before that one are committed. Nothing else waits
// and nothing stops. The task continues in a process that knows the route, which is this
// one after its restart, or another one that gets the partition.

// setUnknown stores why the task waits; nil if it does not.
func (t *task) setUnknown(unknown *judge.UnknownRouteError) {
	if t.unknown != nil {
		t.metrics.unknownRoutes.WithLabelValues(t.unknown.Route).Dec()
	}
	t.unknown = unknown
	if unknown != nil {
		t.metrics.unknownRoutes.WithLabelValues(unknown.Route).Inc()
	}
}

// judges reports whether the task has a store and a checkpoint that its process may continue:
// it judges, or waits for a route. A closed task does not.
func (t *task) judges() bool {
	return t.state == running || t.state == waiting && !t.Ahead() && t.Committed.Closed == 0
}

// ahead reports whether the task waits because its checkpoint is of a newer route set.
func (t *task) ahead() bool { return t.state == waiting && t.Ahead() }

// stepped begins the leases of a task again after a step of broker time.
func (s *taskSet) stepped(t *task, steps uint64) {
	now := s.clock.Now()
	t.StartedAt, t.SteppedAt, t.clockSteps = now, now, steps
}
