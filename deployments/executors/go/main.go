package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx)
	stopped := ctx.Err() != nil
	stop()
	if err != nil && !stopped {
		slog.Error("executor failed", "error", err) // a restart goes on
		os.Exit(1)
	}
}

// errRejected refuses an event permanently; after any other error it may be tried again.
var errRejected = errors.New("rejected")

// work is what this executor does: it charges the amount of the event. again says that an earlier run
// was cut off, and may have charged.
func work(ctx context.Context, g *gateway, reference string, value []byte, again bool) ([]byte, error) {
	var request struct {
		Account string `json:"account"`
		Amount  int    `json:"amount"`
		WorkMS  int    `json:"work_ms"` // how long it takes
	}
	if err := json.Unmarshal(value, &request); err != nil {
		return nil, fmt.Errorf("%w: no JSON object", errRejected)
	}
	if request.Amount > 1000 {
		return nil, fmt.Errorf("%w: %d is more than 1000", errRejected, request.Amount)
	}
	select {
	case <-time.After(time.Duration(request.WorkMS) * time.Millisecond):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if g != nil {
		if err := g.charge(ctx, charge{reference, request.Account, request.Amount}, again); err != nil {
			return nil, err
		}
	}
	return fmt.Appendf(nil, `{"account":%q,"granted":%d}`, request.Account, request.Amount), nil
}

const (
	// eventsMax is how many events one transaction has at most.
	eventsMax = 50
	// rebalanceMax is how long another process of the group waits for the transaction of this one. After
	// that it gets the events that this one works on.
	rebalanceMax = 5 * time.Minute
)

type executor struct {
	*asker
	session *kgo.GroupTransactSession
	journal *journal
	gateway *gateway // nil for none
	// start says that it asks before each event, claimedOnly that it skips an event without a claim.
	start, claimedOnly bool
	// done has the outcomes of events whose transaction has not committed: they are sent again
	// without the work.
	done map[string]*kgo.Record
}

func run(ctx context.Context) error {
	brokers := kgo.SeedBrokers(strings.Split(os.Getenv("EXECUTOR_BROKERS"), ",")...)
	instance := os.Getenv("EXECUTOR_INSTANCE")
	start, gateway := os.Getenv("EXECUTOR_START") == "true", newGateway(ctx.Done())
	journal, err := openJournal(os.Getenv("EXECUTOR_JOURNAL"), instance)
	if err != nil {
		return err
	}
	if start && journal.file == nil && (gateway == nil || gateway.ask) {
		return errors.New("set EXECUTOR_JOURNAL: without it nothing says after a crash that work has begun, and a start is granted again")
	}
	renewMS, err := strconv.Atoi(os.Getenv("EXECUTOR_RENEW_MS"))
	if err != nil {
		return fmt.Errorf("EXECUTOR_RENEW_MS: %w", err)
	}
	// A stop waits for work, which is renewed, and for answers.
	asking, end := context.WithCancel(context.WithoutCancel(ctx))
	asker, err := newAsker(asking, brokers, journal.id, time.Duration(renewMS)*time.Millisecond)
	if err != nil {
		end()
		return err
	}
	defer asker.close()
	defer end()
	// The group's member and its generation are part of the offset commit, so the broker refuses
	// the transaction of a process that lost the partition.
	session, err := kgo.NewGroupTransactSession(brokers, kgo.ConsumerGroup(os.Getenv("EXECUTOR_GROUP")), kgo.ConsumeTopics(os.Getenv("EXECUTOR_INPUT")),
		kgo.TransactionalID(instance), kgo.SessionTimeout(6*time.Second), kgo.HeartbeatInterval(time.Second),
		kgo.BlockRebalanceOnPoll(), kgo.RebalanceTimeout(rebalanceMax),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		return err
	}
	defer session.CloseAllowingRebalance()
	x := &executor{
		asker: asker, session: session, journal: journal, gateway: gateway, start: start,
		claimedOnly: os.Getenv("EXECUTOR_CLAIMED_ONLY") == "true", done: map[string]*kgo.Record{},
	}
	for ctx.Err() == nil {
		fetches := session.PollRecords(ctx, eventsMax)
		if err := fetches.Err(); err != nil {
			return err
		}
		if err := x.process(ctx, fetches.Records()); err != nil {
			return err
		}
		session.AllowRebalance()
	}
	return nil
}

// process works on events, and then commits their outcomes and offsets in one transaction. After a stop
// these are the events that it has finished: another process gets the others. An idle executor has no
// transaction open.
func (x *executor) process(ctx context.Context, events []*kgo.Record) error {
	x.hold(events)
	defer x.release()
	var outcomes []*kgo.Record
	left := map[int32]int64{} // the first offset that a stop leaves, by partition
	for i, event := range events {
		outcome, err := x.execute(ctx, event)
		if err != nil && ctx.Err() == nil {
			return err
		}
		if err != nil {
			for _, event := range slices.Backward(events[i:]) {
				left[event.Partition] = event.Offset
			}
			break
		}
		if outcome != nil && outcome.Topic != "" {
			outcomes = append(outcomes, outcome)
		}
	}
	ctx = context.WithoutCancel(ctx)
	if err := x.session.Begin(); err != nil {
		return err
	}
	var failed kgo.FirstErrPromise
	for _, outcome := range outcomes {
		again := *outcome
		x.session.Produce(ctx, &again, failed.Promise())
	}
	committed, err := x.session.End(kgo.PreTxnCommitFnContext(ctx, func(r *kmsg.TxnOffsetCommitRequest) error {
		leave(r, left)
		return nil
	}), kgo.TransactionEndTry(failed.Err() == nil))
	if committed {
		clear(x.done)
	}
	return errors.Join(err, failed.Err()) // not committed without an error: the group rebalanced
}

// leave takes events that were not executed out of a commit.
func leave(r *kmsg.TxnOffsetCommitRequest, left map[int32]int64) {
	for _, topic := range r.Topics {
		for i := range topic.Partitions {
			if offset, ok := left[topic.Partitions[i].Partition]; ok {
				topic.Partitions[i].Offset = offset
			}
		}
	}
}

// execute returns the outcome of an event; nil for none. An event without a claim is executed, and
// has no outcome to record: only a request that waits gets it. The error is that of ctx if the process
// stops before the outcome is known.
func (x *executor) execute(ctx context.Context, event *kgo.Record) (*kgo.Record, error) {
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	token := header(event, "oncebus-claim-token")
	if token == "" && x.claimedOnly {
		slog.Warn("event without a claim, skipped", "verdict", header(event, "oncebus-verdict"))
		return nil, nil
	}
	// All attempts of a key have one reference, so that the other system finds an earlier one.
	reference := header(event, "oncebus-key")
	if reference == "" {
		reference = fmt.Sprintf("%s/%d/%d", event.Topic, event.Partition, event.Offset)
	}
	name := cmp.Or(token, reference)
	if x.done[name] != nil {
		return x.done[name], nil
	}
	if token != "" && x.start && !x.ask(ctx, event, token) {
		slog.Info("attempt superseded, skipped", "token", token)
		return nil, ctx.Err()
	}
	kind, result, known := x.journal.outcome(name)
	if !known {
		again, err := x.journal.begin(name)
		if err != nil {
			return nil, err
		}
		if attempt := header(event, "oncebus-attempt"); x.gateway != nil && x.gateway.ask && attempt != "" && attempt != "1" {
			again = true // an earlier attempt may have a request on its way, too
		}
		// A stop of the process waits for the work.
		running, stop := x.running(context.WithoutCancel(ctx), token)
		kind, result = x.outcomeOf(running, reference, event.Value, again)
		superseded := running.Err() != nil
		stop()
		if kind == "" || superseded {
			slog.Info("attempt superseded, or the process stops", "event", name)
			return nil, ctx.Err()
		}
		if err := x.journal.end(name, kind, result); err != nil {
			return nil, err
		}
	}
	outcome := x.outcome(event, token, kind)
	outcome.Value = result
	x.done[name] = outcome
	return outcome, nil
}

// outcome returns the record of an outcome, without its value. Of an event without a claim only a
// request that waits gets it; if none does, the record has no topic.
func (x *executor) outcome(event *kgo.Record, token, kind string) *kgo.Record {
	outcome, replyTo := x.record(event.Key, token, kind), header(event, "oncebus-reply-to")
	switch {
	case token != "":
	case replyTo == "":
		return &kgo.Record{}
	default:
		outcome.Headers = []kgo.RecordHeader{{Key: "oncebus-reply-to", Value: []byte(replyTo)}, {Key: "oncebus-outcome", Value: []byte(kind)}}
	}
	outcome.Headers = append(outcome.Headers, responseHeaders(kind)...)
	return outcome
}

// outcomeOf does the work. kind is "" if it was cut off.
func (x *executor) outcomeOf(ctx context.Context, reference string, value []byte, again bool) (kind string, result []byte) {
	if again && x.gateway == nil {
		// Fill in here how the other system is asked. Work that runs again may have its effect twice.
		// After submitted the claim stays until somebody writes another outcome. rejected would free the key.
		slog.Error("not run again, because a crash cut it off", "event", reference)
		return "submitted", []byte("a crash cut the work off, and nothing says whether it had its effect: look, and write the outcome")
	}
	result, err := work(ctx, x.gateway, reference, value, again)
	switch {
	case err != nil && ctx.Err() != nil, errors.Is(err, errStopping):
		return "", nil
	case errors.Is(err, errRejected):
		return "rejected", []byte(err.Error())
	case err != nil: // the event may be tried again, by the next attempt
		return "failed", []byte(err.Error())
	}
	return "completed", result
}

// responseHeaders returns the status and type of the response by HTTP. Without them an error is a
// problem of oncebus with the text in it.
func responseHeaders(kind string) []kgo.RecordHeader {
	status := map[string]string{"rejected": "422", "failed": "502"}[kind]
	if status == "" {
		return nil
	}
	return []kgo.RecordHeader{{Key: "http-status", Value: []byte(status)}, {Key: "content-type", Value: []byte("text/plain; charset=utf-8")}}
}

func header(r *kgo.Record, name string) string {
	for _, h := range r.Headers {
		if h.Key == name {
			return string(h.Value)
		}
	}
	return ""
}

// asker asks start and renew with a producer of its own, because a question in the open
// transaction would not be read, and reads the answers.
type asker struct {
	topic, id  string // id is the start id
	run        string // drawn at each start, and on each question: an answer without it is to a question of an earlier start
	renewEvery time.Duration
	client     *kgo.Client

	mu      sync.Mutex
	held    map[string][]byte             // record keys of the events in process, by token
	started map[string]chan bool          // who waits for the answer to a start
	over    map[string]bool               // superseded tokens of held
	cancel  map[string]context.CancelFunc // of the running work
}

func newAsker(ctx context.Context, brokers kgo.Opt, id string, renewEvery time.Duration) (*asker, error) {
	opts := []kgo.Opt{brokers}
	if answers := os.Getenv("EXECUTOR_ANSWERS"); answers != "" {
		opts = append(opts, kgo.ConsumeTopics(answers), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NewOffset().AfterMilli(time.Now().Add(-time.Minute).UnixMilli())))
	}
	client, err := kgo.NewClient(opts...)
	if err != nil {
		return nil, err
	}
	a := &asker{
		topic: os.Getenv("EXECUTOR_OUTCOMES"), id: id, run: rand.Text(), renewEvery: renewEvery, client: client,
		held: map[string][]byte{}, started: map[string]chan bool{}, over: map[string]bool{}, cancel: map[string]context.CancelFunc{},
	}
	go a.read(ctx)
	go a.renew(ctx)
	return a, nil
}

