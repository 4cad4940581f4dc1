package processor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"oncebus/processor/app"
	"oncebus/processor/hanging"
	"oncebus/processor/kafka"
)

const (
	// hangInterval is the time between two looks for hanging transactions. A transaction hangs if it is open in
	// a partition in two looks, although its coordinator has completed it.
	hangInterval = 5 * time.Second
	// closeMax bounds how long a watch tries to close one transaction of a worker.
	closeMax = 20 * time.Second
	// unownedLooks is the number of looks after which an open transaction counts as hanging if no coordinator
	// knows the transaction. So many looks take as long as the default of transaction.max.timeout.ms.
	unownedLooks = int(15 * time.Minute / hangInterval)
	// pendingLooks is a number of looks. If a group offset of a partition is pending and unchanged in so many
	// looks, the watch closes the transactions to which the offset may belong.
	pendingLooks = 3
)

// A hangWatch looks for hanging transactions in the topics that the app reads or writes. It closes the hanging
// transactions of the app's workers, whose process may be dead for good, and only reports those of other
// producers. Every process of the app has a hangWatch. Several of them may close the same transaction without
// harm.
type hangWatch struct {
	*shared

	workers []*worker
	closer  *hanging.Closer
	open    []hanging.Open // open transactions in the last look
	looks   map[hanging.Open]int
	pending map[app.TaskID]pendingOffset   // pending group offsets, by task or input
	sights  map[string]*hanging.GroupSight // the last look at each group, by stage
	closed  map[string]bool                // stages whose workers' last transactions were closed because of pending offsets
	shown   map[app.TaskID]bool
	denied  map[string]bool // topics that the user has no right to read
}

func newHangWatch(s *shared, workers []*worker, conn app.Conn) *hangWatch {
	return &hangWatch{shared: s, workers: workers, sights: map[string]*hanging.GroupSight{}, closed: map[string]bool{}, closer: &hanging.Closer{Client: conn.Client, Admin: conn.Admin, Options: conn.Options, Log: s.log, Waits: func(string) {}}, looks: map[hanging.Open]int{}, pending: map[app.TaskID]pendingOffset{}, shown: map[app.TaskID]bool{}, denied: map[string]bool{}}
}

func (h *hangWatch) run(ctx context.Context) {
	for kafka.Pause(ctx, h.hangInterval) == nil {
		if err := h.look(ctx); err != nil && ctx.Err() == nil {
			h.log.Debug("looking for transactions that hang failed", "error", err)
		}
	}
}

// look looks for hanging transactions once, and closes or shows what it finds.
func (h *hangWatch) look(ctx context.Context) error {
	t := h.newest().rt.Topology
	sight := hanging.Look(ctx, h.closer.Client, t.Partitions(append(t.Written(), t.Inputs()...)), h.denied)
	maps.Copy(h.denied, sight.Denied)
	staying := hanging.Staying(h.open, sight.Open)
	h.open = sight.Open
	hangs, err := hanging.Owned(ctx, h.closer.Client, h.admin, staying)
	if err != nil {
		return err
	}
	h.count(staying)
	var left []hanging.Hang
	ours := map[string]kadm.TopicsSet{} // by transactional id
	for _, hang := range hangs {
		switch {
		case hang.ID == "" && h.looks[stableKey(hang.Open)] < unownedLooks:
		case app.StageOf(h.cfg.AppID, hang.ID) == "":
			left = append(left, hang)
		default:
			partitions := ours[hang.ID]
			partitions.Add(hang.Topic, hang.Number)
			ours[hang.ID] = partitions
		}
	}
	pending, err := h.lookAtPending(ctx)
	h.show(left, pending)
	for id, partitions := range ours {
		err = errors.Join(err, h.closeOf(ctx, id, partitions))
	}
	return errors.Join(err, h.closePending(ctx, h.closeWorkers))
}

// stableKey returns the part of an open transaction that stays the same while its producer writes further
// records.
func stableKey(o hanging.Open) hanging.Open {
	return hanging.Open{Partition: o.Partition, Producer: o.Producer, From: o.From}
}

// count counts for each of these transactions, which have stayed open since the last look, in how many looks it
// was open.
func (h *hangWatch) count(staying []hanging.Open) {
	looks := map[hanging.Open]int{}
	for _, o := range staying {
		looks[stableKey(o)] = h.looks[stableKey(o)] + 1
	}
	h.looks = looks
}

// closeOf closes the last transaction of a worker in these partitions, whichever process runs or ran the
// worker.
func (h *hangWatch) closeOf(ctx context.Context, id string, partitions kadm.TopicsSet) error {
	ctx, cancel := context.WithTimeout(ctx, closeMax)
	defer cancel()
	stage := app.StageOf(h.cfg.AppID, id)
	group := app.OffsetsOf(h.cfg.AppID, stage, h.newest().rt.Topology)
	err := h.closer.Close(ctx, &hanging.Last{ID: id, Partitions: partitions, Group: group.Name, Offsets: group.Of})
	if err != nil {
		h.log.Warn("closing a transaction that hangs failed", "transactional_id", id, "error", err)
	}
	return err
}

// A pendingOffset is a group offset that is part of an open transaction. at is the committed offset before the
// transaction, and looks is the number of looks in which neither offset has changed.
type pendingOffset struct {
	stage string
	at    int64
	looks int
	hangs *hanging.Pending // the transaction that hangs; nil until that is known
}

