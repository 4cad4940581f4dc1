package processor

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/app"
	"oncebus/processor/kafka"
)

// While a hold is in force the routing stage routes nothing, and the tasks of prepartitioned topics judge
// nothing. The worker of each partition writes a held row to the manifest topic, in a transaction with the
// partition's offset: if that transaction commits, the worker still owned the partition. A later owner reads the
// manifest topic before it fetches, and finds the hold. The workers stay in their groups.

// holdFollower reads the hold in the manifest topic, and releases a hold whose time limit has passed.
type holdFollower struct {
	*shared

	conn app.Conn
}

func (f *holdFollower) clear() {} // a hold is in force until a later row says otherwise

func (f *holdFollower) take(rec *kgo.Record) bool {
	changed, err := f.holds.Take(rec)
	if err != nil {
		f.log.Error("hold cannot be read, skipped: repeat 'oncebus hold'", "error", err)
	}
	if changed {
		f.followNow()
	}
	return changed
}

// caughtUp releases a hold whose time limit has passed. If the hold is that of a promotion, it ends the
// promotion once all workers of the process have taken the new route set.
func (f *holdFollower) caughtUp(ctx context.Context) error {
	hold := f.holds.InForce()
	f.metrics.observeHold(hold, f.clock.Now())
	if hold.IsPromotion() && hold.Set > 0 && hold.Set <= f.takenSet() {
		_, err := app.EndPromotion(ctx, f.conn, f.cfg.Config, f.newest().rt.Topology, hold)
		return err
	}
	if hold == nil || !hold.Expired(time.UnixMilli(f.clock.Now())) {
		return nil
	}
	if hold.Switch != "" && !hold.IsPromotion() {
		ended, err := app.EndSwitch(ctx, f.conn, f.cfg.Config, f.newest().rt.Topology, "the limit of its hold passed")
		if err == nil && ended != nil {
			f.log.Warn("switch ended, the limit of its hold has passed", "switch", ended.Number, "phase", ended.Phase.String())
		}
		return err
	}
	ended, err := app.Release(ctx, f.conn, f.cfg.Config, f.newest().rt.Topology, hold.ID)
	if err == nil && ended != nil {
		f.log.Warn("hold released, its limit has passed", "hold", hold.ID, "reason", hold.Reason)
	}
	return err
}

// pauses holds the topics that a worker's client does not fetch. The worker and the group's goroutine
// change them.
type pauses struct {
	mu     sync.Mutex
	topics []string
	hold   string   // id of the hold that was logged last
	grown  []string // prepartitioned topics whose added partitions were logged
}

// reset forgets the pauses, for a new client.
func (p *pauses) reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.topics = nil
}

// set pauses the client's fetching of these topics, and resumes all other topics that were paused.
func (p *pauses) set(client *kgo.Client, topics []string) {
	pause := without(topics, p.topics)
	resume := without(p.topics, topics)
	if len(pause) > 0 {
		client.PauseFetchTopics(pause...)
	}
	if len(resume) > 0 {
		client.ResumeFetchTopics(resume...)
	}
	p.topics = topics
}

// see notes in a task that the fetching of its topic is paused. A poll without records then does not mean that
// the task has no lag.
func (p *pauses) see(t *task) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if slices.Contains(p.topics, t.ID.Topic) {
		t.pausedAt = time.Now()
	}
}

// without returns the elements of a that are not in b.
func without(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(s string) bool { return slices.Contains(b, s) })
}

// pauseFetching pauses the topics of tasks while the disk is filling, the inputs while a hold is in force,
// and prepartitioned topics with added partitions. The member stays in the group, because the worker
// continues to poll.
func (w *worker) pauseFetching() {
	w.pauses.mu.Lock()
	defer w.pauses.mu.Unlock()
	var topics []string
	full := w.txns.tasks != nil && w.stores.Paused() != nil
	if full {
		topics = w.rt.Waiting
	}
	hold := w.heldBy()
	if hold != nil {
		topics = append(slices.Clone(topics), without(w.heldTopics(), topics)...)
	}
	grown := w.grownTopics()
	topics = append(slices.Clone(topics), without(grown, topics)...)
	w.pauses.set(w.txns.client, topics)
	if w.fetchingPaused.Swap(full) != full {
		if full {
			w.log.Info("fetching paused")
		} else {
			w.log.Info("fetching resumed")
		}
	}
	w.logHold(hold)
	for _, topic := range without(grown, w.pauses.grown) {
		began := w.rt.Topology.Topics[topic].Partitions
		w.log.Error("prepartitioned topic paused", "reason", app.AddedPartitionText(topic, began, began))
	}
	w.pauses.grown = grown
}

// grownTopics returns the prepartitioned topics that have got partitions since the app was set up. The row of a
// key may now be in one partition, and the next event of the key in another one, so no record of the topic may
// be judged. The metadata of the client shows the added partitions, in every process.
func (w *worker) grownTopics() (grown []string) {
	if w.stage != app.StageDedup {
		return nil
	}
	for _, topic := range w.rt.Topology.Prepartitioned {
		if hasPartition(w.txns.client, topic, w.rt.Topology.Topics[topic].Partitions) {
			grown = append(grown, topic)
		}
	}
	return grown
}

// hasPartition reports whether a topic has this partition, according to the client's metadata.
func hasPartition(client *kgo.Client, topic string, partition int32) bool {
	leader, _, err := client.PartitionLeader(topic, partition)
	return leader >= 0 && err == nil
}