func (a *asker) close() { a.client.Close() }

// record returns a question or an outcome. All of an event have its record key, so that
// oncebus reads them in their order.
func (a *asker) record(key []byte, token, kind string) *kgo.Record {
	return &kgo.Record{Topic: a.topic, Key: key, Headers: []kgo.RecordHeader{
		{Key: "oncebus-claim-token", Value: []byte(token)}, {Key: "oncebus-outcome", Value: []byte(kind)}, {Key: "oncebus-start-id", Value: []byte(a.id)},
	}}
}

func (a *asker) question(key []byte, token, kind string) *kgo.Record {
	question := a.record(key, token, kind)
	question.Headers = append(question.Headers, kgo.RecordHeader{Key: runHeader, Value: []byte(a.run)})
	return question
}

const runHeader = "executor-run"

// read takes the answers. The answer superseded may come without a question.
func (a *asker) read(ctx context.Context) {
	for ctx.Err() == nil {
		fetches := a.client.PollFetches(ctx)
		if err := fetches.Err(); err != nil && ctx.Err() == nil {
			slog.Warn("answers not read, retrying", "error", err)
		}
		fetches.EachRecord(a.take)
	}
}

// take takes an answer, unless it is to another executor, to an earlier start of this one, or of an earlier event.
func (a *asker) take(r *kgo.Record) {
	if id := header(r, "oncebus-start-id"); id != "" && (id != a.id || header(r, runHeader) != a.run) {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	token, granted := header(r, "oncebus-claim-token"), header(r, "oncebus-answer") == "granted"
	if _, ours := a.held[token]; !ours {
		return
	}
	if !granted {
		a.over[token] = true
		if cancel := a.cancel[token]; cancel != nil {
			cancel()
		}
	}
	if waiting := a.started[token]; waiting != nil && (!granted || header(r, "oncebus-outcome") == "start") {
		waiting <- granted
		delete(a.started, token)
	}
}

// renew asks for every event in process, also for those that wait for another one.
func (a *asker) renew(ctx context.Context) {
	tick := time.NewTicker(a.renewEvery)
	defer tick.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-tick.C:
			a.mu.Lock()
			for token, key := range a.held {
				if a.started[token] == nil && !a.over[token] {
					a.client.Produce(ctx, a.question(key, token, "renew"), sent)
				}
			}
			a.mu.Unlock()
		}
	}
}