// lookAtPending looks at the offsets of the app's groups that stay part of a transaction. While no coordinator
// ends that transaction, the workers do not give the partitions to their clients (membership.keepBack).
func (h *hangWatch) lookAtPending(ctx context.Context) (hang []*hanging.Pending, err error) {
	before := h.pending
	h.pending = map[app.TaskID]pendingOffset{}
	for _, stage := range []string{app.StageRoute, app.StageDedup} {
		err = errors.Join(err, h.lookAtStage(ctx, stage, before))
		reasons := map[app.TaskID]string{}
		for id, p := range h.pending {
			if p.stage == stage && p.hangs != nil {
				hang = append(hang, p.hangs)
				reasons[id] = p.hangs.String()
			}
		}
		for _, w := range h.workers {
			if w.stage == stage && w.member.setHangs(reasons) {
				w.rejoin.Store(true)
				w.wake()
			}
		}
	}
	slices.SortFunc(hang, func(a, b *hanging.Pending) int { return strings.Compare(a.Partition.String(), b.Partition.String()) })
	return hang, err
}

// lookAtStage adds the pending offsets of a stage's group. If it cannot read the offsets, it keeps those that
// were found to hang in the look before.
func (h *hangWatch) lookAtStage(ctx context.Context, stage string, before map[app.TaskID]pendingOffset) error {
	group := app.OffsetsOf(h.cfg.AppID, stage, h.newest().rt.Topology)
	sight, err := hanging.LookAtGroup(ctx, h.closer.Client, h.admin, group)
	if err != nil {
		for id, p := range before {
			if p.stage == stage && p.hangs != nil {
				h.pending[id] = p
			}
		}
		return err
	}
	last := h.sights[stage]
	h.sights[stage] = sight
	for partition, at := range sight.Pending {
		id := app.TaskID{Topic: partition.Topic, Partition: partition.Number}
		now := pendingOffset{stage: stage, at: at, looks: 1}
		if was, known := before[id]; known && was.at == at {
			now.looks, now.hangs = was.looks+1, was.hangs
		}
		h.pending[id] = now
	}
	hangs, err := sight.Hangs(ctx, h.closer.Client, h.admin, group, last)
	for n := range hangs {
		id := app.TaskID{Topic: hangs[n].Topic, Partition: hangs[n].Number}
		if p := h.pending[id]; p.looks > pendingLooks {
			p.hangs = &hangs[n]
			h.pending[id] = p
		}
	}
	return err
}

// closePending tries to close the transactions of offsets that have been pending for pendingLooks. Nothing says
// to which transaction an offset belongs. So the watch closes the last transaction of every worker of the stage,
// if the coordinator has completed that transaction. The watch does so once: if the offsets are still pending
// afterwards, they belong to another producer. If the closing fails because a broker is away, the next look
// repeats it.
func (h *hangWatch) closePending(ctx context.Context, closing func(ctx context.Context, stage string) error) (failed error) {
	for _, stage := range []string{app.StageRoute, app.StageDedup} {
		longest := 0
		for _, p := range h.pending {
			if p.stage == stage {
				longest = max(longest, p.looks)
			}
		}
		switch {
		case longest < pendingLooks:
			delete(h.closed, stage)
		case !h.closed[stage]:
			err := closing(ctx, stage)
			h.closed[stage], failed = err == nil, errors.Join(failed, err)
		}
	}
	return failed
}

// closeWorkers closes the last transactions of all workers of a stage.
func (h *hangWatch) closeWorkers(ctx context.Context, stage string) error {
	listed, err := h.admin.ListTransactions(ctx, nil, nil)
	if err != nil {
		return fmt.Errorf("list the transactions: %w", err)
	}
	for _, id := range slices.Sorted(slices.Values(listed.TransactionalIDs())) {
		if app.StageOf(h.cfg.AppID, id) == stage {
			err = errors.Join(err, h.closeOf(ctx, id, nil))
		}
	}
	return err
}

// show publishes the hanging transactions that no process of the app closes.
func (h *hangWatch) show(left []hanging.Hang, pending []*hanging.Pending) {
	shown := map[app.TaskID]bool{}
	var texts []string
	add := func(at hanging.Partition, reason, waits, command string) {
		id := app.TaskID{Topic: at.Topic, Partition: at.Number}
		shown[id] = true
		h.metrics.hanging.WithLabelValues(id.Topic, strconv.Itoa(int(id.Partition))).Set(1)
		texts = append(texts, reason+"; "+waits+"; end it with: "+command)
		if !h.shown[id] {
			h.log.Error("a transaction hangs", "partition", id.String(), "reason", reason, "command", command)
		}
	}
	for _, hang := range left {
		add(hang.Partition, hang.String(), "readers wait before it", hang.Abort())
	}
	for _, p := range pending {
		add(p.Partition, p.String(), "no worker can go on there", p.Command())
	}
	for id := range h.shown {
		if !shown[id] {
			h.metrics.hanging.DeleteLabelValues(id.Topic, strconv.Itoa(int(id.Partition)))
			h.log.Info("a transaction that hung is closed", "partition", id.String())
		}
	}
	h.shown = shown
	h.board.setHanging(strings.Join(texts, "; "))
}
