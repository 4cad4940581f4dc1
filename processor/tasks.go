package processor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/processor/app"
	"oncebus/processor/judge"
	"oncebus/processor/kafka"
	"oncebus/processor/restore"
	"oncebus/processor/switchover"
	"oncebus/state"
	"oncebus/state/failpoint"
)

const (
	// publishInterval is the time between two publications of a busy worker on the board.
	publishInterval = time.Second
	// publishPerTask bounds the time that a worker with many tasks spends on publications, because each
	// publication covers all of its tasks. While tasks restore, the time between two publications is at least
	// publishPerTask for each task: a second with 1,000 tasks.
	publishPerTask = time.Millisecond
)

// An assignment is a partition that the group assigned to this member, with the offset at which the partition's
// task starts. The offset is the group's committed offset or, if the group has none (committed is false), the
// start of the partition.
type assignment struct {
	id        app.TaskID
	offset    int64
	committed bool
}

// taskSet holds the tasks of a worker of the dedup stage. The rebalance lock guards all of it but the
// inbox: the worker uses it after a poll, and the client's rebalance callbacks use it between polls.
type taskSet struct {
	*shared
	*edition

	log  *slog.Logger
	wake func() // makes the worker's poll return at once
	ctx  context.Context

	tasks     map[app.TaskID]*task
	judging   *judge.Judging
	worker    string    // the worker's name, for /state
	published time.Time // time of the last publication on the board
	stale     bool      // a transaction was committed since the last publication
	corrupt   *corruptReads
	pauses    *pauses

	// inbox holds assignments for which reconcile has not made a task yet. The group's goroutine adds them
	// at any time, so inboxMu guards them instead of the rebalance lock.
	inboxMu sync.Mutex
	inbox   []assignment
}

func newTaskSet(ctx context.Context, s *shared, on *edition, worker string, log *slog.Logger, e *judge.Emitter, wake func()) *taskSet {
	return &taskSet{
		shared: s, edition: on, worker: worker, log: log, wake: wake, ctx: ctx, tasks: map[app.TaskID]*task{},
		judging: &judge.Judging{Emitter: e, Keys: judge.NewKeys(s.cfg.NewDeriver(on.rt.InForce), s.judging), Shadows: judge.NewShadows(on.rt, s.cfg.NewShadowDeriver)},
	}
}

// assigned adds new partitions to the inbox, for reconcile. It starts no restore itself: it runs in the group's
// goroutine, which a restore would block, perhaps while the worker has an open transaction.
func (s *taskSet) assigned(fresh []assignment) {
	s.inboxMu.Lock()
	s.inbox = append(s.inbox, fresh...)
	s.inboxMu.Unlock()
	s.wake()
}

// revoked closes tasks before the group assigns their partitions to other members.
func (s *taskSet) revoked(partitions map[string][]int32) {
	s.closeTasks(func(id app.TaskID) bool { return slices.Contains(partitions[id.Topic], id.Partition) })
}

// closeUnassigned closes every task whose partition is not assigned to the worker any more, and returns these
// partitions. The callbacks alone would miss some: before the transaction ends, franz-go's session calls no
// callback for a second revocation (A8).
func (s *taskSet) closeUnassigned(assigned func() map[app.TaskID]bool) (gone map[string][]int32) {
	gone = unassigned(append(slices.Collect(maps.Keys(s.tasks)), s.toOpen()...), assigned)
	s.revoked(gone)
	return gone
}

// toOpen returns the ids of the tasks that are still in the inbox.
func (s *taskSet) toOpen() (all []app.TaskID) {
	s.inboxMu.Lock()
	defer s.inboxMu.Unlock()
	for _, a := range s.inbox {
		all = append(all, a.id)
	}
	return all
}

