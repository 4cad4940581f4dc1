//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	decisions "oncebus/processor/app"
	"oncebus/processor/kafkatest"
)

// logFaults are rows l1 to l3: an app is stopped for longer than Kafka keeps its topics, a log is cut, or a
// topic is recreated. Each fault uses its own ledger while the app of the epoch runs. If the app can find out
// what happened, it must continue without losing or repeating an event. If it cannot, it must name the command
// by which an operator decides, and after that decision every event must be accounted for.
var logFaults = []*fault{
	{row: "l1", name: "retention-clean-stop", broker: true, apply: ledgered(retentionCleanStop)},
	{row: "l1", name: "retention-kill", broker: true, apply: ledgered(retentionKill)},
	{row: "l1", name: "retention-state-lost", broker: true, apply: ledgered(retentionStateLost)},
	{row: "l2", name: "changelog-cut-below", broker: true, apply: ledgered(changelogCutBelow)},
	{row: "l2", name: "changelog-cut-above", broker: true, apply: ledgered(changelogCutAbove)},
	{row: "l2", name: "input-deleted-read", broker: true, apply: ledgered(inputDeletedRead)},
	{row: "l2", name: "input-deleted-unread", broker: true, apply: ledgered(inputDeletedUnread)},
	{row: "l2", name: "input-deleted-while-read", broker: true, apply: ledgered(inputDeletedWhileRead)},
	{row: "l2", name: "repartition-deleted-unread", broker: true, apply: ledgered(repartitionDeletedUnread)},
}

// strictly lists no decisions: no partition may wait for a decision.
var strictly = map[decisions.Problem][]decisions.Way{}

// inputLost lists the decision to continue without the deleted records, for a task or for a routed partition.
var inputLost = map[decisions.Problem][]decisions.Way{decisions.InputDeleted: {decisions.InputLost, decisions.FromStart}}

// ledgered returns a fault that applies harm to a new ledger.
func ledgered(harm func(context.Context, *strike, *ledger) error) func(context.Context, *strike) error {
	return func(ctx context.Context, k *strike) (err error) {
		l, err := k.h.openLedger(ctx)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, l.close(ctx)) }()
		began := time.Now()
		if err := harm(ctx, k, l); err != nil {
			return fmt.Errorf("app %s: %w", l.id, err)
		}
		k.note("%d events accounted for in %v, decided on %v", len(l.events), time.Since(began).Round(time.Second), l.decided)
		return nil
	}
}

// retentionCleanStop: while the app is stopped, its changelogs, its inputs and its offsets expire. The local
// state is complete, so the app must continue without losing or repeating an event. It must also write its rows
// to the changelog again, so that it can later start without the local state.
func retentionCleanStop(ctx context.Context, _ *strike, l *ledger) error {
	return inOrder(ctx, l.stop, l.expireAll, l.loseOffsets, l.goOnExactly, l.nextLife)
}

// retentionKill: the same as retentionCleanStop after a kill. The routing stage cannot know which records it
// has routed since its last mark, so it must wait for a decision.
func retentionKill(ctx context.Context, _ *strike, l *ledger) error {
	fromMark := map[decisions.Problem][]decisions.Way{decisions.OffsetsLost: {decisions.FromMark}}
	start := func(ctx context.Context) error { return l.deciding(ctx, fromMark, l.startReady) }
	if err := inOrder(ctx, l.awaitFlushed, l.kill, l.expireAll, l.loseOffsets, start, l.goOn); err != nil {
		return err
	}
	return inOrder(ctx, l.expectDecided(decisions.OffsetsLost), l.nextLife)
}

// goOnExactly starts the app, which must continue without an operator's decision.
func (l *ledger) goOnExactly(ctx context.Context) error {
	return l.deciding(ctx, strictly, func(ctx context.Context) error { return inOrder(ctx, l.startReady, l.goOn) })
}

// nextLife starts the app without its local state: the changelog must be complete again.
func (l *ledger) nextLife(ctx context.Context) error {
	if err := inOrder(ctx, l.awaitSwept, l.stop, l.loseState, l.goOnExactly); err != nil {
		return fmt.Errorf("the next life without local state: %w", err)
	}
	return nil
}

