package restore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/wire"
)

// DecisionPoll is the time between two checks whether an operator has decided.
const DecisionPoll = time.Second

// errUnread ends the reading of an input at its first record: hasInputFrom needs no more.
var errUnread = errors.New("found a record")

// locate opens the store if it is not open yet, and decides from which changelog offset to read. If only an
// operator can decide, locate waits for the operator's decision.
func (r *Restore) locate(ctx context.Context, reader *kafka.Reader, start, end int64) (from int64, err error) {
	f, err := r.gather(ctx, reader, start, end)
	if err != nil {
		return 0, err
	}
	chosen, problem := decide(f)
	r.accepted, r.logged, r.base = nil, nil, nil
	if !f.loggedLacks {
		r.logged = f.logged
	}
	if chosen == refuse {
		refusal := stateRefusal(r.id, &f, problem)
		accepted, err := r.awaitDecision(ctx, &refusal)
		if err != nil {
			return 0, err
		}
		return r.accept(ctx, &f, accepted)
	}
	switch chosen {
	case rebuild:
		return start, r.renew(ctx, f.position > end+1)
	case trustLocal:
		r.log.Warn("changelog lacks rows that local state has: trusting local state, writing its rows again",
			"changelog_start", start, "changelog_end", end, "position", f.position, "next", f.stored.Next)
		return r.trust(&f)
	case readTail, refuse:
	}
	r.base = f.stored
	return f.position, nil
}

// gather collects the facts of a restore. It reads the changelog's end, the group's offset and the
// input only if the local store alone does not decide.
func (r *Restore) gather(ctx context.Context, reader *kafka.Reader, start, end int64) (f facts, err error) {
	manifest := r.src.App.Manifest
	f = facts{start: start, end: end, position: r.Store.Position(), group: -1, lost: manifest.StateLost(r.id.Topic), generation: manifest.Generation(r.id.Topic)}
	if r.fold, err = wire.ReadStored(r.Store.Checkpoint()); err != nil {
		return f, kafka.OperatorErrorf("%w; run the build that wrote it", err)
	}
	if r.fold.Has() {
		c := r.fold.Newest()
		f.stored = &c
	}
	if f.stored != nil && start <= f.position && f.position <= end+1 && f.isWhole(f.stored) {
		return f, nil
	}
	last, _, err := app.LastCheckpoint(ctx, reader)
	if err != nil {
		return f, err
	}
	if last.Has() {
		logged := last.Newest()
		f.logged, f.loggedLacks = &logged, !last.IsWhole()
	}
	committed, err := r.groupOffset(ctx)
	if err != nil {
		return f, err
	}
	f.group, f.groupAt = committed.At, app.CommitOf(committed.Metadata, committed.At).Generation
	switch {
	case f.stored == nil, f.groupAtStored():
	case f.stored.Generation != f.generation:
		f.unread = true // the input was deleted and recreated, and nothing is known of the deleted topic
	default:
		f.unread, err = r.hasInputFrom(ctx, f.stored.Next)
	}
	return f, err
}

// groupOffset returns the group's stable offset of the task's input.
func (r *Restore) groupOffset(ctx context.Context) (kafka.GroupOffset, error) {
	group := app.GroupName(r.src.App.Topology.App, app.StageDedup)
	for {
		offset, known, err := r.src.offsets.StableOffset(ctx, r.src.Client, group, r.id.Topic, r.id.Partition)
		if err != nil || known {
			return offset, err
		}
		if err := kafka.Pause(ctx, retryPause); err != nil { // a transaction that commits an offset of the partition is still open
			return kafka.GroupOffset{}, err
		}
	}
}

// hasInputFrom reports whether the input may have had a committed record at this offset or a higher one.
func (r *Restore) hasInputFrom(ctx context.Context, offset int64) (bool, error) {
	input := r.src.Leaders.NewReader(r.id.Topic, r.src.App.Topology.Topics[r.id.Topic].ID, r.id.Partition)
	start, end, err := input.Bounds(ctx)
	if err != nil || offset < start || offset > end {
		return true, err
	}
	err = input.Read(ctx, offset, end, func(records []*kgo.Record, _ int64) error {
		if len(records) > 0 {
			return errUnread
		}
		return nil
	})
	if errors.Is(err, errUnread) {
		return true, nil
	}
	return false, err
}

