package processor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/restore"
	"oncebus/processor/wire"
)

// routeFacts is what is known about a partition of a routed topic when a worker gets the partition, or when the
// partition has lost records.
type routeFacts struct {
	group   int64     // the group's committed offset; -1 for none
	foreign bool      // the app did not commit group; only set if group is higher than the mark's offset
	mark    *app.Mark // nil before the first routed record of the partition
	// unread is the error if the mark of the partition cannot be read; else nil.
	unread     *wire.UnreadableError
	skips      *wire.UnreadableError // the unreadable record before which the partition waits; nil for none
	topicID    string                // the present id of the topic
	start, end int64                 // of the partition
	// divergence is the end of the leader epoch that the record before the group's offset had. If it is lower
	// than the group's offset, a broker lost the records from divergence on. -1 if unknown.
	divergence int64
	first      int64 // the offset at which to start if no record was routed yet
	pinned     bool  // first is pinned in the manifest since the topic was added to the app
}

// kept returns the offset up to which the broker still has the records that were routed; it lost those from
// there on.
func (f *routeFacts) kept() int64 {
	if f.divergence < 0 {
		return min(f.end, f.next())
	}
	return max(min(f.divergence, f.next()), f.start)
}

// chooseStart returns the offset to route next, or the problem because of which an operator must decide. The
// routing stage has no state but the group's offsets. The marks, which are written in the same transactions,
// show whether offsets were lost, set back or set ahead, and whether a topic was recreated. Example: the group's
// offset is 40 and the mark says 60. So somebody has set the offset back by 20 records that were routed already.
func chooseStart(f routeFacts) (offset int64, problem app.Problem) {
	switch {
	case f.unread != nil:
		return 0, app.RecordUnreadable
	case f.mark != nil && f.mark.TopicID != f.topicID:
		return 0, app.TopicRecreated
	case f.mark == nil && f.group < 0 && f.pinned && f.first < f.start:
		return 0, app.InputDeleted // no record was routed yet, so only the manifest shows the loss
	case f.mark == nil && f.group < 0:
		return max(f.start, f.first), "" // the first start
	case f.group < 0 && !f.mark.Clean:
		return 0, app.OffsetsLost
	case f.group < 0:
		offset = f.mark.Offset
	case f.mark != nil && f.group < f.mark.Offset:
		return 0, app.OffsetsReset
	case f.isAhead():
		return 0, app.OffsetsAhead
	default:
		offset = f.group
	}
	switch {
	case offset < f.start:
		return 0, app.InputDeleted
	case offset > f.end, f.divergence >= 0 && f.divergence < offset && offset == f.group:
		return 0, app.InputShortened
	}
	return offset, ""
}

// isAhead reports whether somebody other than the app set the group's offset ahead of the mark. The metadata of
// an offset shows whether the app committed it. Before the partition has a mark, anybody may set the offset: so
// an operator can choose where the app starts.
func (f *routeFacts) isAhead() bool { return f.foreign && f.pastMark() }

// pastMark reports whether the group's offset is higher than the mark.
func (f *routeFacts) pastMark() bool { return f.mark != nil && f.group > f.mark.Offset }

// next returns the offset after the last routed record, as far as is known.
func (f *routeFacts) next() int64 {
	switch {
	case f.group >= 0:
		return f.group
	case f.mark != nil:
		return f.mark.Offset
	}
	return f.first
}

