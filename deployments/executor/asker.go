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
	// askAgain is the time after which a question without an answer is sent again.
	askAgain = 5 * time.Second
	// answersSince is how far back the answers topic is read at the start: clocks differ,
	// and answers to others are skipped.
	answersSince = time.Minute
)

// runHeader is on each question, and comes back on its answer.
const runHeader = "executor-run"

// question identifies a start or a renewal.
type question struct{ kind, token string }

// answer is the answer to a question. reason says why it is not granted.
type answer struct {
	granted bool
	reason  string
}

// asker sends starts, renewals and outcomes, and reads the answers. The questions and the
// outcome of an attempt have one record key, so oncebus reads them in their order.
type asker struct {
	*settings
	id     string // the start id
	run    string // drawn at each start, and on each question
	client *kgo.Client

	mu      sync.Mutex
	waiting map[question]chan answer
	running map[string]context.CancelCauseFunc // of the attempt with a token
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
			case string(id) == a.id && string(headerOf(r, runHeader)) == a.run: // else it is to a question of an earlier start
				a.deliver(question{string(headerOf(r, "oncebus-outcome")), string(headerOf(r, "oncebus-claim-token"))}, answer{
					string(headerOf(r, "oncebus-answer")) == "granted", string(headerOf(r, "oncebus-reason")),
				})
			}
		})
	}
}

// supersede ends the work of an attempt that is superseded, which the answers topic says without
// a question.
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
	default: // a repeated answer
	}
}

// ask sends a question until it has an answer. The answer to a start that is sent again is
// the same.
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

// record returns a question or an outcome. Without a record key the token takes its place.
func (a *asker) record(kind string, key []byte, token string, value []byte) *kgo.Record {
	if key == nil {
		key = []byte(token)
	}
	return &kgo.Record{Topic: a.outcomes, Key: key, Value: value, Headers: append([]kgo.RecordHeader{
		{Key: "oncebus-claim-token", Value: []byte(token)}, {Key: "oncebus-outcome", Value: []byte(kind)}, {Key: "oncebus-start-id", Value: []byte(a.id)},
	}, responseHeaders(kind)...)}
}

// send sends the outcomes of executed attempts. One that the topic refuses is sent without
// its result; if the topic refuses that too, the error wraps errRefused.
func (a *asker) send(ctx context.Context, done []*attempt) error {
	if len(done) == 0 {
		return nil
	}
	records := make([]*kgo.Record, len(done))
	for i, d := range done {
		records[i] = a.record(d.Outcome, d.Key, d.Token, d.Result)
		if d.Unclaimed { // the request that waits takes the place of the claim
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

// produce sends records and waits until the broker has them, or ctx is done. It does not
// cancel them: after a cancelled record a later one can be lost (franz-go #1217).
func (a *asker) produce(ctx context.Context, records ...*kgo.Record) kgo.ProduceResults {
	sent := make(chan kgo.ProduceResults, 1)
	go func() { sent <- a.client.ProduceSync(context.WithoutCancel(ctx), records...) }()
	select {
	case results := <-sent:
		return results
	case <-ctx.Done():
		return kgo.ProduceResults{{Record: records[0], Err: ctx.Err()}} // Close ends the goroutine
	}
}

// sendBare sends an outcome without the result that the topic refused. It can also be refused
// because of another record of its batch; then it is sent whole.
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

// whileRunning asks for renewals until the returned function is called. It cancels the
// context that it returns when the attempt is superseded: an operator erased its claim.
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

// errSuperseded says that the attempt must not run, or not further.
var errSuperseded = errors.New("superseded")