// retentionStateLost: the local state is lost as well, and events expire before they are read. The app cannot
// know which events were emitted, so every task must wait for a decision. After the decision no event is
// emitted twice, and the only events that vanish are the deleted ones.
func retentionStateLost(ctx context.Context, _ *strike, l *ledger) error {
	// The last events were read; the events before them were not.
	if err := inOrder(ctx, l.stop, l.loseState, l.send, l.expireAll); err != nil {
		return err
	}
	if err := l.send(ctx); err != nil {
		return err
	}
	l.condemn(maybeLate)
	ways := map[decisions.Problem][]decisions.Way{decisions.StateLost: {decisions.BelieveNothing}, decisions.InputDeleted: {decisions.InputLost, decisions.FromStart}}
	start := func(ctx context.Context) error {
		return l.deciding(ctx, ways, func(ctx context.Context) error { return inOrder(ctx, l.startReady, l.goOn) })
	}
	return inOrder(ctx, start, l.expectDecided(decisions.StateLost, decisions.InputDeleted))
}

// changelogCutBelow: an operator deletes rows from the changelogs that are also in the local state. The local
// state is complete, so the app must continue without losing or repeating an event.
func changelogCutBelow(ctx context.Context, k *strike, l *ledger) error {
	if err := l.stop(ctx); err != nil {
		return err
	}
	for _, topic := range l.changelogs() {
		if err := l.cut(ctx, topic, func(_ int32, start, end int64) int64 { return start + 1 + k.rng.Int64N(max(1, end-start)) }); err != nil {
			return err
		}
	}
	return inOrder(ctx, l.goOnExactly, l.nextLife)
}

// changelogCutAbove: the local state is a copy from before the last events, and the rows that the copy lacks are
// deleted from the changelogs. Every task waits for a decision, and continues with what the operator declares to be
// true.
func changelogCutAbove(ctx context.Context, k *strike, l *ledger) error {
	older := l.s.stateDir() + "-older"
	if err := errors.Join(l.stop(ctx), copyDir(l.s.stateDir(), older)); err != nil {
		return err
	}
	positions := map[string]map[int32]int64{}
	for _, topic := range l.changelogs() {
		var err error
		if positions[topic], err = l.ends(ctx, topic); err != nil {
			return err
		}
	}
	if err := inOrder(ctx, l.startReady, l.send, l.account, l.stop, l.loseState); err != nil {
		return err
	}
	if err := os.Rename(older, l.s.stateDir()); err != nil {
		return err
	}
	// Only the last checkpoint stays.
	for _, topic := range l.changelogs() {
		if err := l.cutToCheckpoints(ctx, topic, positions[topic]); err != nil {
			return err
		}
	}
	l.condemn(maybeLate)
	believe := []decisions.Way{decisions.BelieveLocal, decisions.BelieveChangelog, decisions.BelieveNothing}[k.rng.IntN(3)]
	// The repartition topic is purged up to the newest checkpoint.
	ways := map[decisions.Problem][]decisions.Way{decisions.ChangelogCut: {believe}, decisions.InputDeleted: {decisions.InputLost}}
	if err := l.deciding(ctx, ways, func(ctx context.Context) error { return inOrder(ctx, l.startReady, l.goOn) }); err != nil {
		return fmt.Errorf("believing %s: %w", believe, err)
	}
	if believe == decisions.BelieveLocal {
		delete(l.decided, decisions.InputDeleted)
	}
	return l.expectDecided(decisions.ChangelogCut)(ctx)
}

// inputDeletedRead: while the app runs, records that it has processed are deleted from every topic that it reads.
// This must have no effect.
func inputDeletedRead(ctx context.Context, _ *strike, l *ledger) error {
	for _, topic := range append(l.inputs(), l.repartition()) {
		if err := l.cut(ctx, topic, toTheEnd); err != nil {
			return err
		}
	}
	running := func(ctx context.Context) error { return l.deciding(ctx, strictly, l.goOn) }
	return inOrder(ctx, running, l.kill, l.goOnExactly)
}

// inputDeletedUnread: while the app is stopped, records are deleted; the app has read some of them before, and
// others not. The refusal that the app writes must say which records are lost, and all other records must be
// processed.
func inputDeletedUnread(ctx context.Context, k *strike, l *ledger) error {
	if err := l.stop(ctx); err != nil {
		return err
	}
	return l.deletedUnread(ctx, k, l.startReady)
}