// routeRefusal describes why a partition of a routed topic waits for a decision.
func routeRefusal(id app.TaskID, f *routeFacts, problem app.Problem) app.Refusal {
	group, mark := "the group has no offset for it", "it has no mark"
	ways := []app.Way{app.FromStart, app.FromOffset}
	facts := ""
	if f.group >= 0 {
		group = fmt.Sprintf("the group's offset is %d", f.group)
	}
	if f.mark != nil {
		mark = fmt.Sprintf("its mark is %d in the topic with the id %s", f.mark.Offset, f.mark.TopicID)
	}
	var what string
	switch problem {
	case app.OffsetsLost:
		what = "the offsets of the routing group are gone (expired or deleted); from the mark on, records may have been routed: those without a key would be emitted twice"
		ways = append([]app.Way{app.FromMark}, ways...)
	case app.OffsetsReset:
		what = "the group's offset was set back to records that were routed: those without a key would be emitted twice"
		ways = append([]app.Way{app.FromMark, app.FromGroup}, ways...)
	case app.OffsetsAhead:
		what = fmt.Sprintf("the group's offset was set ahead, over up to %d records that were not routed: those at offsets %d to %d would be skipped", f.group-f.mark.Offset, f.mark.Offset, f.group-1)
		ways = append([]app.Way{app.FromMark, app.FromGroup}, ways...)
	case app.RecordUnreadable:
		what = "its mark cannot be read, " + f.unread.Error() + "; the mark would show whether the group's offset was lost or moved"
		facts = f.unread.Record + " " + f.unread.Digest
		if f.group >= 0 {
			ways = append([]app.Way{app.FromGroup}, ways...)
		}
	case app.TopicRecreated:
		what = "the topic was deleted and recreated: the offsets do not belong to its records"
	case app.InputDeleted:
		next := f.next()
		what = fmt.Sprintf("its records at offsets %d to %d, at most %d, were deleted before they were read", next, f.start-1, f.start-next)
	case app.InputShortened, app.StateLost, app.ChangelogCut, app.ChangelogShortened:
		what = "a broker lost records that were routed, and may have others at their offsets"
		if kept := f.kept(); kept < f.next() {
			what = fmt.Sprintf("a broker lost its records at offsets %d to %d, which were routed, at most %d; it may have others there, unread: to go on with them, --from %d", kept, f.next()-1, f.next()-kept, kept)
		}
	}
	return app.Refusal{
		Topic: id.Topic, Partition: id.Partition, Problem: problem, Ways: ways, At: time.Now().UTC(),
		Facts:  cmp.Or(facts, fmt.Sprintf("%s; %s; topic id %s", group, mark, f.topicID)),
		Detail: fmt.Sprintf("%s; %s; %s; it has records from offset %d to %d", what, group, mark, f.start, f.end-1),
	}
}

// acceptedStart returns the offset that an operator chose.
func acceptedStart(f *routeFacts, a *app.Acceptance) int64 {
	offset := f.start
	switch a.Way {
	case app.FromMark:
		offset = f.mark.Offset
	case app.FromGroup, app.SkipRecord: // the record to skip is left out when it is read again
		offset = f.group
	case app.FromOffset:
		offset = a.Offset
	case app.FromStart, app.BelieveLocal, app.BelieveChangelog, app.BelieveNothing, app.InputLost:
	}
	return min(max(offset, f.start), f.end)
}

// routeStarts decides for a worker of the routing stage at which offsets its partitions
// start, and which of them wait for a decision.
type routeStarts struct {
	*shared
	on atomic.Pointer[edition] // the edition of the worker's current client

	mu      sync.Mutex
	waiting map[app.TaskID]*waitingPartition
	// unlisted are the partitions whose start and end offsets could not be listed, because they have no leader,
	// with the group's offsets.
	unlisted map[app.TaskID]*unlistedPartition
	decided  map[app.TaskID]decidedStart // starts that were chosen, and that the worker has not taken yet
	// placing are partitions between resolve and placeKnown: some of them have to wait, but the client has not
	// paused them yet.
	placing map[app.TaskID]bool
}

// decidedStart is the offset at which a partition is read on after an operator's decision, or after it got a
// leader again.
type decidedStart struct {
	at       int64
	mark     *app.Mark // nil for none
	returned bool      // the partition had no leader
	skips    *wire.UnreadableError
}

// waitingPartition is a partition that waits for an operator's decision.
type waitingPartition struct {
	facts   routeFacts
	refusal app.Refusal
}

func newRouteStarts(s *shared) *routeStarts {
	r := &routeStarts{shared: s, waiting: map[app.TaskID]*waitingPartition{}, unlisted: map[app.TaskID]*unlistedPartition{}, decided: map[app.TaskID]decidedStart{}, placing: map[app.TaskID]bool{}}
	r.on.Store(s.newest())
	return r
}