// stateRefusal describes a local store and a changelog that do not fit together, so that only an operator can
// choose between them.
func stateRefusal(id app.TaskID, f *facts, problem app.Problem) app.Refusal {
	checkpoint := "no checkpoint"
	var ways []app.Way
	if f.stored != nil {
		ways = append(ways, app.BelieveLocal)
	}
	if f.logged != nil {
		checkpoint = fmt.Sprintf("its last checkpoint is transaction %d, at input offset %d, with the floor %d", f.logged.Sequence, f.logged.Next, f.logged.Floor)
		if f.loggedLacks {
			checkpoint += " (the whole checkpoint that it is relative to was deleted)"
		} else {
			ways = append(ways, app.BelieveChangelog)
		}
	}
	local := "there is no usable local state"
	if f.stored != nil {
		local = fmt.Sprintf("local state is as of transaction %d, at input offset %d and changelog offset %d", f.stored.Sequence, f.stored.Next, f.position)
	}
	group := "the group has no offset"
	if f.group >= 0 {
		group = fmt.Sprintf("the group's offset is %d", f.group)
	}
	resume := "the start of its input"
	if next, known := f.nextWithout(); known {
		resume = fmt.Sprintf("input offset %d", next)
	}
	what := "rows were deleted from its changelog (DeleteRecords, retention, a broker's data loss)"
	return app.Refusal{
		Topic: id.Topic, Partition: id.Partition, Problem: problem, Ways: append(ways, app.BelieveNothing),
		Facts: fmt.Sprintf("changelog %d, %s", f.start, checkpoint),
		Detail: fmt.Sprintf("%s: it begins at offset %d and ends at %d, %s; %s; %s; without the rows duplicates would be emitted; believing nothing, it goes on at %s",
			what, f.start, f.end, checkpoint, local, group, resume),
		At: time.Now().UTC(),
	}
}

// awaitDecision writes a refusal to the manifest topic and waits until an operator accepts it. Meanwhile the
// events of this task wait in the input, and other tasks run.
func (r *Restore) awaitDecision(ctx context.Context, refusal *app.Refusal) (*app.Acceptance, error) {
	r.watch.deciding.Store(true)
	defer r.watch.deciding.Store(false)
	return r.src.awaitDecision(ctx, r.id, r.log, refusal)
}

// awaitDecision publishes a refusal, and returns once an operator has accepted it. It returns the way to
// continue that the operator chose. /readyz shows the refusal meanwhile.
func (s *Source) awaitDecision(ctx context.Context, id app.TaskID, log *slog.Logger, refusal *app.Refusal) (*app.Acceptance, error) {
	t := s.App.Topology
	refusal.Instance = s.Instance
	s.Metrics.AddRefused(refusal.Problem, 1)
	defer s.Metrics.AddRefused(refusal.Problem, -1)
	for first := true; ; first = false {
		decisions, err := s.Decisions(ctx)
		if err != nil {
			return nil, err
		}
		if accepted, ok := decisions.Accepted(refusal); ok {
			log.Warn("decision accepted", "problem", string(refusal.Problem), "record", refusal.Record, "way", string(accepted.Way), "by", accepted.By, "why", accepted.Why)
			s.Explain(id, "")
			if _, listed := decisions.Refusals[refusal.Name()]; !listed {
				return &accepted, nil
			}
			return &accepted, app.RemoveRefusal(ctx, s.Client, t, refusal)
		}
		if first {
			if err := app.WriteRefusal(ctx, s.Client, t, refusal); err != nil {
				return nil, err
			}
			log.Error("partition refused, waiting for a decision", "problem", string(refusal.Problem), "detail", refusal.Detail, "decide", refusal.Command())
			s.Explain(id, refusal.Text())
		}
		if err := kafka.Pause(ctx, DecisionPoll); err != nil {
			return nil, err
		}
	}
}

// dropRefusal removes a refusal that a former owner of the task wrote, and that no longer applies. If the
// removal fails, the restore goes on: the refusal only informs operators, and the next start tries again to
// remove it.
func (r *Restore) dropRefusal(ctx context.Context) {
	decisions, err := r.src.Decisions(ctx)
	if err == nil {
		refusal, listed := decisions.Refusals[r.id.String()]
		if !listed {
			return
		}
		err = app.RemoveRefusal(ctx, r.src.Client, r.src.App.Topology, &refusal)
	}
	if err != nil && ctx.Err() == nil {
		r.log.Warn("remove refusal failed", "error", err)
	}
}

// accept prepares the state that an operator chose, and returns the changelog offset to read from. It stores the
// choice in that state, so that a later restore makes the same choice without asking again.
func (r *Restore) accept(ctx context.Context, f *facts, accepted *app.Acceptance) (from int64, err error) {
	r.accepted = accepted
	switch accepted.Way {
	case app.BelieveLocal:
		c := *f.stored
		r.raiseLateness(&c)
		f.stored = &c
		return r.trust(f)
	case app.BelieveChangelog:
		return f.start, r.renew(ctx, true)
	case app.BelieveNothing, app.InputLost, app.FromMark, app.FromStart, app.FromGroup, app.FromOffset, app.SkipRecord:
	}
	return r.begin(ctx, f)
}