// closeTasks closes the tasks for which gone returns true, and drops them from the inbox. It returns when
// their stores are closed, so that the next owner in this process can open them.
func (s *taskSet) closeTasks(gone func(app.TaskID) bool) {
	s.inboxMu.Lock()
	s.inbox = slices.DeleteFunc(s.inbox, func(a assignment) bool { return gone(a.id) })
	s.inboxMu.Unlock()
	var wg sync.WaitGroup
	for _, t := range s.sorted() {
		if !gone(t.ID) {
			continue
		}
		delete(s.tasks, t.ID)
		wg.Go(func() {
			defer s.restores.DeleteSeries(t.ID)
			if err := t.close(); err != nil {
				t.Log.Warn("close task failed", "error", err)
				return
			}
			t.Log.Info("task closed")
		})
	}
	wg.Wait()
	s.publish()
}

// close closes all tasks.
func (s *taskSet) close() { s.closeTasks(func(app.TaskID) bool { return true }) }

// sorted returns the tasks in a fixed order. The simulation must be able to repeat a run exactly, which the
// random order of a map would prevent.
func (s *taskSet) sorted() []*task {
	all := make([]*task, 0, len(s.tasks))
	for _, t := range s.tasks {
		all = append(all, t)
	}
	slices.SortFunc(all, compareTasks)
	return all
}

func compareTasks(a, b *task) int {
	return cmp.Or(cmp.Compare(a.ID.Topic, b.ID.Topic), cmp.Compare(a.ID.Partition, b.ID.Partition))
}

// reconcile changes the tasks according to what has happened since its last call. It creates a restoring task
// for each partition in the inbox, moves each task with a finished restore to running, and makes a waiting task
// continue if the reason for the wait is gone. It runs between transactions, under the rebalance lock.
func (s *taskSet) reconcile(client *kgo.Client) error {
	s.inboxMu.Lock()
	inbox := s.inbox
	s.inbox = nil
	s.inboxMu.Unlock()
	for _, a := range inbox {
		if _, ok := s.tasks[a.id]; ok {
			// The group revoked the partition and assigned it again between two calls.
			s.closeTasks(func(id app.TaskID) bool { return id == a.id })
		}
		t := s.create(a)
		s.tasks[a.id] = t
		t.startRestore(s.ctx, s.source, s.wake)
	}
	changed := len(inbox) > 0
	for _, t := range s.released() {
		s.restoreAgain(client, t)
		changed = true
	}
	for _, t := range s.sorted() {
		if t.restore == nil || !t.restore.Finished() || s.ctx.Err() != nil {
			continue // a stop ends restores before they are complete
		}
		end := s.finishRestore
		if t.restore.Overtaken {
			end = s.endBypass
		}
		if err := end(client, t); err != nil {
			return err
		}
		changed = true
	}
	changed = s.reopen(client) || changed
	changed = s.goOnDecided(client) || changed
	changed = s.updateBypasses(client) || changed
	if changed {
		s.publishChange()
	}
	s.publishIfStale()
	return nil
}

// create makes the task of an assigned partition, in the state created.
func (s *taskSet) create(a assignment) *task {
	t := &task{
		Judge: &judge.Judge{
			State:         judge.State{ID: a.id, Changelog: s.rt.ChangelogOf(a.id.Topic), App: s.rt, Log: s.log.With("task", a.id.String()), SweepAfter: s.sweepAfter},
			Repartitioned: a.id.Topic == s.rt.Topology.Repartition, Metrics: s.shared.judging,
		},
		groupOffset: a.offset, groupCommitted: a.committed, highWatermark: -1, since: time.Now(), metrics: s.metrics, lagClock: &lagClock{lag: -1},
		release: func() { s.stores.Release(a.id) },
	}
	t.refuseHeld(s.holds.InForce())
	t.metrics.tasks.WithLabelValues(created.String()).Inc()
	t.setLagGauge()
	return t
}