// inputDeletedWhileRead: the same as inputDeletedUnread in a running process. The process is paused during the
// deletion, so that it has not read the last of the deleted records.
func inputDeletedWhileRead(ctx context.Context, k *strike, l *ledger) error {
	if err := l.s.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	return l.deletedUnread(ctx, k, func(context.Context) error { return l.s.signal(syscall.SIGCONT) })
}

// deletedUnread sends events, deletes most of their records from every partition, and
// resumes the app.
func (l *ledger) deletedUnread(ctx context.Context, k *strike, resume func(context.Context) error) error {
	before := map[string]map[int32]int64{}
	for _, topic := range l.inputs() {
		var err error
		if before[topic], err = l.ends(ctx, topic); err != nil {
			return err
		}
	}
	if err := l.send(ctx); err != nil {
		return err
	}
	for _, topic := range l.inputs() {
		err := l.cut(ctx, topic, func(partition int32, _, end int64) int64 {
			return end - k.rng.Int64N((end-before[topic][partition])/4)
		})
		if err != nil {
			return err
		}
	}
	start := func(ctx context.Context) error {
		return l.deciding(ctx, inputLost, func(ctx context.Context) error { return inOrder(ctx, resume, l.goOn) })
	}
	return inOrder(ctx, start, l.expectDecided(decisions.InputDeleted))
}

// repartitionDeletedUnread: the tasks of the routed topic wait for a decision on their state. While they wait, routed
// records are deleted. Each task must then ask an operator for a second decision, which is about the deleted records.
func repartitionDeletedUnread(ctx context.Context, _ *strike, l *ledger) error {
	if err := inOrder(ctx, l.stop, l.loseState); err != nil {
		return err
	}
	if err := l.cut(ctx, l.changelog(), toTheEnd); err != nil {
		return err
	}
	for _, e := range l.events {
		if !e.keyed {
			e.fate = maybeLate
		}
	}
	old := len(l.events)
	start := func(ctx context.Context) error { return l.s.start(ctx) }
	if err := inOrder(ctx, start, l.send, func(ctx context.Context) error { return l.awaitRouted(ctx, l.events[old:]) }); err != nil {
		return err
	}
	if err := l.cut(ctx, l.repartition(), toTheEnd); err != nil {
		return err
	}
	for _, e := range l.events[old:] {
		if !e.keyed {
			e.fate = maybeLate
		}
	}
	ways := map[decisions.Problem][]decisions.Way{decisions.StateLost: {decisions.BelieveNothing}, decisions.InputDeleted: {decisions.InputLost}}
	decide := func(ctx context.Context) error {
		return l.deciding(ctx, ways, func(ctx context.Context) error { return inOrder(ctx, l.s.awaitReady, l.goOn) })
	}
	return inOrder(ctx, decide, l.expectDecided(decisions.StateLost, decisions.InputDeleted))
}

// awaitRouted waits until the routed events are in the repartition topic; each event was sent twice. From then
// on, the places of these events in the account are positions in the repartition topic.
func (l *ledger) awaitRouted(ctx context.Context, events []*entry) error {
	ctx, cancel := context.WithTimeout(ctx, l.h.patience(miniMax))
	defer cancel()
	return kafkatest.Await(ctx, "the events are routed", func(ctx context.Context) error {
		records, err := l.h.readCommitted(ctx, l.repartition())
		if err != nil {
			return err
		}
		routed := map[string][]place{}
		for _, r := range records {
			routed[string(r.Key)] = append(routed[string(r.Key)], place{r.Topic, r.Partition, r.Offset})
		}
		for _, e := range events {
			if n := len(routed[e.id]); !e.keyed && n < 2 {
				return fmt.Errorf("%d of 2 records of %s are routed", n, e.id)
			}
		}
		for _, e := range events {
			if !e.keyed {
				e.places = routed[e.id]
			}
		}
		return nil
	})
}

// ends returns the end of each partition of a topic.
func (l *ledger) ends(ctx context.Context, topic string) (map[int32]int64, error) {
	return offsetsBy(ctx, l.h.admin.ListEndOffsets, topic)
}