// begin lets the task begin without any rows, at the end of the changelog.
func (r *Restore) begin(ctx context.Context, f *facts) (from int64, err error) {
	next, known := f.nextWithout()
	if !known {
		input, err := r.inputBounds(ctx)
		if err != nil {
			return 0, err
		}
		next = max(input.start, input.next)
	}
	// If a checkpoint names a newer route set than the process has read, the task must wait for that
	// set.
	c := wire.Checkpoint{Next: next, Epoch: -1, Floor: f.end, Generation: f.generation, Set: r.src.App.Set}
	for _, known := range []*wire.Checkpoint{f.logged, f.stored} {
		if known != nil {
			c.Sequence, c.Set = max(c.Sequence, known.Sequence), max(c.Set, known.Set)
		}
	}
	r.raiseLateness(&c)
	if err := r.renew(ctx, true); err != nil {
		return 0, err
	}
	r.base = &c
	return f.end, r.noteFailure(r.Store.Apply(f.end, c.Stored()))
}

// raiseLateness makes the events from before the decision late, because it is in doubt whether their keys had a
// row. It does so by raising the stream times of the task's namespaces. It does nothing if the operator chose to
// judge such events as unique.
func (r *Restore) raiseLateness(c *wire.Checkpoint) {
	if r.accepted == nil || r.accepted.Unique {
		return
	}
	for _, route := range r.src.App.Routes {
		if r.src.App.Topology.TaskTopicOf(route.Route) != r.id.Topic {
			continue
		}
		id := route.NamespaceID
		c.StreamTimes.At[id] = max(c.StreamTimes.Of(id), route.Span.MakesLate(r.accepted.At))
		c.StreamTimes.Has[id] = true
	}
	c.Counts, c.Counted = "", false
}

// trust continues with the local store although the changelog lacks rows. The checkpoint then says that
// the changelog is incomplete, so that the task writes its rows again.
func (r *Restore) trust(f *facts) (from int64, err error) {
	c := *f.stored
	c.Incomplete = true
	from = min(max(f.position, f.start), f.end)
	c.SetFloor(min(from, c.Floor), c.FloorRows) // because the changelog may end below the old fences
	r.base = &c
	return from, r.noteFailure(r.Store.Rebase(from, c.Stored()))
}

