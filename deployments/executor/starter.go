package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// stopMax is how long a stopped process sends what it has executed.
const stopMax = 10 * time.Second

// starter begins each event at most once, and once if its journal is not lost. It asks for
// each start, and executes what is granted. The offsets of the events are committed after
// their outcomes were sent: an event that is read again is in the journal, or superseded.
type starter struct {
	*asker
	journal *journal
	// repeatable says that what a crash cut off may run again.
	repeatable, claimedOnly bool
	work                    func(context.Context, *kgo.Record) ([]byte, error)
}

// runStarted processes events until ctx is done. First it finishes the attempts that the
// process before it left open.
func (s *settings) runStarted(ctx context.Context, work func(context.Context, *kgo.Record) ([]byte, error)) (err error) {
	journal, err := openJournal(s.journal)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, journal.close()) }()
	asker, err := newAsker(s, journal.id)
	if err != nil {
		return err
	}
	// A stop waits for the work, and answers are read until then.
	reading, stop := context.WithCancel(context.WithoutCancel(ctx))
	var reader sync.WaitGroup
	reader.Go(func() { asker.read(reading) })
	defer func() {
		stop()
		reader.Wait()
		asker.client.Close()
	}()
	group, err := kgo.NewClient(kgo.SeedBrokers(s.brokers...), kgo.ConsumerGroup(s.group), kgo.ConsumeTopics(s.input), kgo.DisableAutoCommit(),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.BlockRebalanceOnPoll(), kgo.RebalanceTimeout(rebalanceMax))
	if err != nil {
		return err
	}
	defer group.CloseAllowingRebalance()
	st := &starter{asker: asker, journal: journal, repeatable: s.repeatable, claimedOnly: s.claimedOnly, work: work}
	var events []*kgo.Record
	for {
		if err := st.finish(ctx, st.attemptsOf(events)); ctx.Err() == nil && err != nil {
			return err
		}
		late, cancel := untilStopped(ctx)
		err := group.CommitRecords(late, st.finished(events)...)
		cancel()
		group.AllowRebalance()
		if err != nil && !errors.Is(err, kerr.RebalanceInProgress) && !errors.Is(err, kerr.IllegalGeneration) && !errors.Is(err, kerr.UnknownMemberID) {
			return unlessStopped(ctx, err)
		}
		fetches := group.PollRecords(ctx, eventsMax)
		if err := fetches.Err(); ctx.Err() != nil || err != nil {
			return unlessStopped(ctx, err)
		}
		events = fetches.Records()
	}
}

// untilStopped returns a context for sending what was executed. A stop leaves it stopMax from now on, however
// long the work before took.
func untilStopped(ctx context.Context) (context.Context, context.CancelFunc) {
	late, cancel := context.WithCancel(context.WithoutCancel(ctx))
	forget := context.AfterFunc(ctx, func() { time.AfterFunc(stopMax, cancel) })
	return late, func() { forget(); cancel() } // ctx lives as long as the process, and this is called for each poll
}

// unlessStopped returns err, nil if ctx is done.
func unlessStopped(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil //nolint:nilerr // the work was cut off by the stop
	}
	return err
}

// attemptsOf returns the open attempts of the journal and those of new events.
func (st *starter) attemptsOf(events []*kgo.Record) []*attempt {
	// Another process may have read an event without a claim that was not begun: its partition brings it.
	attempts := slices.DeleteFunc(st.journal.open(), func(a *attempt) bool { return a.Unclaimed && a.State == stateAsked })
	taken := map[string]bool{} // an event may be read twice
	for _, a := range attempts {
		taken[a.Token] = true
	}
	for _, event := range events {
		token, unclaimed := tokenOf(event), headerOf(event, "oncebus-claim-token") == nil
		switch {
		case unclaimed && st.claimedOnly:
			slog.Warn("event without a claim, skipped", "event", token, "verdict", string(headerOf(event, "oncebus-verdict")))
		case taken[token] || st.journal.ended[token]:
		case st.journal.attempts[token] != nil: // one without a claim that was not begun
			taken[token] = true
			attempts = append(attempts, st.journal.attempts[token])
		default:
			taken[token] = true
			attempts = append(attempts, &attempt{
				Token: token, Key: event.Key, Value: event.Value, Dedup: string(headerOf(event, "oncebus-key")), Unclaimed: unclaimed,
				ReplyTo: string(headerOf(event, "oncebus-reply-to")),
			})
		}
	}
	return attempts
}

