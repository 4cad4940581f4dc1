package main

import (
	"context"
	"errors"
	"log/slog"
	"sync"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// starter executes each event at most once, and once if its journal is not lost. It asks for
// each start, and executes what is granted. The offsets of the events are committed after
// their outcomes were sent: an event that is read again is in the journal, or superseded.
type starter struct {
	*asker
	journal *journal
	work    func(context.Context, *kgo.Record) ([]byte, error)
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
	reading, stop := context.WithCancel(ctx)
	var reader sync.WaitGroup
	reader.Go(func() { asker.read(reading) })
	defer func() {
		stop()
		reader.Wait()
		asker.client.Close()
	}()
	group, err := kgo.NewClient(kgo.SeedBrokers(s.brokers...), kgo.ConsumerGroup(s.group), kgo.ConsumeTopics(s.input), kgo.DisableAutoCommit(),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		return err
	}
	defer group.Close()
	st := &starter{asker: asker, journal: journal, work: work}
	var events []*kgo.Record
	for {
		if err := st.finish(ctx, st.attemptsOf(events)); ctx.Err() != nil || err != nil {
			return unlessStopped(ctx, err)
		}
		if err := group.CommitRecords(ctx, events...); err != nil && !errors.Is(err, kerr.RebalanceInProgress) && !errors.Is(err, kerr.IllegalGeneration) && !errors.Is(err, kerr.UnknownMemberID) {
			return unlessStopped(ctx, err)
		}
		fetches := group.PollRecords(ctx, eventsMax)
		if err := fetches.Err(); ctx.Err() != nil || err != nil {
			return unlessStopped(ctx, err)
		}
		events = fetches.Records()
	}
}

// unlessStopped returns err, nil if ctx is done.
func unlessStopped(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil //nolint:nilerr // the work was cut off by the stop
	}
	return err
}

// attemptsOf returns the open attempts of the journal and those of new events. An event
// without a token was forwarded without a claim: nothing tells whether it ran before, so it
// is not executed.
func (st *starter) attemptsOf(events []*kgo.Record) []*attempt {
	attempts := st.journal.open()
	taken := map[string]bool{} // an event may be read twice
	for _, a := range attempts {
		taken[a.Token] = true
	}
	for _, event := range events {
		token := string(headerOf(event, "oncebus-claim-token"))
		switch {
		case token == "":
			slog.Error("event without a claim, not executed", "topic", event.Topic, "partition", event.Partition, "offset", event.Offset,
				"verdict", string(headerOf(event, "oncebus-verdict")))
		case !taken[token] && !st.journal.ended[token]:
			taken[token] = true
			attempts = append(attempts, &attempt{Token: token, Key: event.Key, Value: event.Value, Dedup: string(headerOf(event, "oncebus-key"))})
		}
	}
	return attempts
}

// finish executes attempts, unless the journal says that they were, and sends the outcomes.
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
		ended = append(ended, &attempt{State: stateSent, Token: a.Token})
		if a.State == stateAsked && !answers[i].granted {
			slog.Info("attempt superseded, not executed", "key", a.Dedup, "reason", answers[i].reason)
			continue
		}
		if a.State == stateAsked {
			if err := st.execute(ctx, a); err != nil {
				return err
			}
		}
		done = append(done, a)
	}
	if err := st.send(ctx, done); err != nil {
		return err
	}
	return st.journal.write(false, ended...)
}

// askAll asks for the start of each attempt that was not executed.
func (st *starter) askAll(ctx context.Context, attempts []*attempt) ([]answer, error) {
	answers, errs := make([]answer, len(attempts)), make([]error, len(attempts))
	var asking sync.WaitGroup
	for i, a := range attempts {
		if a.State == stateAsked {
			asking.Go(func() { answers[i], errs[i] = st.ask(ctx, "start", a.Key, a.Token) })
		}
	}
	asking.Wait()
	return answers, errors.Join(errs...)
}

// execute executes an attempt whose start was granted, and writes that to the journal.
func (st *starter) execute(ctx context.Context, a *attempt) error {
	running, stop := st.whileRunning(ctx, a)
	result, err := st.work(running, &kgo.Record{
		Key: a.Key, Value: a.Value, Headers: []kgo.RecordHeader{{Key: "oncebus-key", Value: []byte(a.Dedup)}, {Key: "oncebus-claim-token", Value: []byte(a.Token)}},
	})
	cause := context.Cause(running)
	stop()
	switch {
	case ctx.Err() != nil && err != nil:
		return ctx.Err() // the next start executes it
	case errors.Is(cause, errSuperseded):
		slog.Warn("attempt superseded while it ran", "key", a.Dedup, "error", cause)
	}
	kind, result := outcomeOfWork(result, err)
	return st.journal.write(true, &attempt{State: stateDone, Token: a.Token, Dedup: a.Dedup, Outcome: kind, Result: result})
}
