//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	decisions "oncebus/processor/app"
	"oncebus/processor/kafkatest"
)

// recreatedFaults are row l3: topics are deleted and created again, with the same names and settings. The app
// must notice that these are not the former topics. If the app only writes to a topic, it must accept the new
// topic without help. For any other topic it must name the command by which an operator decides.
var recreatedFaults = []*fault{
	{row: "l3", name: "raw-recreated", broker: true, apply: ledgered(recreated((*ledger).inputs, emittedOnce, false))},
	{row: "l3", name: "raw-recreated-running", broker: true, apply: ledgered(recreated((*ledger).inputs, emittedOnce, true))},
	{row: "l3", name: "repartition-recreated", broker: true, apply: ledgered(recreated((*ledger).repartitions, emittedOnce, false))},
	{row: "l3", name: "repartition-recreated-running", broker: true, apply: ledgered(recreated((*ledger).repartitions, emittedOnce, true))},
	{row: "l3", name: "changelog-recreated", broker: true, apply: ledgered(recreated((*ledger).changelogs, maybeLate, false))},
	{row: "l3", name: "changelog-recreated-running", broker: true, apply: ledgered(recreated((*ledger).changelogs, maybeLate, true))},
	{row: "l3", name: "output-recreated", broker: true, apply: ledgered(outputRecreated)},
	{row: "l3", name: "outcomes-recreated", broker: true, apply: ledgered(outcomesRecreated)},
}

// noticeMax is how long a process may take until it finds a recreated topic: it takes until its metadata is
// refreshed and some of its transactions have failed.
const noticeMax = 40 * time.Second

func (l *ledger) repartitions() []string { return []string{l.repartition()} }

// recreated returns a fault that recreates topics which the app reads, while the process is stopped or while it runs.
// The process must end and name the command that accepts the new topics, or its partitions must wait for a decision.
// After that the app continues.
func recreated(of func(*ledger) []string, after fate, running bool) func(context.Context, *strike, *ledger) error {
	return func(ctx context.Context, _ *strike, l *ledger) error {
		topics := of(l)
		if running {
			l.s.expectEnd()
		} else if err := l.stop(ctx); err != nil {
			return err
		}
		for _, topic := range topics {
			if err := l.recreate(ctx, topic); err != nil {
				return err
			}
		}
		l.condemn(after)
		if err := l.send(ctx); err != nil { // lost, because no operator has read these
			return err
		}
		l.condemn(after)
		if running {
			if err := l.endsBy(ctx, topics); err != nil {
				return err
			}
		}
		if err := l.acceptRecreated(ctx, topics); err != nil {
			return err
		}
		ways := map[decisions.Problem][]decisions.Way{decisions.TopicRecreated: {decisions.FromStart}, decisions.StateLost: {decisions.BelieveNothing}}
		return l.deciding(ctx, ways, func(ctx context.Context) error { return inOrder(ctx, l.startReady, l.goOn) })
	}
}

// endsBy waits until the running process ends with exit code 1 because one of the topics was recreated.
func (l *ledger) endsBy(ctx context.Context, topics []string) error {
	ctx, cancel := context.WithTimeout(ctx, l.h.patience(noticeMax))
	defer cancel()
	code, err := l.s.current().ExitCode(ctx)
	if err != nil {
		return err
	}
	said := l.s.current().Log.Failure()
	for _, topic := range topics {
		if code == 1 && strings.Contains(said, topic) && strings.Contains(said, "recreated") {
			return nil
		}
	}
	return fmt.Errorf("it ended with exit code %d and error %q, want 1 and that one of %v was recreated", code, said, topics)
}

// acceptRecreated starts the process once for each topic. The process must end with an error that names the command
// which accepts the topic; acceptRecreated runs this command. For a routed topic there is no such command: its
// partitions wait for a decision.
func (l *ledger) acceptRecreated(ctx context.Context, topics []string) error {
	left := slices.DeleteFunc(slices.Clone(topics), func(topic string) bool { return topic == l.topic("orders.raw") })
	for len(left) > 0 {
		said, err := l.refused(ctx)
		if err != nil {
			return err
		}
		n := slices.IndexFunc(left, func(topic string) bool { return strings.Contains(said, "oncebus accept --recreated "+topic) })
		if n < 0 {
			return fmt.Errorf("it ended with error %q, want the command that accepts one of %v", said, left)
		}
		if err := l.oncebus(ctx, "accept", "--recreated", left[n]); err != nil {
			return err
		}
		left = slices.Delete(left, n, n+1)
	}
	return nil
}

// refused starts the process, which must end with exit code 1, and returns the error of the process.
func (l *ledger) refused(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, l.h.patience(miniMax))
	defer cancel()
	l.s.doomed = true
	defer func() { l.s.doomed = false }()
	startErr := l.s.start(ctx)
	code, err := l.s.current().ExitCode(ctx)
	if err != nil {
		return "", fmt.Errorf("it runs instead of refusing: %w", errors.Join(err, startErr))
	}
	if code != 1 {
		return "", fmt.Errorf("it ended with exit code %d, want 1: %s", code, l.s.current().Log.Failure())
	}
	return l.s.current().Log.Failure(), nil
}

