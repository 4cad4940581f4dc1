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

// stopMax is how long a process that is being stopped may take to send what it has executed.
const stopMax = 10 * time.Second

// starter begins each event at most once, and exactly once as long as its journal is not lost. It asks for each start
// and executes what is granted. The offset of an event is committed only after its outcome was sent. If an event is
// read again, it is therefore in the journal or superseded.
type starter struct {
	*asker
	journal *journal
	// repeatable allows work that a crash cut off to run again; claimedOnly skips events without a claim.
	repeatable, claimedOnly bool
	work                    func(context.Context, *kgo.Record) ([]byte, error)
}

// runStarted processes events until ctx is done. First it finishes the attempts that the previous process left open
// in the journal.
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
	// A stop waits until the work has ended, and the answers are read until then.
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

// untilStopped returns a context for sending what was executed. When ctx ends, the returned context lives for another
// stopMax, so the time for sending does not depend on how long the work before took.
func untilStopped(ctx context.Context) (context.Context, context.CancelFunc) {
	late, cancel := context.WithCancel(context.WithoutCancel(ctx))
	forget := context.AfterFunc(ctx, func() { time.AfterFunc(stopMax, cancel) })
	return late, func() { forget(); cancel() } // forget releases what ctx holds: ctx lives as long as the process, and this function is called for each poll
}

// unlessStopped returns err, or nil if ctx is done.
func unlessStopped(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil //nolint:nilerr // the work was cut off by the stop
	}
	return err
}

// attemptsOf returns the open attempts of the journal and the attempts of new events.
func (st *starter) attemptsOf(events []*kgo.Record) []*attempt {
	// Leave out an event without a claim that was not begun: another process may have read it meanwhile. If this
	// process still owns the partition, it reads the event again.
	attempts := slices.DeleteFunc(st.journal.open(), func(a *attempt) bool { return a.Unclaimed && a.State == stateAsked })
	taken := map[string]bool{} // the same event may be read twice
	for _, a := range attempts {
		taken[a.Token] = true
	}
	for _, event := range events {
		token, unclaimed := tokenOf(event), headerOf(event, "oncebus-claim-token") == nil
		switch {
		case unclaimed && st.claimedOnly:
			slog.Warn("event without a claim, skipped", "event", token, "verdict", string(headerOf(event, "oncebus-verdict")))
		case taken[token] || st.journal.ended[token]:
		case st.journal.attempts[token] != nil: // an event without a claim that was not begun
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

// finished returns the events before the first event that a stop left unexecuted.
func (st *starter) finished(events []*kgo.Record) []*kgo.Record {
	for i, event := range events {
		if token := tokenOf(event); !st.journal.ended[token] && !(st.claimedOnly && headerOf(event, "oncebus-claim-token") == nil) {
			return events[:i]
		}
	}
	return events
}

// tokenOf returns the name of an event in the journal. An event without a token was forwarded without a claim; its
// topic, partition and offset are its name.
func tokenOf(event *kgo.Record) string {
	if token := headerOf(event, "oncebus-claim-token"); token != nil {
		return string(token)
	}
	return fmt.Sprintf("%s/%d/%d", event.Topic, event.Partition, event.Offset)
}

// finish executes attempts that the journal does not yet show as executed, and sends the outcomes. After a stop it
// sends only the outcomes of the attempts that it has executed.
func (st *starter) finish(ctx context.Context, attempts []*attempt) error {
	var fresh []*attempt
	for _, a := range attempts {
		if a.State == "" {
			a.State = stateAsked
			fresh = append(fresh, a)
		}
	}
	// The journal must have the attempts before the executor asks: after a crash the executor must know every start
	// that may have been granted.
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

// hasOutcome reports whether the outcome of an executed attempt goes to oncebus. The outcome of an event without a
// claim only answers a request that waits, so submitted, after which nothing would follow, is not sent.
func (a *attempt) hasOutcome() bool {
	return !a.Unclaimed || a.ReplyTo != "" && a.Outcome != "submitted"
}

// askAll asks for the start of each attempt that was not executed. An attempt without a claim needs no question and
// counts as granted.
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

// execute executes an attempt whose start was granted and writes the state to the journal. If the process is stopped,
// it waits for the work.
func (st *starter) execute(ctx context.Context, a *attempt) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err() // the next start of the process executes the attempt
	case a.State == stateBegun && !st.repeatable:
		// After the outcome submitted, the claim stays until somebody sends another outcome. The outcome rejected
		// would free the key, and the work could run a second time.
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

// done writes the outcome of an attempt to the journal.
func (st *starter) done(a *attempt, kind string, result []byte) error {
	return st.journal.write(true, &attempt{State: stateDone, Token: a.Token, Dedup: a.Dedup, Outcome: kind, Result: result})
}
