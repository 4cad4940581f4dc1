package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	// askAgain is the time after which the asker repeats a question that has no answer.
	askAgain = 5 * time.Second
	// answersSince is how far back a new process begins to read the answers topic. Clocks of machines differ, so it
	// begins a minute early; it skips the answers to other questions.
	answersSince = time.Minute
)

// runHeader is a header of each question, which oncebus copies to the answer. It holds the random id of this process
// run.
const runHeader = "executor-run"

// question identifies a request for a start or for a renewal.
type question struct{ kind, token string }

// answer is oncebus's answer to a question. If the answer does not grant the request, reason says why.
type answer struct {
	granted bool
	reason  string
}

// asker sends starts, renewals and outcomes, and reads the answers. All questions and the outcome of an attempt have
// the same record key, so oncebus reads them in the order in which they were sent.
type asker struct {
	*settings
	id     string // the start id of the journal
	run    string // drawn at each start of the process and sent with each question
	client *kgo.Client

	mu      sync.Mutex
	waiting map[question]chan answer
	running map[string]context.CancelCauseFunc // cancels the work of the running attempt, by token
}

func newAsker(s *settings, id string) (*asker, error) {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(s.brokers...), kgo.ConsumeTopics(s.answers), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AfterMilli(time.Now().Add(-answersSince).UnixMilli())))
	if err != nil {
		return nil, err
	}
	return &asker{settings: s, id: id, run: rand.Text(), client: client, waiting: map[question]chan answer{}, running: map[string]context.CancelCauseFunc{}}, nil
}

// read delivers answers until ctx is done.
func (a *asker) read(ctx context.Context) {
	for ctx.Err() == nil {
		fetches := a.client.PollFetches(ctx)
		fetches.EachError(func(topic string, partition int32, err error) {
			if ctx.Err() == nil {
				slog.Warn("answers not read, retrying", "topic", topic, "partition", partition, "error", err)
			}
		})
		fetches.EachRecord(func(r *kgo.Record) {
			switch id := headerOf(r, "oncebus-start-id"); {
			case id == nil && string(headerOf(r, "oncebus-answer")) == "superseded":
				a.supersede(string(headerOf(r, "oncebus-claim-token")), string(headerOf(r, "oncebus-reason")))
			case string(id) == a.id && string(headerOf(r, runHeader)) == a.run: // otherwise the answer is for another executor, or for a question of an earlier process run
				a.deliver(question{string(headerOf(r, "oncebus-outcome")), string(headerOf(r, "oncebus-claim-token"))}, answer{
					string(headerOf(r, "oncebus-answer")) == "granted", string(headerOf(r, "oncebus-reason")),
				})
			}
		})
	}
}

// supersede ends the work of an attempt that has been superseded. oncebus can announce this on the answers topic
// without a question.
func (a *asker) supersede(token, reason string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if cancel := a.running[token]; cancel != nil {
		cancel(fmt.Errorf("%w: %s", errSuperseded, reason))
	}
}

func (a *asker) deliver(q question, got answer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	select {
	case a.waiting[q] <- got:
	default: // a repeated answer, for which nobody waits any more
	}
}

// ask sends a question until there is an answer. It may repeat the request for a start, because oncebus gives the
// same answer to a repetition.
func (a *asker) ask(ctx context.Context, kind string, key []byte, token string) (answer, error) {
	q, arrived := question{kind, token}, make(chan answer, 1)
	a.mu.Lock()
	a.waiting[q] = arrived
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.waiting, q)
	}()
	again := time.NewTicker(askAgain)
	defer again.Stop()
	for n := 1; ; n++ {
		question := a.record(kind, key, token, nil)
		question.Headers = append(question.Headers, kgo.RecordHeader{Key: runHeader, Value: []byte(a.run)})
		a.client.Produce(context.WithoutCancel(ctx), question, func(_ *kgo.Record, err error) {
			if err != nil && ctx.Err() == nil {
				slog.Warn("question not sent, retrying", "kind", kind, "topic", a.outcomes, "error", err)
			}
		})
		select {
		case got := <-arrived:
			return got, nil
		case <-ctx.Done():
			return answer{}, ctx.Err()
		case <-again.C:
			slog.Warn("no answer, asking again: oncebus must run, and its route must name the answers topic",
				"kind", kind, "attempt", n, "answers", a.answers, "token", token)
		}
	}
}