// outputRecreated recreates every topic that the app only writes to, while the process is stopped or while it
// runs. The app must continue without help: it emits new events to the new topics, and does not emit again the
// events that were in the former topics.
func outputRecreated(ctx context.Context, k *strike, l *ledger) error {
	running := k.rng.IntN(2) == 0
	if !running {
		if err := l.stop(ctx); err != nil {
			return err
		}
	}
	for _, topic := range []string{"orders.unique", keyedUnique, "dead-letter"} {
		if err := l.recreate(ctx, l.topic(topic)); err != nil {
			return err
		}
	}
	l.condemn(outputLost)
	if err := l.send(ctx); err != nil {
		return err
	}
	return l.deciding(ctx, strictly, func(ctx context.Context) error {
		if !running {
			if err := l.startReady(ctx); err != nil {
				return err
			}
		}
		return l.goOn(ctx)
	})
}

// outcomesRecreated recreates the topic of outcomes while the app is stopped. The partitions that had outcomes wait
// for a decision. After the decision, outcomes in the new topic complete their claims: a duplicate gets an answer and
// is not dispatched again.
func outcomesRecreated(ctx context.Context, _ *strike, l *ledger) error {
	const ops = 60
	do := func(f func(context.Context, int, int) error, a, b int) step {
		return func(ctx context.Context) error { return f(ctx, a, b) }
	}
	recreate := func(ctx context.Context) error { return l.recreate(ctx, l.topic(claimOutcomes)) }
	ways := map[decisions.Problem][]decisions.Way{decisions.TopicRecreated: {decisions.FromStart}}
	start := func(ctx context.Context) error { return l.deciding(ctx, ways, l.startReady) }
	return inOrder(ctx,
		do(l.sendOps, 0, ops), do(l.awaitOps, ops, 0),
		do(l.completeOps, 0, ops/2), do(l.awaitCompleted, 0, ops/2), l.stop, recreate, do(l.completeOps, ops/2, ops),
		start, l.expectDecided(decisions.TopicRecreated), do(l.awaitCompleted, 0, ops), do(l.awaitOps, ops, ops), l.goOn)
}

// sendOps sends the operations from..to-1 in claim mode. An operation that was sent before becomes a duplicate.
func (l *ledger) sendOps(ctx context.Context, from, to int) error {
	var records []*kgo.Record
	for i := from; i < to; i++ {
		records = append(records, &kgo.Record{
			Topic: l.topic(claimRaw), Key: fmt.Append(nil, "op-", i), Value: fmt.Appendf(nil, `{"route":"ops-reject","id":"op-%d"}`, i),
		})
	}
	return l.client.ProduceSync(ctx, records...).FirstErr()
}

// completeOps sends the outcomes of those operations from..to-1 that were dispatched.
func (l *ledger) completeOps(ctx context.Context, from, to int) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(l.h.cluster.seeds()...), kgo.ClientID("ledger"))
	if err != nil {
		return err
	}
	defer client.Close()
	runs, err := l.h.readCommitted(ctx, l.topic(claimRun))
	if err != nil {
		return err
	}
	var records []*kgo.Record
	for _, r := range runs {
		var number int
		if _, err := fmt.Sscanf(string(r.Key), "op-%d", &number); err != nil || number < from || number >= to {
			continue
		}
		records = append(records, &kgo.Record{Topic: l.topic(claimOutcomes), Key: r.Key, Headers: []kgo.RecordHeader{
			{Key: "oncebus-claim-token", Value: tokenOf(r)}, {Key: "oncebus-outcome", Value: []byte("completed")},
		}})
	}
	return client.ProduceSync(ctx, records...).FirstErr()
}

// awaitOps waits until n operations are dispatched, each once, and duplicates have at least the given number of
// replies.
func (l *ledger) awaitOps(ctx context.Context, n, replies int) error {
	ctx, cancel := context.WithTimeout(ctx, l.h.patience(miniMax))
	defer cancel()
	return kafkatest.AwaitEvery(ctx, 100*time.Millisecond, "operations are dispatched and answered", func(ctx context.Context) error {
		runs, err := l.h.readCommitted(ctx, l.topic(claimRun))
		if err != nil {
			return err
		}
		answers, err := l.h.readCommitted(ctx, l.topic(claimReplies))
		if err != nil {
			return err
		}
		dispatched := map[string]bool{}
		for _, r := range runs {
			if dispatched[string(r.Key)] {
				return kafkatest.Fatal(fmt.Errorf("%s was dispatched again", r.Key))
			}
			dispatched[string(r.Key)] = true
		}
		if len(dispatched) != n || len(answers) < replies {
			return fmt.Errorf("%d of %d operations are dispatched, there are %d of %d replies", len(dispatched), n, len(answers), replies)
		}
		return nil
	})
}

// awaitCompleted sends duplicates of the operations from..to-1 until each gets the reply that its claim is completed.
func (l *ledger) awaitCompleted(ctx context.Context, from, to int) error {
	ctx, cancel := context.WithTimeout(ctx, l.h.patience(miniMax))
	defer cancel()
	return kafkatest.AwaitEvery(ctx, time.Second, "claims are completed", func(ctx context.Context) error {
		if err := l.sendOps(ctx, from, to); err != nil {
			return err
		}
		answers, err := l.h.readCommitted(ctx, l.topic(claimReplies))
		if err != nil {
			return err
		}
		completed := map[string]bool{}
		for _, r := range answers {
			if kafkatest.Header(r, "oncebus-claim-status") == "completed" {
				completed[string(r.Key)] = true
			}
		}
		for i := from; i < to; i++ {
			if !completed[fmt.Sprint("op-", i)] {
				return fmt.Errorf("no reply says that op-%d is completed, of %d replies", i, len(answers))
			}
		}
		return nil
	})
}