// starts returns the first offset of each partition of a topic.
func (l *ledger) starts(ctx context.Context, topic string) (map[int32]int64, error) {
	return offsetsBy(ctx, l.h.admin.ListStartOffsets, topic)
}

// offsetsBy returns the offset of each partition of a topic, as the function list returns them.
func offsetsBy(ctx context.Context, list func(context.Context, ...string) (kadm.ListedOffsets, error), topic string) (map[int32]int64, error) {
	listed, err := list(ctx, topic)
	if err == nil {
		err = listed.Error()
	}
	offsets := map[int32]int64{}
	for partition, o := range listed[topic] {
		offsets[partition] = o.Offset
	}
	return offsets, err
}

func toTheEnd(_ int32, _, end int64) int64 { return end }

// cut deletes records of each partition of a topic: all records below the offset that to returns.
func (l *ledger) cut(ctx context.Context, topic string, to func(partition int32, start, end int64) int64) error {
	starts, err := l.starts(ctx, topic)
	if err != nil {
		return err
	}
	ends, err := l.ends(ctx, topic)
	if err != nil {
		return err
	}
	offsets := kadm.Offsets{}
	for p := range int32(len(ends)) {
		if to := to(p, starts[p], ends[p]); to > starts[p] {
			offsets.AddOffset(topic, p, to, -1)
		}
	}
	resp, err := l.h.admin.DeleteRecords(ctx, offsets)
	if err == nil {
		err = resp.Error()
	}
	if err != nil {
		return fmt.Errorf("delete records of %s: %w", topic, err)
	}
	return nil
}

// cutToCheckpoints deletes everything before the last checkpoint in each partition of a changelog. The last
// checkpoint must be above the given positions.
func (l *ledger) cutToCheckpoints(ctx context.Context, changelog string, positions map[int32]int64) error {
	records, err := l.h.readCommitted(ctx, changelog)
	if err != nil {
		return err
	}
	newest := map[int32]int64{}
	for _, r := range records {
		if string(r.Key) == "checkpoint" {
			newest[r.Partition] = r.Offset
		}
	}
	return l.cut(ctx, changelog, func(partition int32, start, _ int64) int64 {
		if newest[partition] > positions[partition] {
			return newest[partition]
		}
		return start
	})
}

// expire lets Kafka's retention delete all records of the topics, and then restores the settings of the topics: the
// app refuses to start with a changelog that expires.
func (l *ledger) expire(ctx context.Context, topics ...string) error {
	ctx, cancel := context.WithTimeout(ctx, l.h.patience(miniMax)) // Kafka 3.6 begins 30 s after its start
	defer cancel()
	if err := l.setRetention(ctx, "1", topics...); err != nil {
		return err
	}
	for _, topic := range topics {
		err := kafkatest.Await(ctx, topic+" has expired", func(ctx context.Context) error {
			starts, err := l.starts(ctx, topic)
			if err != nil {
				return err
			}
			ends, err := l.ends(ctx, topic)
			if err == nil && !maps.Equal(starts, ends) {
				err = fmt.Errorf("it begins at %v and ends at %v", starts, ends)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return l.setRetention(ctx, "-1", topics...)
}

func (l *ledger) setRetention(ctx context.Context, ms string, topics ...string) error {
	resp, err := l.h.admin.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "retention.ms", Value: &ms}}, topics...)
	if err != nil {
		return err
	}
	for _, r := range resp {
		if r.Err != nil {
			return fmt.Errorf("set the retention of %s: %w", r.Name, r.Err)
		}
	}
	return nil
}

// loseOffsets deletes the offsets of the stopped app.
func (l *ledger) loseOffsets(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, l.h.patience(miniMax))
	defer cancel()
	for _, stage := range []string{"dedup", "route"} {
		group := l.group(stage)
		if err := l.h.awaitEmpty(ctx, group); err != nil {
			return err
		}
		if err := l.h.moveOffsets(ctx, group, nil); err != nil {
			return err
		}
	}
	return nil
}

// expireAll lets the changelogs and the inputs expire. It does not touch the repartition topic, whose records oncebus
// deletes itself once it has read them.
func (l *ledger) expireAll(ctx context.Context) error {
	return l.expire(ctx, slices.Concat(l.changelogs(), l.inputs())...)
}
