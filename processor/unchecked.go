package processor

import (
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/kafka"
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

// dropDetour forgets where the task would go on without its store.
func (t *task) dropDetour() {
	if t.detour != nil {
		t.detour.Stop()
		t.detour = nil
	}
}

// detours looks after the tasks that cannot use their stores. It is called
// between transactions, with the gate held.
func (s *taskSet) detours(client *kgo.Client) (changed bool) {
	full := s.src.Stores.Paused() != nil
	for _, t := range s.sorted() {
		if len(s.rt.FailOpen[t.id.Topic]) == 0 {
			continue
		}
		switch {
		case t.state == running && full:
			// The restore waits for room, and has nothing to read then.
			s.restoreAgain(client, t)
		case t.state != restoring:
			continue
		case t.detour == nil && t.restore.FailedFor() > s.p.cfg.StateFailOpenAfter:
			t.detour = restore.StartBypass(s.ctx, s.src, t.id, s.wake)
			continue
		case t.detour == nil || !t.detour.Finished():
			continue
		case !s.takeDetour(client, t):
			continue
		}
		changed = true
	}
	return changed
}

// takeDetour lets a task go on without its store, if it is known from where.
func (s *taskSet) takeDetour(client *kgo.Client, t *task) bool {
	d := t.detour
	switch {
	case d.Err != nil:
		t.log.Warn("no way round the store that cannot be used, trying again", "error", d.Err)
		t.detour = nil
		return false
	case d.Emptied && t.groupCommitted:
		return false // the restore says what is to be done
	}
	t.detour, t.restore.Overtaken = nil, true
	t.committed = wire.Checkpoint{Next: t.groupOffset, Epoch: -1}
	if d.Found {
		t.committed = d.Checkpoint
	}
	t.open, t.touched, t.sealed = t.committed, false, nil
	from := t.committed.Next + 1<<62
	var names []string
	for _, class := range s.rt.FailOpen[t.id.Topic] {
		from = min(from, t.committed.BypassedTo(class))
		names = append(names, s.rt.Namespaces[class])
	}
	client.SetOffsets(map[string]map[int32]kgo.EpochOffset{t.id.Topic: {t.id.Partition: {Epoch: -1, Offset: from}}})
	t.to(passing)
	client.ResumeFetchPartitions(map[string][]int32{t.id.Topic: {t.id.Partition}})
	t.log.Error("local state cannot be used: events go out unchecked until it can", "namespaces", names,
		"from", from, "failing_for", t.restore.FailedFor().Round(time.Millisecond).String())
	return true
}

// endDetour hands a store that can be used again to a restore, which reads
// what was written since.
func (s *taskSet) endDetour(client *kgo.Client, t *task) error {
	t.dropDetour()
	r := t.restore
	t.store, t.restore = r.Store, nil
	if r.Err != nil {
		return fmt.Errorf("restore %v: %w", t.id, r.Err)
	}
	t.log.Info("local state can be used again: what passed unchecked is recorded, and checking goes on", "next", t.committed.Next)
	s.restoreAgain(client, t)
	return nil
}

// leaves tells whether the events of a class at this offset are left where
// they are while the task passes events: they wait for the store, or went out.
func (t *task) leaves(route *app.Route, offset int64) bool {
	return t.state == passing && (!route.FailOpen || offset < t.open.BypassedTo(route.Class))
}

// passedBefore tells whether a running task meets an event that went out
// unchecked, or is withheld.
func (t *task) passedBefore(class uint8, offset int64) bool {
	return len(t.open.Bypassed) > 0 && t.state == running && offset < t.open.BypassedTo(class)
}

// passedUpTo notes that the events of fail-open classes are out up to an offset.
func (t *task) passedUpTo(offset int64) {
	for _, class := range t.rt.FailOpen[t.id.Topic] {
		at := slices.IndexFunc(t.open.Bypassed, func(p wire.BypassedOffset) bool { return p.Class == class })
		if at < 0 {
			t.open.Bypassed = append(t.open.Bypassed, wire.BypassedOffset{Class: class, To: offset})
			continue
		}
		t.open.Bypassed[at].To = max(offset, t.open.Bypassed[at].To)
	}
}

const bypassedReason = "local state cannot be used: not checked for copies"

// pass emits an event that could not be looked up.
func (t *task) pass(j *judging, ev *event, decided *dedup.Event) {
	ev.verdict, ev.reason = dedup.Bypassed, bypassedReason
	out := j.emit(ev, ev.route.Output)
	j.conclude(ev)
	switch {
	case !out:
		t.open.DeadLetter(ev.rec.Offset, ev.rec.Offset+1)
	case ev.route.Mode == rules.ClaimMode:
		row := dedup.Row{Digest: decided.Digest, First: decided.Time, At: ev.from}
		t.answer(j, ev.route, &reply{
			verdict: ev.verdict, status: ev.verdict.String(), row: &row, claim: &dedup.Claim{Key: *ev.key}, to: ev.requester(), present: ev.present,
		})
	}
}

// remember records an event that went out unchecked, so that its later copies
// are known.
func (t *task) remember(j *judging, ev *event, decided *dedup.Event, prior *dedup.Row, held bool, streamTime int64) error {
	if ev.route.Mode == rules.ClaimMode {
		return t.rememberClaim(j, ev, decided, prior, held, streamTime)
	}
	verdict, row := dedup.Decide(*decided, *prior, held, ev.route.Span, streamTime)
	stood := standing(ev.route, prior, held, streamTime)
	if verdict != dedup.Unique && verdict != dedup.AfterWindow || stood == nil && t.overLimit(ev.route) {
		return nil
	}
	t.record(j, &row)
	t.openCounts.ReplaceRow(&row, stood)
	return nil
}

func (t *task) rememberClaim(j *judging, ev *event, decided *dedup.Event, prior *dedup.Row, held bool, streamTime int64) error {
	c, err := dedup.RememberClaim(t.claimEvent(ev, decided), *prior, held, ev.route.Span, streamTime)
	if err != nil {
		return fmt.Errorf("%w: %w", kafka.ErrIllegalState, err)
	}
	stood := standing(ev.route, prior, held, streamTime)
	if !c.Write || !t.fits(&c.Row) || stood == nil && t.overLimit(ev.route) {
		return nil
	}
	t.record(j, &c.Row)
	t.openCounts.ReplaceClaim(&c, stood)
	return nil
}