// finishRestore moves a restored task to running, and the client to the offset of the task's checkpoint. The
// checkpoint takes precedence over the group's offset. The two differ if an operator reset or deleted the
// group's offset, or after an unknown commit outcome (B7). A task whose checkpoint is of a newer route set, or
// is closed for a switch, waits instead.
func (s *taskSet) finishRestore(client *kgo.Client, t *task) error {
	t.stopBypass()
	r := t.restore
	t.Store, t.Waiting, t.restore = r.Store, r.Waiting, nil
	if r.Err != nil {
		return fmt.Errorf("restore %v: %w", t.ID, r.Err)
	}
	t.GoOn(&r.Checkpoint)
	if t.Committed.Next < 0 {
		t.Committed.Next, t.Open.Next = t.groupOffset, t.groupOffset
	} else if t.groupOffset > t.Committed.Next {
		// The restore has found no transaction of oncebus that set this offset, so somebody else has set it.
		t.Log.Warn("group offset is ahead of the checkpoint, starting at the checkpoint",
			"group_offset", t.groupOffset, "checkpoint", t.Committed.Next)
	}
	client.SetOffsets(map[string]map[int32]kgo.EpochOffset{t.ID.Topic: {t.ID.Partition: {Epoch: -1, Offset: t.takeStart(t.Committed.Next)}}})
	t.groupOffset = t.Committed.Next
	t.Counts, t.OpenCounts = r.Counts, r.Counts.Open(s.rt)
	if t.Ahead() {
		s.awaitSet(t)
		return nil
	}
	if s.actionOf(t) == switchover.Wait {
		s.awaitSwitch(t)
		return nil
	}
	t.to(running)
	s.board.explain(t.ID, "") // removes what the restore explained
	if t.Committed.Incomplete {
		t.StartSweep() // without the sweep no other process could rebuild this state
	}
	switch steps := s.clock.Steps(); {
	case t.StartedAt == 0:
		t.SteppedAt = t.Committed.SteppedAt
		t.StartedAt, t.clockSteps = s.clock.Now(), steps
	case t.clockSteps != steps:
		s.stepped(t, steps)
	}
	client.ResumeFetchPartitions(map[string][]int32{t.ID.Topic: {t.ID.Partition}})
	return nil
}

// process judges the fetched records of one partition in the open transaction. If the task must wait at a record
// (see await), only the records before that record are part of the transaction. If it waits for a schema,
// process also returns the PendingSchemaError.
func (s *taskSet) process(client *kgo.Client, fetched *kgo.FetchTopicPartition) error {
	t := s.tasks[app.TaskID{Topic: fetched.Topic, Partition: fetched.Partition}]
	if t != nil && t.waitsAtRecord() {
		return nil // fetched before the pause; they are fetched again, because the checkpoint is before them
	}
	if t == nil || t.state != running && t.state != bypassing {
		// The client fetched the records before the partition was paused. No task has judged them, so the
		// transaction must not commit an offset behind them.
		return fmt.Errorf("%w: records of %s/%d arrived for a task that is not running", kafka.ErrMustAbort, fetched.Topic, fetched.Partition)
	}
	t.highWatermark, t.stable = fetched.HighWatermark, fetched.LastStableOffset == fetched.HighWatermark
	if err := s.compareClock(t, fetched); err != nil {
		return err
	}
	t.processes(fetched.Records)
	s.judging.Held = s.holds.InForce().IsPromotion()
	err := t.Process(s.judging, fetched.Records)
	if at, waits := s.await(client, t, err); waits {
		t.processed(fetched.Records, at)
		if t.unread == nil {
			return nil
		}
		return t.unread
	}
	if errors.Is(err, judge.ErrClockDoubtful) {
		return fmt.Errorf("%w: %w", kafka.ErrMustAbort, errors.Join(err, s.observeClock()))
	}
	if err := s.storeFailed(t, err); err != nil {
		return err // the task judges the records again when its store is rebuilt
	}
	t.processed(fetched.Records, math.MaxInt64)
	return nil
}

// sweeping returns the task that writes a chunk of its sweep in the next transaction; nil if no task
// sweeps. The tasks of a worker sweep one after the other, so that a transaction stays short.
func (s *taskSet) sweeping() (first *task) {
	for _, t := range s.tasks {
		if t.judges() && t.Sweeping() && (first == nil || compareTasks(t, first) < 0) {
			first = t
		}
	}
	return first
}

// due reports whether a transaction has work without input: a sweep, erasures, held rows, closed checkpoints for
// a switch, or an owed checkpoint.
func (s *taskSet) due() bool {
	return s.sweeping() != nil || s.erasing() || s.holding() || s.closing() || s.owing()
}