// sent logs a question that was not sent. It is asked again.
func sent(r *kgo.Record, err error) {
	if err != nil && !errors.Is(err, context.Canceled) {
		slog.Warn("question not sent, retrying", "topic", r.Topic, "error", err)
	}
}

// hold begins to renew events, and release ends it.
func (a *asker) hold(events []*kgo.Record) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, event := range events {
		if token := header(event, "oncebus-claim-token"); token != "" {
			a.held[token] = event.Key
		}
	}
}

func (a *asker) release() {
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.held)
	clear(a.over)
}

// askAgain is when a start without an answer is asked for again.
const askAgain = 5 * time.Second

// ask asks for the start of an event until there is an answer, and returns whether it is
// granted. An answer may be lost; the same start id gets it again. After a stop it asks once more,
// because no other process gets an event that was granted to this one.
func (a *asker) ask(ctx context.Context, event *kgo.Record, token string) bool {
	answered := make(chan bool, 1)
	a.mu.Lock()
	a.started[token] = answered
	a.mu.Unlock()
	for last := false; !last; {
		last = ctx.Err() != nil
		a.client.Produce(context.WithoutCancel(ctx), a.question(event.Key, token, "start"), sent)
		select {
		case granted := <-answered:
			return granted
		case <-time.After(askAgain):
		}
	}
	return false
}

// running returns a context that ends when the attempt is superseded.
func (a *asker) running(ctx context.Context, token string) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.over[token] {
		cancel()
	}
	a.cancel[token] = cancel
	return ctx, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.cancel, token)
		cancel()
	}
}
