package processor

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/kafka"
	"oncebus/processor/wire"
)

// A task whose store cannot be used goes round it, if one of its routes says
// on_state_failure: fail_open. From its last checkpoint on it emits the events of
// such routes unchecked, in transactions as ever, and leaves everything else
// where it is: next stays, and the checkpoint says up to where the events of
// each class went out, and which of them became dead letters instead. Once the
// store is back, the task goes on from next. What passed is then recorded and
// not emitted; what was left is judged.

// A detour is how a task learns from the changelog where to go on without its
// store.
type detour struct {
	background

	// Written before done is closed.
	checkpoint wire.Checkpoint
	found      bool // the changelog has a checkpoint
	emptied    bool // the changelog had records once, and has no checkpoint
	err        error
}

// startDetour reads the task's last checkpoint. The reading begins after the
// group's stable offset fetch, like a restore's, so nothing that a former owner
// has under way can come after it.
func (t *task) startDetour(ctx context.Context, p *Processor, finished func()) {
	d := &detour{}
	t.detour = d
	d.start(ctx, finished, func(ctx context.Context) {
		reader := kafka.NewReader(p.client, t.changelog, p.rt.topology.topics[t.changelog].id, t.id.partition)
		var start int64
		d.checkpoint, d.found, start, d.err = lastCheckpoint(ctx, reader)
		d.emptied = !d.found && start > 0
		if d.err != nil {
			_ = kafka.Pause(ctx, restoreRetryMax) // the caller tries again at once
		}
	})
}

// dropDetour forgets where the task would go on without its store.
func (t *task) dropDetour() {
	if t.detour != nil {
		t.detour.stop()
		t.detour = nil
	}
}

// checkpointSpan is how many offsets before the end of a changelog a
// checkpoint is looked for first; then twice as many, and so on.
const checkpointSpan = 1000

// lastCheckpoint returns the newest checkpoint of a changelog, and where the
// changelog begins.
func lastCheckpoint(ctx context.Context, r *kafka.Reader) (newest wire.Checkpoint, found bool, start int64, err error) {
	start, end, err := r.Bounds(ctx)
	if err != nil {
		return newest, false, 0, err
	}
	for span := int64(checkpointSpan); ; span *= 2 {
		from := max(start, end-span)
		err := r.Read(ctx, from, end, func(records []*kgo.Record, _ int64) error {
			for _, rec := range records {
				if string(rec.Key) != wire.CheckpointKey {
					continue
				}
				var err error
				if newest, err = wire.DecodeCheckpoint(rec.Value); err != nil {
					return fmt.Errorf("%s/%d/%d: %w", r.Topic, r.Partition, rec.Offset, err)
				}
				found = true
			}
			return nil
		})
		if err != nil || found || from == start {
			return newest, found, start, err
		}
	}
}

// detours looks after the tasks that cannot use their stores. It is called
// between transactions, with the gate held.
func (s *taskSet) detours(client *kgo.Client) (changed bool) {
	full := s.p.disk.paused() != nil
	for _, t := range s.sorted() {
		if len(s.rt.failOpen[t.id.topic]) == 0 {
			continue
		}
		switch {
		case t.state == running && full:
			// The restore waits for room, and has nothing to read then.
			s.restoreAgain(client, t)
		case t.state != restoring:
			continue
		case t.detour == nil && t.restore.failedFor() > s.p.cfg.StateFailOpenAfter:
			t.startDetour(s.ctx, s.p, s.wake)
			continue
		case t.detour == nil || !t.detour.finished():
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
	case d.err != nil:
		t.log.Warn("no way round the store that cannot be used, trying again", "error", d.err)
		t.detour = nil
		return false
	case d.emptied && t.groupCommitted:
		return false // the restore says what is to be done
	}
	t.detour, t.restore.overtaken = nil, true
	t.committed = wire.Checkpoint{Next: t.groupOffset, Epoch: -1}
	if d.found {
		t.committed = d.checkpoint
	}
	t.open, t.touched, t.sealed = t.committed, false, nil
	from := t.committed.Next + 1<<62
	var names []string
	for _, class := range s.rt.failOpen[t.id.topic] {
		from = min(from, t.committed.BypassedTo(class))
		names = append(names, s.rt.namespaces[class])
	}
	client.SetOffsets(map[string]map[int32]kgo.EpochOffset{t.id.topic: {t.id.partition: {Epoch: -1, Offset: from}}})
	t.to(passing)
	client.ResumeFetchPartitions(map[string][]int32{t.id.topic: {t.id.partition}})
	t.log.Error("local state cannot be used: events go out unchecked until it can", "namespaces", names,
		"from", from, "failing_for", t.restore.failedFor().Round(time.Millisecond).String())
	return true
}

// endDetour hands a store that can be used again to a restore, which reads
// what was written since.
func (s *taskSet) endDetour(client *kgo.Client, t *task) error {
	t.dropDetour()
	r := t.restore
	t.store, t.restore = r.store, nil
	if r.err != nil {
		return fmt.Errorf("restore %v: %w", t.id, r.err)
	}
	t.log.Info("local state can be used again: what passed unchecked is recorded, and checking goes on", "next", t.committed.Next)
	s.restoreAgain(client, t)
	return nil
}

// leaves tells whether the events of a class at this offset are left where
// they are while the task passes events: they wait for the store, or went out.
func (t *task) leaves(route *routeInfo, offset int64) bool {
	return t.state == passing && (!route.FailOpen || offset < t.open.BypassedTo(route.class))
}

// passedBefore tells whether a running task meets an event that went out
// unchecked, or is withheld.
func (t *task) passedBefore(class uint8, offset int64) bool {
	return len(t.open.Bypassed) > 0 && t.state == running && offset < t.open.BypassedTo(class)
}

// passedUpTo notes that the events of fail-open classes are out up to an offset.
func (t *task) passedUpTo(offset int64) {
	for _, class := range t.rt.failOpen[t.id.topic] {
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
	verdict, row := dedup.Decide(*decided, *prior, held, ev.route.span, streamTime)
	stood := ev.route.standing(prior, held, streamTime)
	if verdict != dedup.Unique && verdict != dedup.AfterWindow || stood == nil && t.overLimit(ev.route) {
		return nil
	}
	t.record(j, &row)
	t.recount(&row, stood)
	return nil
}

func (t *task) rememberClaim(j *judging, ev *event, decided *dedup.Event, prior *dedup.Row, held bool, streamTime int64) error {
	c, err := dedup.DecideForwardedClaim(t.claimEvent(ev, decided), *prior, held, ev.route.span, streamTime)
	if err != nil {
		return fmt.Errorf("%w: %w", kafka.ErrIllegalState, err)
	}
	stood := ev.route.standing(prior, held, streamTime)
	if !c.Write || !t.fits(&c.Row) || stood == nil && t.overLimit(ev.route) {
		return nil
	}
	t.record(j, &c.Row)
	t.recountClaim(&c, stood)
	return nil
}