// finished returns the events before the first one that a stop has left.
func (st *starter) finished(events []*kgo.Record) []*kgo.Record {
	for i, event := range events {
		if token := tokenOf(event); !st.journal.ended[token] && !(st.claimedOnly && headerOf(event, "oncebus-claim-token") == nil) {
			return events[:i]
		}
	}
	return events
}

// tokenOf returns what names an event in the journal. An event without a token was let through without a
// claim: its position names it.
func tokenOf(event *kgo.Record) string {
	if token := headerOf(event, "oncebus-claim-token"); token != nil {
		return string(token)
	}
	return fmt.Sprintf("%s/%d/%d", event.Topic, event.Partition, event.Offset)
}

// finish executes attempts, unless the journal says that they were, and sends the outcomes. After a stop
// these are what it has executed.
func (st *starter) finish(ctx context.Context, attempts []*attempt) error {
	var fresh []*attempt
	for _, a := range attempts {
		if a.State == "" {
			a.State = stateAsked
			fresh = append(fresh, a)
		}
	}
	// Before the questions: a start that is granted must be known after a crash.
	if err := st.journal.write(true, fresh...); err != nil {
		return err
	}
	answers, err := st.askAll(ctx, attempts)
	if err != nil {
		return err
	}
	var done, ended []*attempt
	for i, a := range attempts {
		superseded := a.State != stateDone && !answers[i].granted
		if superseded {
			slog.Info("attempt superseded, not executed", "key", a.Dedup, "reason", answers[i].reason)
		} else if a.State != stateDone {
			if err = st.execute(ctx, a); err != nil {
				break
			}
		}
		ended = append(ended, &attempt{State: stateSent, Token: a.Token})
		if !superseded && a.hasOutcome() {
			done = append(done, a)
		}
	}
	if err != nil && ctx.Err() == nil {
		return err
	}
	late, cancel := untilStopped(ctx)
	defer cancel()
	if err := st.send(late, done); err != nil {
		return err
	}
	return errors.Join(err, st.journal.write(false, ended...))
}

// hasOutcome reports whether the outcome of an executed attempt goes to oncebus. Without a claim it is the answer
// to a request that waits, and nothing stays submitted.
func (a *attempt) hasOutcome() bool {
	return !a.Unclaimed || a.ReplyTo != "" && a.Outcome != "submitted"
}

// askAll asks for the start of each attempt that was not executed. One without a claim is granted.
func (st *starter) askAll(ctx context.Context, attempts []*attempt) ([]answer, error) {
	answers, errs := make([]answer, len(attempts)), make([]error, len(attempts))
	var asking sync.WaitGroup
	for i, a := range attempts {
		switch {
		case a.Unclaimed:
			answers[i].granted = true
		case a.State != stateDone:
			asking.Go(func() { answers[i], errs[i] = st.ask(ctx, "start", a.Key, a.Token) })
		}
	}
	asking.Wait()
	return answers, errors.Join(errs...)
}

// execute executes an attempt whose start was granted, and writes that to the journal. A stop of
// the process waits for the work.
func (st *starter) execute(ctx context.Context, a *attempt) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err() // the next start executes it
	case a.State == stateBegun && !st.repeatable:
		// After submitted the claim stays until somebody writes another outcome. rejected would free the key.
		slog.Error("not executed again, because a crash cut it off", "event", a.Token, "key", a.Dedup)
		return st.done(a, "submitted", []byte("a crash cut the work off, and nothing says whether it had its effect: look, and write the outcome"))
	case a.State == stateAsked:
		if err := st.journal.write(true, &attempt{State: stateBegun, Token: a.Token}); err != nil {
			return err
		}
	}
	event := &kgo.Record{Key: a.Key, Value: a.Value, Headers: []kgo.RecordHeader{{Key: "oncebus-key", Value: []byte(a.Dedup)}}}
	running, stop := context.WithoutCancel(ctx), func() {}
	if !a.Unclaimed {
		event.Headers = append(event.Headers, kgo.RecordHeader{Key: "oncebus-claim-token", Value: []byte(a.Token)})
		running, stop = st.whileRunning(running, a)
	}
	result, err := st.work(running, event)
	cause := context.Cause(running)
	stop()
	if errors.Is(cause, errSuperseded) {
		slog.Warn("attempt superseded while it ran", "key", a.Dedup, "error", cause)
	}
	kind, result := outcomeOfWork(result, err)
	return st.done(a, kind, result)
}

// done writes an outcome to the journal.
func (st *starter) done(a *attempt, kind string, result []byte) error {
	return st.journal.write(true, &attempt{State: stateDone, Token: a.Token, Dedup: a.Dedup, Outcome: kind, Result: result})
}
