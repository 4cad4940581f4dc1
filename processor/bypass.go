package processor

import (
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/restore"
	"oncebus/processor/wire"
)

// A task whose store cannot be used goes round it, if one of its routes says
// on_state_failure: fail_open. From its last checkpoint on it emits the events of
// such routes unchecked, in transactions as ever, and leaves everything else
// where it is: next stays, and the checkpoint says up to where the events of
// each class went out, and which of them became dead letters instead. Once the
// store is back, the task goes on from next. What passed is then recorded and
// not emitted; what was left is judged.

// dropBypass forgets where the task would go on without its store.
func (t *task) dropBypass() {
	if t.bypass != nil {
		t.bypass.Stop()
		t.bypass = nil
	}
}

// bypasses starts and ends the bypass of tasks that cannot use their stores. It
// runs between transactions, under the rebalance lock.
func (s *taskSet) bypasses(client *kgo.Client) (changed bool) {
	full := s.stores.Paused() != nil
	for _, t := range s.sorted() {
		if len(s.rt.FailOpen[t.ID.Topic]) == 0 {
			continue
		}
		switch {
		case t.state == running && full:
			// The restore waits for room, and has nothing to read then.
			s.restoreAgain(client, t)
		case t.state != restoring:
			continue
		case t.bypass == nil && t.restore.FailedFor() > s.cfg.StateFailOpenAfter:
			t.bypass = restore.StartBypass(s.ctx, s.source, t.ID, s.wake)
			continue
		case t.bypass == nil || !t.bypass.Finished():
			continue
		case !s.takeBypass(client, t):
			continue
		}
		changed = true
	}
	return changed
}

// takeBypass lets a task go on without its store, if it is known from where.
func (s *taskSet) takeBypass(client *kgo.Client, t *task) bool {
	d := t.bypass
	switch {
	case d.Err != nil:
		t.Log.Warn("no way round the store that cannot be used, trying again", "error", d.Err)
		t.bypass = nil
		return false
	case d.Emptied && t.groupCommitted:
		return false // the restore says what is to be done
	}
	t.bypass, t.restore.Overtaken = nil, true
	t.Committed = wire.Checkpoint{Next: t.groupOffset, Epoch: -1}
	if d.Found {
		t.Committed = d.Checkpoint
	}
	t.Open, t.InTransaction, t.CheckpointRecord = t.Committed, false, nil
	from := t.Committed.Next + 1<<62
	var names []string
	for _, class := range s.rt.FailOpen[t.ID.Topic] {
		from = min(from, t.Committed.BypassedTo(class))
		names = append(names, s.rt.Namespaces[class])
	}
	client.SetOffsets(map[string]map[int32]kgo.EpochOffset{t.ID.Topic: {t.ID.Partition: {Epoch: -1, Offset: from}}})
	t.to(bypassing)
	client.ResumeFetchPartitions(map[string][]int32{t.ID.Topic: {t.ID.Partition}})
	t.Log.Error("local state cannot be used: events go out unchecked until it can", "namespaces", names,
		"from", from, "failing_for", t.restore.FailedFor().Round(time.Millisecond).String())
	return true
}

// endBypass hands a store that can be used again to a restore, which reads
// what was written since.
func (s *taskSet) endBypass(client *kgo.Client, t *task) error {
	t.dropBypass()
	r := t.restore
	t.Store, t.restore = r.Store, nil
	if r.Err != nil {
		return fmt.Errorf("restore %v: %w", t.ID, r.Err)
	}
	t.Log.Info("local state can be used again: what passed unchecked is recorded, and checking goes on", "next", t.Committed.Next)
	s.restoreAgain(client, t)
	return nil
}