// flushAged lets the stores of tasks without events write rows that have aged in memory to disk.
func (s *taskSet) flushAged() {
	for _, t := range s.tasks {
		if t.Store != nil && !t.InTransaction {
			t.Store.FlushAged()
		}
	}
}

// joinSweep adds the task that sweeps, even an idle one, to the transaction and writes its next chunk.
func (s *taskSet) joinSweep(e *judge.Emitter) error {
	t := s.sweeping()
	if t == nil {
		return nil
	}
	t.JoinTransaction()
	return s.storeFailed(t, t.Sweep(e))
}

// storeFailed returns err. If err says that the task's store is damaged, storeFailed also stores it in the task,
// and the returned error aborts the transaction: the restore that follows rebuilds the store.
func (s *taskSet) storeFailed(t *task, err error) error {
	if errors.Is(err, state.ErrCorrupt) {
		t.storeErr = err
		return fmt.Errorf("%w: %w", kafka.ErrMustAbort, err)
	}
	return err
}

// writeCheckpoints erases requested rows, writes a chunk of a sweep, and at last writes the checkpoint row of
// each task in the transaction. The erasures come before the sweep. As a sweep reads the rows of the open
// transaction, it then does not write the erased rows again.
func (s *taskSet) writeCheckpoints(e *judge.Emitter) error {
	if err := s.joinErasures(); err != nil {
		return err
	}
	if err := s.joinSweep(e); err != nil {
		return err
	}
	for _, t := range s.sorted() {
		if !t.InTransaction {
			continue
		}
		if err := s.storeFailed(t, t.AnswerShortened(e)); err != nil {
			return err
		}
		t.WriteCheckpoint(e)
	}
	return nil
}

// setOffsets replaces the offsets of a commit, which the session took from its polls, by the offsets in the
// checkpoints of the tasks in the transaction (A5, B8). There must be at least one such task, because the broker
// does not fence an offset commit without offsets (A7).
func (s *taskSet) setOffsets(req *kmsg.TxnOffsetCommitRequest) {
	byTopic := map[string]*kmsg.TxnOffsetCommitRequestTopic{}
	var topics []*kmsg.TxnOffsetCommitRequestTopic
	for _, t := range s.sorted() {
		if !t.InTransaction {
			continue
		}
		topic := byTopic[t.ID.Topic]
		if topic == nil {
			fresh := kmsg.NewTxnOffsetCommitRequestTopic()
			topic = &fresh
			topic.Topic, topic.TopicID = t.ID.Topic, s.rt.Topology.Topics[t.ID.Topic].ID
			byTopic[t.ID.Topic] = topic
			topics = append(topics, topic)
		}
		partition := kmsg.NewTxnOffsetCommitRequestTopicPartition()
		partition.Partition, partition.Offset, partition.LeaderEpoch = t.ID.Partition, t.Open.Next, t.Open.Epoch
		partition.Metadata = kmsg.StringPtr(app.OffsetMetadata(s.cfg.InstanceID, app.Commit{Generation: t.Open.Generation, Sequence: t.Open.Sequence, AwaitsProgress: !t.Blind && t.AwaitsProgress()}, t.Open.Next))
		topic.Partitions = append(topic.Partitions, partition)
	}
	req.Topics = req.Topics[:0]
	for _, topic := range topics {
		req.Topics = append(req.Topics, *topic)
	}
}

// applyCommitted applies the committed transaction to the stores of its tasks. If a store returns an error, its
// task restores: the broker has committed the transaction, so it cannot be aborted.
func (s *taskSet) applyCommitted(client *kgo.Client) {
	for _, t := range s.sorted() {
		if !t.InTransaction {
			continue
		}
		s.erasuresCommitted(t) // the broker has committed them, whatever the store returns
		if err := t.Commit(); err != nil {
			t.Log.Warn("apply committed transaction failed, restoring from the changelog", "reason", err)
			if !errors.Is(err, judge.ErrNoOffset) {
				t.storeErr = err
			}
			t.Discard()
			s.restoreAgain(client, t)
			continue
		}
		failpoint.Hit(failpoint.BetweenApplies)
		t.heldCommitted()
		s.closeCommitted(client, t)
		t.since, t.waitsSince = time.Now(), t.processedTo
		t.groupOffset = t.Committed.Next
		t.setLagGauge()
	}
	if s.due() {
		s.wake() // sweeps and erasures wait for no input
	}
	if time.Since(s.published) >= publishInterval {
		s.publish()
	}
	s.stale = true // so that the last transaction of a burst is published, too, and the lag shows 0
}