// heldBy returns the hold because of which the worker reads no input; nil for none.
func (w *worker) heldBy() *app.Hold {
	if w.stage == app.StageRoute {
		return w.holds.For(w.rt.Topology.Generation)
	}
	return w.holds.InForce()
}

// heldTopics returns the inputs that the worker reads, and that a hold therefore pauses.
func (w *worker) heldTopics() []string {
	if w.stage == app.StageDedup {
		return w.rt.Topology.Prepartitioned
	}
	return w.rt.Topology.Routed
}

// logHold logs when a hold begins and when it ends.
func (w *worker) logHold(hold *app.Hold) {
	before := w.pauses.hold
	w.pauses.hold = ""
	if hold != nil {
		w.pauses.hold = hold.ID
	}
	switch {
	case before == w.pauses.hold || len(w.heldTopics()) == 0:
	case hold != nil:
		w.log.Info("input held", "hold", hold.ID, "reason", hold.Reason, "by", hold.By)
	default:
		w.log.Info("input released", "hold", before)
	}
}

// holdAssigned pauses newly assigned inputs if a hold is in force. The routing stage has already read the
// manifest topic before this call. A worker of the dedup stage reads the manifest topic here in two cases: if it
// gets a prepartitioned topic, and if it may get records whose keys follow the rule of a route before its
// promotion.
func (w *worker) holdAssigned(ctx context.Context, offsets map[string]map[int32]kgo.Offset) error {
	for topic := range offsets {
		if w.stage == app.StageDedup && (slices.Contains(w.rt.Topology.Prepartitioned, topic) || w.rt.HasPromoted()) {
			if err := w.holds.Read(ctx, w.source.Client, w.rt.Topology); err != nil {
				return err
			}
			break
		}
	}
	w.pauseFetching()
	return nil
}

// hold runs the last transactions of the routing stage under a hold. If records were polled before the pause,
// one transaction routes them. Another one writes the held rows of the partitions that have none yet.
func (w *worker) hold(fetches kgo.Fetches, hold *app.Hold) error {
	if len(w.txns.oversized.batches) > 0 {
		return nil // a new client begins paused
	}
	if w.holds.InForce() == nil { // the act of a move has ended the hold, but this worker still has the old edition
		w.readManifestNow()
		if fetches.NumRecords() > 0 {
			return kafka.AsCommitUnknown(errNextGeneration) // only a new client fetches the polled records again
		}
		return w.txns.fetchErr(fetches)
	}
	if fetches.NumRecords() == 0 && w.txns.marks.HoldsAll(hold) {
		return w.txns.fetchErr(fetches)
	}
	w.memory.use()
	err := w.txns.runOne(fetches)
	if err == nil {
		w.txns.dropWaiting()
	}
	return err
}

// errNextGeneration ends a client that has polled input which must be routed to the next generation of
// partitions.
var errNextGeneration = errors.New("the partitions of the app have changed")

// refuses reports whether the held row of a partition may be committed already, so that the open transaction may
// process none of the partition's records.
func (x *transactions) refuses(id app.TaskID) bool {
	if x.router != nil {
		hold := x.holds.For(x.rt.Topology.Generation)
		return hold != nil && (x.marks.Refuses(id, hold) || x.holds.InForce() == nil)
	}
	hold := x.holds.InForce()
	if hold == nil {
		return false
	}
	t := x.tasks.tasks[id]
	return t != nil && t.refusesHold == hold.ID
}

// holding is what a task of a prepartitioned topic knows about holds. Each value is the id of a hold.
type holding struct {
	// held is the hold whose held row is committed for the partition. pendingHeld is the hold whose held row is
	// in the open transaction. While refusesHold is in force, the task may judge no record.
	held, pendingHeld, refusesHold string
}

// refuseHeld makes a new task of a prepartitioned topic judge nothing under a hold in force, because the
// former owner may have committed the held row already.
func (t *task) refuseHeld(hold *app.Hold) {
	if hold != nil && !t.Repartitioned {
		t.refusesHold = hold.ID
	}
}

// heldCommitted runs after the commit of a transaction with this task.
func (t *task) heldCommitted() {
	if t.pendingHeld != "" {
		t.held, t.refusesHold, t.pendingHeld = t.pendingHeld, t.pendingHeld, ""
	}
}

// unheld reports whether a task still has to write its held row for a hold.
func (t *task) unheld(hold *app.Hold) bool {
	return !t.Repartitioned && t.judges() && t.held != hold.ID
}

// holding reports whether any task has to write its held row for the hold in force.
func (s *taskSet) holding() bool {
	hold := s.holds.InForce()
	if hold == nil || len(s.rt.Topology.Prepartitioned) == 0 {
		return false
	}
	for _, t := range s.tasks {
		if t.unheld(hold) {
			return true
		}
	}
	return false
}

// joinHold adds the tasks of prepartitioned topics to the open transaction, with their held rows for a
// hold; nil means that there is none. For these tasks it is the last transaction with input until the
// release.
func (s *taskSet) joinHold(send func(*kgo.Record), hold *app.Hold) {
	if hold == nil || len(s.rt.Topology.Prepartitioned) == 0 {
		return
	}
	for _, t := range s.sorted() {
		if t.unheld(hold) {
			t.JoinTransaction()
			t.pendingHeld = hold.ID
			send(app.Held{Hold: hold.ID, Offset: t.Open.Next}.Record(s.rt.Topology, t.ID))
		}
	}
}