// resolve sets the offsets of newly assigned partitions. It returns the partitions that wait for a decision
// or for a leader; the offsets of these have no meaning.
func (r *routeStarts) resolve(ctx context.Context, offsets map[string]map[int32]kgo.Offset, held *app.Marks, order *timeOrder) (waiting map[app.TaskID]bool, err error) {
	r.drop(kafka.Partitions(offsets)) // partitions lost without a callback (A8), and assigned again
	r.place(offsets, true)
	decisions, err := app.ReadDecisions(ctx, r.on.Load().source.Client, r.on.Load().rt.Topology, r.holds)
	if errors.As(err, new(*wire.UnreadableError)) {
		return r.awaitHold(offsets, err), nil
	}
	if err != nil {
		return nil, err
	}
	known, unlisted, err := r.gather(ctx, offsets, decisions)
	if err != nil {
		return nil, err
	}
	waiting = map[app.TaskID]bool{}
	for id, why := range unlisted {
		r.awaitLeader(id, offsets[id.Topic][id.Partition], why)
		waiting[id] = true
	}
	for id, f := range known {
		at, refused := r.startOf(ctx, id, f, decisions)
		if refused != nil {
			r.refuse(ctx, id, refused)
			waiting[id] = true
			continue
		}
		if at != f.group {
			offsets[id.Topic][id.Partition] = kgo.NewOffset().At(at) // its epoch is unknown
		}
		held.Assign(id, at, offsets[id.Topic][id.Partition].EpochOffset().Epoch, f.mark)
		order.assign(id, at, f.end)
	}
	return waiting, nil
}

// gather collects the facts about assigned partitions. For unlisted partitions it returns the reason
// instead.
func (r *routeStarts) gather(ctx context.Context, offsets map[string]map[int32]kgo.Offset, decisions *app.Decisions) (known map[app.TaskID]*routeFacts, unlisted map[app.TaskID]error, err error) {
	bounds, unlisted, err := app.ListBounds(ctx, r.admin, offsets)
	if err != nil {
		return nil, nil, err
	}
	epochs := kafka.Epochs(offsets)
	for id := range unlisted {
		if delete(epochs[id.Topic], id.Partition); len(epochs[id.Topic]) == 0 {
			delete(epochs, id.Topic)
		}
	}
	ends, err := kafka.EpochEnds(ctx, r.admin, epochs)
	if err != nil {
		return nil, nil, err
	}
	known, past := map[app.TaskID]*routeFacts{}, map[string][]int32{}
	for id, of := range bounds {
		f := r.factsOf(id, max(-1, offsets[id.Topic][id.Partition].EpochOffset().Offset))
		f.start, f.end = of.Start, of.End
		if end, ok := ends[id.Topic][id.Partition]; ok {
			f.divergence = end
		}
		if mark, ok := decisions.Marks[id.String()]; ok {
			f.mark = &mark
		}
		f.unread = decisions.UnreadMarks[id.String()]
		if f.pastMark() {
			past[id.Topic] = append(past[id.Topic], id.Partition)
		}
		known[id] = &f
	}
	foreign, err := app.ForeignOffsets(ctx, r.on.Load().source.Client, app.GroupName(r.cfg.AppID, app.StageRoute), past)
	for _, id := range foreign {
		known[id].foreign = true
	}
	return known, unlisted, err
}

// startOf returns the offset at which a partition starts. If an operator has to decide, it instead returns the
// waiting partition with the refusal that asks the operator.
func (r *routeStarts) startOf(ctx context.Context, id app.TaskID, f *routeFacts, decisions *app.Decisions) (at int64, refused *waitingPartition) {
	at, problem := chooseStart(*f)
	if problem == "" {
		if left, listed := decisions.Refusals[id.String()]; listed {
			r.removeRefusal(ctx, &left) // left by a process that died
		}
		return at, nil
	}
	refusal := routeRefusal(id, f, problem)
	accepted, ok := decisions.Accepted(&refusal)
	if !ok {
		return 0, &waitingPartition{*f, refusal}
	}
	r.removeRefusal(ctx, &refusal)
	return acceptedStart(f, &accepted), nil
}