// renew replaces the local store by an empty store. If keep is true, it quarantines the old files. If keep is
// false, the store is merely older than the changelog, and renew removes the files.
func (r *Restore) renew(ctx context.Context, keep bool) error {
	r.base, r.fold = nil, wire.Fold{}
	if r.Store.Position() == 0 && len(r.Store.Checkpoint()) == 0 {
		return nil
	}
	err := r.abandon(func() error {
		if keep {
			return r.quarantine(errStale)
		}
		r.log.Info("local state is older than the changelog: reading all of it")
		if err := os.RemoveAll(r.src.Stores.DirOf(r.id)); err != nil {
			return fmt.Errorf("remove the store of %v: %w", r.id, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return r.open(ctx)
}

// conclude sets the checkpoint of the restored store: the newest checkpoint that the restore knows.
// start is where the changelog begins.
func (r *Restore) conclude(start int64) error {
	r.Checkpoint = wire.Checkpoint{Next: -1, Epoch: -1}
	newest, err := r.newest()
	if newest == nil || err != nil {
		return err
	}
	r.Checkpoint = *newest
	if r.base != nil && r.base.Incomplete {
		r.Checkpoint.Incomplete = true
		for id, has := range r.base.StreamTimes.Has {
			if has && r.base.StreamTimes.At[id] > r.Checkpoint.StreamTimes.Of(uint8(id)) {
				r.Checkpoint.StreamTimes.At[id], r.Checkpoint.StreamTimes.Has[id] = r.base.StreamTimes.At[id], true
			}
		}
	}
	if r.accepted != nil && r.accepted.Way == app.BelieveChangelog {
		r.Checkpoint.SetFloor(start, r.Checkpoint.FloorRows)
		r.Checkpoint.Incomplete = false
		r.raiseLateness(&r.Checkpoint)
	}
	return r.noteFailure(r.Store.Apply(max(r.position, r.Store.Position()), r.encode(r.Store.Checkpoint())))
}

// checkTail compares the restored checkpoint with the group's offset, which is committed in the same transaction
// as a checkpoint. If the changelog has lost its newest rows, the two differ, and checkTail waits for an
// operator's decision (hazard T15). The metadata of the offset names the transaction that committed it. If
// another program set the offset, the metadata names no transaction, and the checkpoint alone counts.
func (r *Restore) checkTail(ctx context.Context) error {
	same := r.Checkpoint.Generation == r.src.App.Manifest.Generation(r.id.Topic)
	if r.accepted != nil || r.Checkpoint.Next < 0 || same && r.startAt <= r.Checkpoint.Next {
		return nil
	}
	group, err := r.groupOffset(ctx)
	if err != nil {
		return err
	}
	commit := app.CommitOf(group.Metadata, group.At)
	if !lostTail(&r.Checkpoint, group.At, commit) {
		return nil
	}
	refusal := app.Refusal{
		Topic: r.id.Topic, Partition: r.id.Partition, Problem: app.ChangelogShortened, Ways: []app.Way{app.BelieveChangelog},
		Facts: fmt.Sprintf("transactions %d to %d", r.Checkpoint.Sequence+1, commit.Sequence),
		Detail: fmt.Sprintf("a broker lost the newest rows of its changelog, as an unclean election does: its last checkpoint is transaction %d, at input offset %d; "+
			"the group's offset %d is of transaction %d; the rows of the events at the offsets from %d on, at most %d, are lost; without them duplicates would be emitted; to go on at offset %d",
			r.Checkpoint.Sequence, r.Checkpoint.Next, group.At, commit.Sequence, r.Checkpoint.Next, group.At-r.Checkpoint.Next, group.At),
		At: time.Now().UTC(),
	}
	if r.accepted, err = r.awaitDecision(ctx, &refusal); err != nil {
		return err
	}
	r.resumeAt(group.At)
	r.Checkpoint.Sequence, r.Checkpoint.Generation = commit.Sequence, commit.Generation
	r.Checkpoint.Counts, r.Checkpoint.Counted = "", false
	r.raiseLateness(&r.Checkpoint)
	return r.noteFailure(r.Store.Apply(r.Store.Position(), r.Checkpoint.Stored()))
}

// checkInput compares the offset that the task will process next with the bounds of its input. If
// records are missing, it waits for an operator's decision.
func (r *Restore) checkInput(ctx context.Context) error {
	f, err := r.inputBounds(ctx)
	if err != nil {
		return err
	}
	if present := r.src.App.Manifest.Generation(r.id.Topic); r.Checkpoint.Generation != present {
		r.resumeAt(f.next) // the input was deleted and recreated
		r.Checkpoint.Generation = present
	}
	if f.next = r.Checkpoint.Next; f.next < 0 {
		f.next = r.startAt
	}
	if r.Checkpoint.Epoch >= 0 {
		if f.epochEnd, err = r.src.offsets.EpochEnd(ctx, r.src.Admin, r.id.Topic, r.id.Partition, r.Checkpoint.Epoch); err != nil {
			return err
		}
	}
	problem, resume, detail := checkInput(f)
	if problem == "" {
		return nil
	}
	refusal := app.Refusal{
		Topic: r.id.Topic, Partition: r.id.Partition, Problem: problem, Ways: []app.Way{app.InputLost},
		Facts: fmt.Sprintf("next %d", f.next), Detail: fmt.Sprintf("%s; to go on at offset %d", detail, resume), At: time.Now().UTC(),
	}
	if _, err := r.awaitDecision(ctx, &refusal); err != nil {
		return err
	}
	now, err := r.inputBounds(ctx)
	if err != nil {
		return err
	}
	f.start, f.end = now.start, now.end
	_, resume, _ = checkInput(f)
	r.resumeAt(resume)
	return nil
}

// inputBounds returns the bounds of the input. Their next is the offset at which a task without any offset
// starts.
func (r *Restore) inputBounds(ctx context.Context) (f inputFacts, err error) {
	id := r.src.App.Topology.Topics[r.id.Topic].ID
	f.epochEnd = -1
	f.start, f.end, err = r.src.Leaders.NewReader(r.id.Topic, id, r.id.Partition).Bounds(ctx)
	var pinned bool
	if f.next, pinned = r.src.App.Manifest.Start(r.id.Topic, id, r.id.Partition); !pinned {
		f.next = f.start
	}
	return f, err
}

// resumeAt makes the task continue at another offset of its input.
func (r *Restore) resumeAt(next int64) {
	r.Checkpoint.Next, r.Checkpoint.Epoch = next, -1
	r.Checkpoint.Bypassed, r.Checkpoint.DeadLettered = nil, nil
}
