package processor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/processor/app"
	"oncebus/processor/judge"
	"oncebus/processor/kafka"
	"oncebus/processor/restore"
	"oncebus/state"
	"oncebus/state/failpoint"
)

// checkpointAge is how old a task's checkpoint row may grow before it is
// written again without any input: the changelog also deletes by age, and a
// task must not lose its place because it was idle for a window.
const checkpointAge = 6 * time.Hour

// publishInterval is how often a busy worker refreshes what /state shows.
const publishInterval = time.Second

// An assignment is a partition the group gave us, with the offset at which
// to start: what the group has committed, or else the resolved beginning.
type assignment struct {
	id        app.TaskID
	offset    int64
	committed bool
}

// taskSet is a worker's tasks. But for the inbox it is touched only while the
// client's rebalance gate is held: by the worker after a poll, or by a
// rebalance callback between polls, never by both.
type taskSet struct {
	*shared

	log  *slog.Logger
	wake func() // makes the worker's poll return
	ctx  context.Context

	tasks     map[app.TaskID]*task
	judging   *judge.Judging
	worker    string    // name, for /state
	published time.Time // when the snapshot was last refreshed
	stale     bool      // something was committed since

	// inbox holds assignments that reconcile has not yet turned into tasks.
	// They arrive from the group's goroutine while the worker works.
	inboxMu sync.Mutex
	inbox   []assignment
}

func newTaskSet(ctx context.Context, s *shared, worker string, log *slog.Logger, e *judge.Emitter, wake func()) *taskSet {
	return &taskSet{
		shared: s, worker: worker, log: log, wake: wake, ctx: ctx, tasks: map[app.TaskID]*task{},
		judging: &judge.Judging{Emitter: e, Deriver: s.routes.NewDeriver(s.cfg.KeySecret.Bytes())},
	}
}

// assigned takes note of new partitions. It only leaves a message: a restore
// here would hold up the group, and run before the worker let go of what it
// is doing.
func (s *taskSet) assigned(fresh []assignment) {
	s.inboxMu.Lock()
	s.inbox = append(s.inbox, fresh...)
	s.inboxMu.Unlock()
	s.wake()
}

// revoked closes tasks before the group hands their partitions on.
func (s *taskSet) revoked(partitions map[string][]int32) {
	gone := map[app.TaskID]bool{}
	for topic, ps := range partitions {
		for _, p := range ps {
			gone[app.TaskID{Topic: topic, Partition: p}] = true
		}
	}
	s.drop(func(id app.TaskID) bool { return gone[id] })
}

// retain closes every task that the group's last answer does not give us.
// franz-go's session does not pass on a second revocation before a transaction
// ends (A8), so callbacks alone cannot be trusted.
func (s *taskSet) retain(assignment map[app.TaskID]bool) {
	s.drop(func(id app.TaskID) bool { return !assignment[id] })
}

func (s *taskSet) drop(gone func(app.TaskID) bool) {
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
			defer s.restores.Forget(t.ID)
			if err := t.close(); err != nil {
				t.Log.Warn("closing a task", "error", err)
				return
			}
			t.Log.Info("task closed")
		})
	}
	wg.Wait()
	s.publish()
}

// close closes all tasks.
func (s *taskSet) close() { s.drop(func(app.TaskID) bool { return true }) }

// sorted returns the tasks in a fixed order, so that runs repeat.
func (s *taskSet) sorted() []*task {
	all := make([]*task, 0, len(s.tasks))
	for _, t := range s.tasks {
		all = append(all, t)
	}
	slices.SortFunc(all, func(a, b *task) int {
		return cmp.Or(cmp.Compare(a.ID.Topic, b.ID.Topic), cmp.Compare(a.ID.Partition, b.ID.Partition))
	})
	return all
}