// lose makes a partition wait for a decision after the client has reported that the partition lost records.
// divergence is the offset from which on the client found other records than before; -1 if unknown.
func (r *routeStarts) lose(ctx context.Context, id app.TaskID, divergence int64, held *app.Marks) error {
	bounds, unlisted, err := app.ListBounds(ctx, r.admin, map[string]map[int32]kgo.Offset{id.Topic: {id.Partition: {}}})
	if err != nil || unlisted[id] != nil {
		return cmp.Or(err, unlisted[id])
	}
	position, mark := held.Of(id)
	f := r.factsOf(id, position)
	f.start, f.end, f.mark, f.divergence = bounds[id].Start, bounds[id].End, mark, divergence
	_, problem := chooseStart(f)
	if problem == "" {
		problem = app.InputShortened // the lost offsets exist again, with other records
	}
	held.Revoke(map[string][]int32{id.Topic: {id.Partition}}) // its mark stays as it is
	r.refuse(ctx, id, &waitingPartition{f, routeRefusal(id, &f, problem)})
	return nil
}

// refuseRecord makes a partition wait until an operator skips an unreadable record.
func (r *routeStarts) refuseRecord(ctx context.Context, id app.TaskID, unreadable *wire.UnreadableError, held *app.Marks) error {
	bounds, unlisted, err := app.ListBounds(ctx, r.admin, map[string]map[int32]kgo.Offset{id.Topic: {id.Partition: {}}})
	if err != nil || unlisted[id] != nil {
		return cmp.Or(err, unlisted[id])
	}
	position, mark := held.Of(id)
	f := r.factsOf(id, position)
	f.start, f.end, f.mark, f.skips = bounds[id].Start, bounds[id].End, mark, unreadable
	held.Revoke(map[string][]int32{id.Topic: {id.Partition}}) // its mark stays as it is
	r.refuse(ctx, id, &waitingPartition{f, app.RefuseRecord(id, unreadable)})
	return nil
}

// factsOf returns the facts about a partition that are known without a request.
func (r *routeStarts) factsOf(id app.TaskID, group int64) routeFacts {
	topic := r.on.Load().rt.Topology.Topics[id.Topic]
	f := routeFacts{group: group, topicID: app.TopicIDText(topic.ID), divergence: -1}
	f.first, f.pinned = r.on.Load().rt.Manifest.Start(id.Topic, topic.ID, id.Partition)
	return f
}

// refuse makes a partition wait for a decision, and tells the operator why.
func (r *routeStarts) refuse(ctx context.Context, id app.TaskID, w *waitingPartition) {
	r.announce(ctx, w)
	r.mu.Lock()
	r.await(id, w)
	r.mu.Unlock()
}

// announce logs that a partition waits for a decision, and writes the refusal to the manifest topic.
func (r *routeStarts) announce(ctx context.Context, w *waitingPartition) {
	refusal := &w.refusal
	r.log.Error("partition refused, waiting for a decision", "partition", refusal.Name(), "problem", string(refusal.Problem), "detail", refusal.Detail, "decide", refusal.Command())
	refusal.Instance = r.cfg.InstanceID
	if err := app.WriteRefusal(ctx, r.on.Load().source.Client, r.on.Load().rt.Topology, refusal); err != nil {
		r.log.Warn("write refusal failed, retrying", "partition", refusal.Name(), "error", err)
	}
}

// await stores that a partition waits for a decision, and about what. The caller holds r.mu.
func (r *routeStarts) await(id app.TaskID, w *waitingPartition) {
	r.board.explain(id, w.refusal.Text())
	r.restores.AddRefused(w.refusal.Problem, 1)
	r.waiting[id] = w
}

// drop forgets partitions that are revoked.
func (r *routeStarts) drop(gone map[string][]int32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for topic, partitions := range gone {
		for _, p := range partitions {
			r.remove(app.TaskID{Topic: topic, Partition: p})
			delete(r.placing, app.TaskID{Topic: topic, Partition: p})
		}
	}
}

// ids returns the partitions that wait, and those whose start was chosen but not taken yet.
func (r *routeStarts) ids() []app.TaskID {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := slices.Collect(maps.Keys(r.waiting))
	all = slices.AppendSeq(all, maps.Keys(r.unlisted))
	return slices.AppendSeq(all, maps.Keys(r.decided))
}