// record returns the record of a question or an outcome. If the event has no record key, its token is the key.
func (a *asker) record(kind string, key []byte, token string, value []byte) *kgo.Record {
	if key == nil {
		key = []byte(token)
	}
	return &kgo.Record{Topic: a.outcomes, Key: key, Value: value, Headers: append([]kgo.RecordHeader{
		{Key: "oncebus-claim-token", Value: []byte(token)}, {Key: "oncebus-outcome", Value: []byte(kind)}, {Key: "oncebus-start-id", Value: []byte(a.id)},
	}, responseHeaders(kind)...)}
}

// send sends the outcomes of executed attempts. If the topic refuses an outcome, it sends the outcome without the
// result; if the topic refuses that too, the error wraps errRefused.
func (a *asker) send(ctx context.Context, done []*attempt) error {
	if len(done) == 0 {
		return nil
	}
	records := make([]*kgo.Record, len(done))
	for i, d := range done {
		records[i] = a.record(d.Outcome, d.Key, d.Token, d.Result)
		if d.Unclaimed { // the outcome is for the waiting request, because there is no claim
			records[i].Headers[0] = kgo.RecordHeader{Key: "oncebus-reply-to", Value: []byte(d.ReplyTo)}
		}
	}
	for _, result := range a.produce(ctx, records...) {
		switch {
		case result.Err == nil:
		case !refusesRecord(result.Err):
			return fmt.Errorf("send outcomes to topic %s: %w; the next start sends them again", a.outcomes, result.Err)
		default:
			if err := a.sendBare(ctx, result.Record, result.Err); err != nil {
				return err
			}
		}
	}
	return nil
}

// produce sends records and waits until the broker has stored them or ctx is done. It does not cancel the records
// when ctx is done: after a cancelled record, a later record can be lost (franz-go #1217).
func (a *asker) produce(ctx context.Context, records ...*kgo.Record) kgo.ProduceResults {
	sent := make(chan kgo.ProduceResults, 1)
	go func() { sent <- a.client.ProduceSync(context.WithoutCancel(ctx), records...) }()
	select {
	case results := <-sent:
		return results
	case <-ctx.Done():
		return kgo.ProduceResults{{Record: records[0], Err: ctx.Err()}} // the goroutine that waits ends when the client is closed
	}
}

// sendBare sends an outcome again without the result that the topic refused. The broker can also have refused it
// because of another record in its batch; then the outcome is sent again as it was.
func (a *asker) sendBare(ctx context.Context, refused *kgo.Record, cause error) error {
	whole := &kgo.Record{Topic: refused.Topic, Key: refused.Key, Value: refused.Value, Headers: refused.Headers}
	if err := a.produce(ctx, whole).FirstErr(); err == nil || !refusesRecord(err) {
		return err
	}
	reason := fmt.Sprintf("the result of %d bytes was not sent: topic %s refuses it: %v", len(refused.Value), a.outcomes, cause)
	slog.Warn("outcome sent without its result", "token", string(headerOf(refused, "oncebus-claim-token")), "reason", reason)
	bare := &kgo.Record{Topic: refused.Topic, Headers: append(refused.Headers, kgo.RecordHeader{Key: reasonHeader, Value: []byte(reason)})}
	if len(refused.Key) <= outcomeKeyMax {
		bare.Key = refused.Key
	}
	err := a.produce(ctx, bare).FirstErr()
	if err != nil && refusesRecord(err) {
		return fmt.Errorf("%w: topic %s refuses an outcome, also without the result: %w; change the settings of that topic and start again: the journal has the result",
			errRefused, a.outcomes, err)
	}
	return err
}

// whileRunning asks for renewals until the caller calls the returned function. If an operator erases the claim, the
// attempt is superseded, and whileRunning cancels the returned context.
func (a *asker) whileRunning(ctx context.Context, at *attempt) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	a.mu.Lock()
	a.running[at.Token] = cancel
	a.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(a.renewEvery)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if got, err := a.ask(ctx, "renew", at.Key, at.Token); err == nil && !got.granted {
				cancel(fmt.Errorf("%w: %s", errSuperseded, got.reason))
			}
		}
	}()
	return ctx, func() {
		a.mu.Lock()
		delete(a.running, at.Token)
		a.mu.Unlock()
		cancel(nil)
		<-ended
	}
}

// errSuperseded says that the executor must not start the attempt, or must stop working on it.
var errSuperseded = errors.New("superseded")