// reconcile turns the inbox into restoring tasks and finished restores into
// running ones. It is called between transactions, with the gate held.
func (s *taskSet) reconcile(client *kgo.Client) error {
	s.inboxMu.Lock()
	inbox := s.inbox
	s.inbox = nil
	s.inboxMu.Unlock()
	for _, a := range inbox {
		if _, ok := s.tasks[a.id]; ok {
			// Revoked and assigned again between two calls: start over.
			s.drop(func(id app.TaskID) bool { return id == a.id })
		}
		t := s.create(a)
		s.tasks[a.id] = t
		t.startRestore(s.ctx, s.source, s.wake)
	}
	changed := len(inbox) > 0
	for _, t := range s.sorted() {
		if t.restore == nil || !t.restore.Finished() || s.ctx.Err() != nil {
			continue // a stop ends restores before their time
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
	changed = s.bypasses(client) || changed
	if changed {
		s.publish()
	}
	s.publishIfStale()
	return nil
}

func (s *taskSet) create(a assignment) *task {
	t := &task{
		Judge: &judge.Judge{
			State:         judge.State{ID: a.id, Changelog: s.rt.ChangelogOf(a.id.Topic), App: s.rt},
			Repartitioned: a.id.Topic == s.rt.Topology.Repartition, Metrics: s.shared.judging, Log: s.log.With("task", a.id.String()),
		},
		groupOffset: a.offset, groupCommitted: a.committed, highWatermark: -1, since: time.Now(), life: s.metrics,
		release: func() { s.stores.Release(a.id) },
	}
	t.life.tasks.WithLabelValues(created.String()).Inc()
	t.showLag()
	return t
}

// finishRestore lets a restored task run. The checkpoint, not the group, says
// where to go on: the two move together unless somebody reset the group's
// offsets, lost them, or the outcome of a commit was unknown.
func (s *taskSet) finishRestore(client *kgo.Client, t *task) error {
	t.dropBypass()
	r := t.restore
	t.Store, t.restore = r.Store, nil
	if r.Err != nil {
		return fmt.Errorf("restore %v: %w", t.ID, r.Err)
	}
	t.Committed = r.Checkpoint
	if t.Committed.Next < 0 {
		if r.Emptied && t.groupCommitted {
			// Every commit has a checkpoint, so there was one. To go on from
			// here would be to let copies through without a word.
			return kafka.OperatorErrorf("the state of %v is gone: %s/%d was emptied (DeleteRecords, or a stop longer than its retention), and there is no local state; "+
				"copies of events before offset %d can no longer be recognised: to accept that, stop all processes and delete the offsets of group %s for %s",
				t.ID, t.Changelog, t.ID.Partition, t.groupOffset, app.GroupName(s.cfg.AppID, stageDedup), t.ID.Topic)
		}
		t.Committed.Next = t.groupOffset
	} else if t.groupOffset > t.Committed.Next {
		t.Log.Warn("the group's offset is ahead of the checkpoint; going on from the checkpoint, so that nothing is lost",
			"group_offset", t.groupOffset, "checkpoint", t.Committed.Next)
	}
	client.SetOffsets(map[string]map[int32]kgo.EpochOffset{t.ID.Topic: {t.ID.Partition: {Epoch: -1, Offset: t.Committed.Next}}})
	t.groupOffset = t.Committed.Next
	t.Open, t.InTransaction, t.CheckpointRecord = t.Committed, false, nil
	t.Counts, t.OpenCounts = r.Counts, app.NewCounts(s.rt)
	t.to(running)
	if t.StartedAt == 0 {
		t.StartedAt = s.rt.Clock.Now()
	}
	client.ResumeFetchPartitions(map[string][]int32{t.ID.Topic: {t.ID.Partition}})
	return nil
}

// process judges the records of one partition into the open transaction.
func (s *taskSet) process(fetched *kgo.FetchTopicPartition) error {
	t := s.tasks[app.TaskID{Topic: fetched.Topic, Partition: fetched.Partition}]
	if t == nil || t.state != running && t.state != bypassing {
		// Fetched before the partition was paused. No task has judged
		// these records, so the transaction must not commit past them.
		return fmt.Errorf("%w: records of %s/%d arrived for a task that is not running", kafka.ErrMustAbort, fetched.Topic, fetched.Partition)
	}
	t.highWatermark, t.stable = fetched.HighWatermark, fetched.LastStableOffset == fetched.HighWatermark
	err := t.Process(s.judging, fetched.Records)
	if errors.Is(err, state.ErrCorrupt) {
		// Our own files failed us, not the record: abort, rebuild, judge again.
		t.broken = err
		return fmt.Errorf("%w: %w", kafka.ErrMustAbort, err)
	}
	return err
}

// touch adds running tasks whose checkpoint row is old to the transaction.
func (s *taskSet) touch() {
	for _, t := range s.tasks {
		if t.state == running && !t.InTransaction && time.Since(t.since) > checkpointAge {
			t.JoinTransaction()
		}
	}
}

// due reports whether touch would find anything.
func (s *taskSet) due() bool {
	for _, t := range s.tasks {
		if t.state == running && time.Since(t.since) > checkpointAge {
			return true
		}
	}
	return false
}

// seal writes the checkpoint rows of the transaction.
func (s *taskSet) seal(e *judge.Emitter) {
	s.touch()
	for _, t := range s.sorted() {
		if t.InTransaction {
			t.WriteCheckpoint(e)
		}
	}
}

// offsets rewrites the offset commit from the checkpoints. It names only
// partitions that are tasks of this worker and carried work, and it is never
// empty: the broker would not fence an empty request (A5, A7, B8).
func (s *taskSet) offsets(req *kmsg.TxnOffsetCommitRequest) {
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
		partition.Metadata = kmsg.StringPtr(s.cfg.InstanceID)
		topic.Partitions = append(topic.Partitions, partition)
	}
	req.Topics = req.Topics[:0]
	for _, topic := range topics {
		req.Topics = append(req.Topics, *topic)
	}
}

// committed applies the committed transaction, task by task. A store that
// refuses is opened again or rebuilt; the transaction stands in any case.
func (s *taskSet) committed(client *kgo.Client) {
	for _, t := range s.sorted() {
		if !t.InTransaction {
			continue
		}
		if err := t.Commit(); err != nil {
			t.Log.Warn("a committed transaction is read back from the changelog", "reason", err)
			if !errors.Is(err, judge.ErrNoOffset) {
				t.broken = err
			}
			t.Discard()
			s.restoreAgain(client, t)
			continue
		}
		failpoint.Hit(failpoint.BetweenApplies)
		t.since = time.Now()
		t.groupOffset = t.Committed.Next
		t.showLag()
	}
	if time.Since(s.published) >= publishInterval {
		s.publish()
	}
	s.stale = true // once more when the burst is over: only then is the lag known to be 0
}

// publishIfStale refreshes the snapshot if it is due; an idle worker comes by
// here too, so that the last transaction of a burst is shown.
func (s *taskSet) publishIfStale() {
	if s.stale && time.Since(s.published) >= publishInterval {
		s.publish()
	}
}

// discarded is the other end of a transaction: not committed, or not known to
// be. Both go the same way (invariant 3): drop the overlay and let the
// changelog say what happened.
func (s *taskSet) discarded(client *kgo.Client) {
	for _, t := range s.sorted() {
		switch {
		case !t.InTransaction:
		case t.state == running:
			t.Discard()
			s.restoreAgain(client, t)
		case t.state == bypassing:
			t.Discard()
			s.pause(client, t)
			t.to(restoring)
			t.bypass = restore.StartBypass(s.ctx, s.source, t.ID, s.wake)
		}
	}
	s.publish()
}

func (s *taskSet) restoreAgain(client *kgo.Client, t *task) {
	s.pause(client, t)
	t.startRestore(s.ctx, s.source, s.wake)
}

func (s *taskSet) pause(client *kgo.Client, t *task) {
	client.PauseFetchPartitions(map[string][]int32{t.ID.Topic: {t.ID.Partition}})
}

// publish refreshes what State and Ready tell about these tasks.
func (s *taskSet) publish() {
	s.published, s.stale = time.Now(), false
	states := make([]TaskState, 0, len(s.tasks))
	for _, t := range s.sorted() {
		states = append(states, t.describe(s.worker))
		t.showLag()
	}
	s.board.setTasks(s.worker, states)
}
