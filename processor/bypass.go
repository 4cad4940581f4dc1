package processor

import (
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/restore"
	"oncebus/processor/wire"
)

// A task whose store cannot be used bypasses the store, if one of its routes says on_state_failure:
// fail_open. It starts at its last checkpoint, forwards the events of such routes unchecked, in
// transactions, and skips all other events. Its checkpoints do not move the next offset. Instead they say
// up to which offset the events of each namespace were forwarded, and which of these became dead letters.
// After a restore the task starts at the next offset, stores the events that it forwarded, and judges the
// events that it skipped.

// stopBypass ends the look-up of the offset at which a bypass would start, if it is in progress.
func (t *task) stopBypass() {
	if t.bypass != nil {
		t.bypass.Stop()
		t.bypass = nil
	}
}

// updateBypasses starts the bypass of tasks that cannot use their stores, and reports
// whether a task changed its state. It runs between transactions, under the rebalance
// lock.
func (s *taskSet) updateBypasses(client *kgo.Client) (changed bool) {
	full := s.stores.Paused() != nil
	for _, t := range s.sorted() {
		if len(s.rt.FailOpen[t.ID.Topic]) == 0 {
			continue
		}
		switch {
		case t.state == running && full:
			// The restore that begins here waits for disk space. Once there is space, it has nothing to read.
			s.restoreAgain(client, t)
		case t.state != restoring:
			continue
		case t.bypass == nil && t.restore.FailedFor() > s.cfg.StateFailOpenAfter:
			t.bypass = restore.StartBypass(s.ctx, s.source, t.ID, t.Log, s.wake)
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

// takeBypass moves a task to the state bypassing, and reports true, if the offset at which the bypass starts is
// known.
func (s *taskSet) takeBypass(client *kgo.Client, t *task) bool {
	d := t.bypass
	switch {
	case d.Err != nil:
		t.Log.Warn("read checkpoint for bypass failed, retrying", "error", d.Err)
		t.bypass = nil
		return false
	case d.Emptied, !d.Found && t.groupCommitted:
		return false // the restore refuses the changelog, and tells the operator what to do
	}
	if d.Found && d.Checkpoint.Set > s.rt.Set {
		s.readManifestNow()
		t.bypass = nil
		return false
	}
	t.bypass, t.restore.Overtaken = nil, true
	c := wire.Checkpoint{Next: t.groupOffset, Epoch: -1}
	if d.Found {
		c = d.Checkpoint
	}
	t.GoOn(&c)
	from := t.Committed.Next + 1<<62
	var names []string
	for _, namespaceID := range s.rt.FailOpen[t.ID.Topic] {
		from = min(from, t.Committed.BypassedTo(namespaceID))
		names = append(names, s.rt.Namespaces[namespaceID])
	}
	client.SetOffsets(map[string]map[int32]kgo.EpochOffset{t.ID.Topic: {t.ID.Partition: {Epoch: -1, Offset: t.takeStart(from)}}})
	t.to(bypassing)
	client.ResumeFetchPartitions(map[string][]int32{t.ID.Topic: {t.ID.Partition}})
	t.Log.Error("local state cannot be used: forwarding events unchecked", "namespaces", names,
		"from", from, "failing_for", t.restore.FailedFor().Round(time.Millisecond).String())
	return true
}

// endBypass ends a bypass once the restore has made the store usable. It starts a second restore, which
// reads what the task wrote to the changelog during the bypass.
func (s *taskSet) endBypass(client *kgo.Client, t *task) error {
	t.stopBypass()
	r := t.restore
	t.Store, t.restore = r.Store, nil
	if r.Err != nil {
		return fmt.Errorf("restore %v: %w", t.ID, r.Err)
	}
	t.Log.Info("local state can be used again: storing the events that were forwarded unchecked", "next", t.Committed.Next)
	s.restoreAgain(client, t)
	return nil
}
