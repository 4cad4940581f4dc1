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

	closer  *hanging.Closer
	open    []hanging.Open // in the last look
	looks   map[hanging.Open]int
	pending map[app.TaskID]pendingOffset // by task or input
	shown   map[app.TaskID]bool
	denied  map[string]bool // topics that the user has no right to read
}

func newHangWatch(s *shared, conn app.Conn) *hangWatch {
	return &hangWatch{shared: s, closer: &hanging.Closer{Client: conn.Client, Admin: conn.Admin, Options: conn.Options, Log: s.log, Waits: func(string) {}}, looks: map[hanging.Open]int{}, pending: map[app.TaskID]pendingOffset{}, shown: map[app.TaskID]bool{}, denied: map[string]bool{}}
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
	h.show(left)
	for id, partitions := range ours {
		h.closeOf(ctx, id, partitions)
	}
	return h.closePending(ctx)
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
func (h *hangWatch) closeOf(ctx context.Context, id string, partitions kadm.TopicsSet) {
	ctx, cancel := context.WithTimeout(ctx, closeMax)
	defer cancel()
	stage := app.StageOf(h.cfg.AppID, id)
	err := h.closer.Close(ctx, hanging.Last{ID: id, Partitions: partitions, Group: app.GroupName(h.cfg.AppID, stage), Offsets: h.offsetsOf(stage)})
	if err != nil {
		h.log.Warn("closing a transaction that hangs failed", "transactional_id", id, "error", err)
	}
}

// A pendingOffset is part of a transaction: the offset before it, and in how many looks neither moved.
type pendingOffset struct {
	at    int64
	looks int
}

// closePending closes offsets of the app's groups that stay part of a transaction. Nothing says
// of which, so the watch closes that of every worker whose coordinator has completed its last one.
func (h *hangWatch) closePending(ctx context.Context) error {
	before := h.pending
	h.pending = map[app.TaskID]pendingOffset{}
	var failed error
	for _, stage := range []string{app.StageRoute, app.StageDedup} {
		longest := 0
		for id, at := range h.pendingOf(ctx, stage) {
			looks := 1
			if was, known := before[id]; known && was.at == at {
				looks = was.looks + 1
			}
			h.pending[id] = pendingOffset{at, looks}
			longest = max(longest, looks)
		}
		if longest == pendingLooks { // once: if that does not help, they are of another producer
			failed = errors.Join(failed, h.closeWorkers(ctx, stage))
		}
	}
	return failed
}

// pendingOf returns the partitions whose offset in the group of a stage is part of a transaction,
// with the offset before; none while the group does not exist or its coordinator is away.
func (h *hangWatch) pendingOf(ctx context.Context, stage string) map[app.TaskID]int64 {
	of, group, pending := h.offsetsOf(stage), app.GroupName(h.cfg.AppID, stage), map[app.TaskID]int64{}
	if len(of) == 0 {
		return nil
	}
	stable, err := kafka.StableOffsets(ctx, h.closer.Client, group, of)
	if err != nil {
		return nil
	}
	committed, err := kafka.CommittedOffsets(ctx, h.closer.Client, group, of)
	if err != nil {
		return nil
	}
	for topic, partitions := range kafka.Unstable(of, stable) {
		for _, p := range partitions {
			pending[app.TaskID{Topic: topic, Partition: p}] = committed[topic][p].At
		}
	}
	return pending
}

// offsetsOf returns the partitions of which the group of a stage has offsets.
func (h *hangWatch) offsetsOf(stage string) map[string][]int32 {
	t := h.newest().rt.Topology
	return t.Numbers(t.StageTopics(stage))
}

// closeWorkers closes the last transactions of all workers of a stage.
func (h *hangWatch) closeWorkers(ctx context.Context, stage string) error {
	listed, err := h.admin.ListTransactions(ctx, nil, nil)
	if err != nil {
		return fmt.Errorf("list the transactions: %w", err)
	}
	for _, id := range slices.Sorted(slices.Values(listed.TransactionalIDs())) {
		if app.StageOf(h.cfg.AppID, id) == stage {
			h.closeOf(ctx, id, nil)
		}
	}
	return nil
}

// show publishes the transactions that no process closes.
func (h *hangWatch) show(left []hanging.Hang) {
	shown := map[app.TaskID]bool{}
	var texts []string
	for _, hang := range left {
		id := app.TaskID{Topic: hang.Topic, Partition: hang.Number}
		shown[id] = true
		h.metrics.hanging.WithLabelValues(id.Topic, strconv.Itoa(int(id.Partition))).Set(1)
		texts = append(texts, hang.String()+"; readers wait before it; end it with: "+hang.Abort())
		if !h.shown[id] {
			h.log.Error("a transaction hangs", "partition", id.String(), "reason", hang.String(), "command", hang.Abort())
		}
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