// begin drops all partitions, for a new client, and takes the client's edition.
func (r *routeStarts) begin(on *edition) {
	r.on.Store(on)
	r.mu.Lock()
	defer r.mu.Unlock()
	for id := range r.waiting {
		r.remove(id)
	}
	for id := range r.unlisted {
		r.remove(id)
	}
	clear(r.decided)
	clear(r.placing)
}

func (r *routeStarts) remove(id app.TaskID) {
	if w := r.waiting[id]; w != nil {
		r.restores.AddRefused(w.refusal.Problem, -1)
		r.board.explain(id, "")
		delete(r.waiting, id)
	}
	if _, waits := r.unlisted[id]; waits {
		r.board.explain(id, "")
		delete(r.unlisted, id)
	}
	delete(r.decided, id)
}

// run looks for decisions and for leaders until ctx is done, and calls wake when a partition need not wait any
// more.
func (r *routeStarts) run(ctx context.Context, wake func()) {
	for kafka.Pause(ctx, restore.DecisionPoll) == nil {
		r.mu.Lock()
		waiting, unlisted := len(r.waiting), len(r.unlisted)
		r.mu.Unlock()
		if waiting+unlisted == 0 {
			continue
		}
		decisions, err := r.on.Load().source.Decisions(ctx)
		if err != nil {
			continue // the brokers are down: the probe reports it
		}
		some := r.decide(ctx, decisions)
		if unlisted > 0 && r.lookAgain(ctx, decisions) || some {
			wake()
		}
	}
}

// decide moves partitions whose start an operator has accepted to decided. While it writes to the manifest topic
// it holds no lock, because a write may take long, and rebalances and transactions need the lock meanwhile.
func (r *routeStarts) decide(ctx context.Context, decisions *app.Decisions) (some bool) {
	r.mu.Lock()
	waiting := maps.Clone(r.waiting)
	r.mu.Unlock()
	for id, w := range waiting {
		accepted, ok := decisions.Accepted(&w.refusal)
		switch _, listed := decisions.Refusals[w.refusal.Name()]; {
		case !r.awaits(id, w): // the partition was revoked while decide wrote for others
		case ok:
			r.removeRefusal(ctx, &w.refusal)
			some = r.accept(id, w, &accepted) || some
		case !listed:
			r.listAgain(ctx, id, w)
		}
	}
	return some
}

// awaits reports whether a partition still waits for the decision on this refusal.
func (r *routeStarts) awaits(id app.TaskID, w *waitingPartition) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.waiting[id] == w
}

// accept moves a partition to decided, unless it was revoked or refused again meanwhile.
func (r *routeStarts) accept(id app.TaskID, w *waitingPartition, accepted *app.Acceptance) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waiting[id] != w {
		return false
	}
	at := acceptedStart(&w.facts, accepted)
	r.log.Warn("decision accepted", "partition", id.String(), "problem", string(w.refusal.Problem), "way", string(accepted.Way), "from", at, "by", accepted.By, "why", accepted.Why)
	r.remove(id)
	r.decided[id] = decidedStart{at: at, mark: w.facts.mark, skips: w.facts.skips}
	return true
}

// listAgain writes the row of a refusal that is not in the manifest topic. If the partition was revoked during
// the write, listAgain removes the row again, because the partition's next owner may have looked for an old row
// before the write, and does not look a second time. If the next owner waits too, it writes its own row at its
// next look.
func (r *routeStarts) listAgain(ctx context.Context, id app.TaskID, w *waitingPartition) {
	err := app.WriteRefusal(ctx, r.on.Load().source.Client, r.on.Load().rt.Topology, &w.refusal)
	if err == nil && !r.awaits(id, w) { // after an error the next look tries again
		r.removeRefusal(ctx, &w.refusal)
	}
}

// removeRefusal removes the row of a refusal. It only logs an error, because the row is only information for
// operators.
func (r *routeStarts) removeRefusal(ctx context.Context, refusal *app.Refusal) {
	if err := app.RemoveRefusal(ctx, r.on.Load().source.Client, r.on.Load().rt.Topology, refusal); err != nil {
		r.log.Warn("remove refusal failed", "partition", refusal.Name(), "error", err)
	}
}