// publishChange publishes after a task changed its state. Each publication covers all tasks. So when hundreds of
// restores end one after the other, publishChange skips most publications.
func (s *taskSet) publishChange() {
	restoring := slices.ContainsFunc(s.sorted(), func(t *task) bool { return t.state == restoring })
	if restoring && time.Since(s.published) < time.Duration(len(s.tasks))*publishPerTask {
		s.stale = true
		return
	}
	s.publish()
}

// publishIfStale publishes what was committed since the last publication, at most once in publishInterval. Idle
// workers call it, too, so that the last transaction of a burst is published.
func (s *taskSet) publishIfStale() {
	if s.stale && time.Since(s.published) >= publishInterval {
		s.publish()
	}
}

// discardOpen drops a transaction that is not committed, or whose commit outcome is unknown (invariant 3).
// The restores of its tasks find the outcome in the changelog.
func (s *taskSet) discardOpen(client *kgo.Client) {
	for _, t := range s.sorted() {
		t.dropErasures() // they stay pending
		t.pendingHeld = ""
		switch {
		case !t.InTransaction:
		case t.judges():
			t.Discard()
			s.restoreAgain(client, t)
		case t.state == bypassing:
			t.Discard()
			s.pause(client, t)
			t.to(restoring)
			t.bypass = restore.StartBypass(s.ctx, s.source, t.ID, t.Log, s.wake)
		}
	}
	s.publish()
}

// restoreAgain stops the fetching of a task's partition, and starts another restore of the task.
func (s *taskSet) restoreAgain(client *kgo.Client, t *task) {
	s.pause(client, t)
	t.startRestore(s.ctx, s.source, s.wake)
}

func (s *taskSet) pause(client *kgo.Client, t *task) {
	client.PauseFetchPartitions(map[string][]int32{t.ID.Topic: {t.ID.Partition}})
}

// publish writes the states of all tasks of this worker to the board.
func (s *taskSet) publish() {
	s.published, s.stale = time.Now(), false
	states := make([]TaskState, 0, len(s.tasks))
	for _, t := range s.sorted() {
		s.pauses.see(t)
		t.corrupt = s.corrupt.has(t.ID)
		states = append(states, t.describe(s.worker))
		t.setLagGauge()
		s.stale = s.stale || t.state == running && t.lag() < 0 // its lag stays unknown until a poll shows how many records wait
	}
	s.board.setTasks(s.worker, states)
}

// compareClock compares the estimate of broker time with the timestamp of a fetched record before the task
// judges the fetch. If broker time has changed by a step, the task's leases begin again. Otherwise a lease that
// began before the step would end too early, or a day too late. A transaction states only one start of the task
// for its leases, so an open transaction with this task is aborted.
func (s *taskSet) compareClock(t *task, fetched *kgo.FetchTopicPartition) error {
	if n := len(fetched.Records); n > 0 && (t.Repartitioned || fetched.Records[n-1].Attrs.TimestampType() == kafka.TimestampAppend) {
		last := fetched.Records[n-1]
		if s.clock.Received(last.Timestamp.UnixMilli(), fetched.HighWatermark-last.Offset <= newestMax) {
			if err := s.observeClock(); err != nil {
				return fmt.Errorf("%w: %w", kafka.ErrMustAbort, err)
			}
		}
	}
	steps := s.clock.Steps()
	switch {
	case steps == t.clockSteps:
	case t.InTransaction:
		return fmt.Errorf("%w: broker time changed by a step", kafka.ErrMustAbort)
	default:
		s.stepped(t, steps)
	}
	return nil
}
