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
	// hangInterval is the time between two looks for transactions that hang. What is open in two
	// of them, and completed for its coordinator, hangs.
	hangInterval = 5 * time.Second
	// closeMax bounds how long a watch tries to close the transaction of a worker.
	closeMax = 20 * time.Second
	// unownedLooks is in how many looks a transaction is open of which no coordinator says
	// anything, until it counts as hanging: for the default of transaction.max.timeout.ms.
	unownedLooks = int(15 * time.Minute / hangInterval)
	// pendingLooks is in how many looks the offset of a partition is part of a transaction until
	// the watch closes it.
	pendingLooks = 3
)

// A hangWatch looks for transactions that hang in the topics that the app reads or writes. It closes
// those of its workers, of which the process may be dead for good, and reports the
// others. Every process of the app has one; it is harmless if several close the same one.
type hangWatch struct {
	*shared

	workers []*worker
	closer  *hanging.Closer
	open    []hanging.Open // in the last look
	looks   map[hanging.Open]int
	pending map[app.TaskID]pendingOffset   // by task or input
	sights  map[string]*hanging.GroupSight // the last ones, by stage
	closed  map[string]bool                // stages whose workers' transactions were closed for what is pending
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

// look looks once.
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

// stableKey is what identifies an open transaction while its producer goes on to write.
func stableKey(o hanging.Open) hanging.Open {
	return hanging.Open{Partition: o.Partition, Producer: o.Producer, From: o.From}
}

// count counts the looks in which transactions are open.
func (h *hangWatch) count(staying []hanging.Open) {
	looks := map[hanging.Open]int{}
	for _, o := range staying {
		looks[stableKey(o)] = h.looks[stableKey(o)] + 1
	}
	h.looks = looks
}

// closeOf closes the last transaction of a worker in partitions, whichever process has or had it.
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

// A pendingOffset is part of a transaction: the offset before it, and in how many looks neither moved.
type pendingOffset struct {
	stage string
	at    int64
	looks int
	hangs *hanging.Pending // nil until that is known
}

// lookAtPending looks at the offsets of the app's groups that stay part of a transaction. If no
// coordinator ends it, the workers keep the partitions back.
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

// lookAtStage adds the pending offsets of a stage. If it cannot look, it keeps those that hang.
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

// closePending closes offsets of the app's groups that stay part of a transaction. Nothing says
// of which transaction, so the watch closes the last one of every worker whose coordinator has
// completed it. It does so once: if that does not help, the offsets are those of another producer.
// Where a broker is away and the closing fails, the next look repeats it.
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

// show publishes the transactions that no process closes.
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
