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
		slog.Error("executor failed", "error", err) // a restart continues where this process ended
		os.Exit(1)
	}
}

// errRejected refuses an event permanently; after any other error it may be tried again.
var errRejected = errors.New("rejected")

// work is what this executor does: it charges the amount of the event. again says that an earlier run was cut off and
// may have charged already.
func work(ctx context.Context, g *gateway, reference string, value []byte, again bool) ([]byte, error) {
	var request struct {
		Account string `json:"account"`
		Amount  int    `json:"amount"`
		WorkMS  int    `json:"work_ms"` // how long the work takes, in ms
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
	// rebalanceMax is how long a rebalance waits for this process to finish its transaction. After that another
	// process of the group gets the events that this process works on.
	rebalanceMax = 5 * time.Minute
)

type executor struct {
	*asker
	session *kgo.GroupTransactSession
	journal *journal
	gateway *gateway // nil: no gateway is set
	// start makes the executor ask for the start of each event; claimedOnly makes it skip events without a claim.
	start, claimedOnly bool
	// done has the outcomes of events whose transaction has not committed. The executor sends them again without
	// repeating the work.
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
	// A stop of the process waits for the work, which still needs renewals and answers.
	asking, end := context.WithCancel(context.WithoutCancel(ctx))
	asker, err := newAsker(asking, brokers, journal.id, time.Duration(renewMS)*time.Millisecond)
	if err != nil {
		end()
		return err
	}
	defer asker.close()
	defer end()
	// The offset commit contains the member id and the generation of this process in the group. The broker therefore
	// refuses the transaction of a process that has lost the partition.
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

// process works on events, and then commits their outcomes and offsets in one transaction. If the process is stopped
// meanwhile, the transaction has only the events that it has finished; another process gets the others. An idle
// executor has no transaction open.
func (x *executor) process(ctx context.Context, events []*kgo.Record) error {
	x.hold(events)
	defer x.release()
	var outcomes []*kgo.Record
	left := map[int32]int64{} // by partition, the first offset that the stop left unexecuted
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
	return errors.Join(err, failed.Err()) // without an error, the transaction did not commit because the group rebalanced
}

// leave changes an offset commit so that it does not cover events that were not executed.
func leave(r *kmsg.TxnOffsetCommitRequest, left map[int32]int64) {
	for _, topic := range r.Topics {
		for i := range topic.Partitions {
			if offset, ok := left[topic.Partitions[i].Partition]; ok {
				topic.Partitions[i].Offset = offset
			}
		}
	}
}

// execute returns the outcome of an event; nil if there is none to send. It also executes an event without a claim,
// whose outcome goes only to a request that waits for it. If the process stops before the outcome is known, execute
// returns the error of ctx.
func (x *executor) execute(ctx context.Context, event *kgo.Record) (*kgo.Record, error) {
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	token := header(event, "oncebus-claim-token")
	if token == "" && x.claimedOnly {
		slog.Warn("event without a claim, skipped", "verdict", header(event, "oncebus-verdict"))
		return nil, nil
	}
	// All attempts for a dedup key have the same reference, so that the other system finds the charge of an earlier
	// attempt.
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
			again = true // an earlier attempt may also have a request that is still on its way
		}
		// A stop of the process does not interrupt the work.
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

// outcome returns the record of an outcome, without its value. The outcome of an event without a claim goes to the
// request that waits for it; if no request waits, the record has no topic.
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

// outcomeOf does the work and returns the outcome. kind is "" if the work was cut off.
func (x *executor) outcomeOf(ctx context.Context, reference string, value []byte, again bool) (kind string, result []byte) {
	if again && x.gateway == nil {
		// Fill in here how to ask the other system whether the work had its effect: work that runs again may have its
		// effect twice. After the outcome submitted, the claim stays until somebody sends another outcome. The
		// outcome rejected would free the key.
		slog.Error("not run again, because a crash cut it off", "event", reference)
		return "submitted", []byte("a crash cut the work off, and nothing says whether it had its effect: look, and write the outcome")
	}
	result, err := work(ctx, x.gateway, reference, value, again)
	switch {
	case err != nil && ctx.Err() != nil, errors.Is(err, errStopping):
		return "", nil
	case errors.Is(err, errRejected):
		return "rejected", []byte(err.Error())
	case err != nil: // the next attempt may try the event again
		return "failed", []byte(err.Error())
	}
	return "completed", result
}

// responseHeaders returns the headers with the status and the content type of the HTTP response. Without these
// headers oncebus answers an error with its own problem document, which contains the text.
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

// asker sends start and renew questions and reads the answers. It has its own producer: oncebus reads committed
// records only, so it would not see a question in the open transaction.
type asker struct {
	topic, id  string // id is the start id of the journal
	run        string // drawn at each start of the process and sent with each question; an answer without it is for an earlier process run
	renewEvery time.Duration
	client     *kgo.Client

	mu      sync.Mutex
	held    map[string][]byte             // record keys of the events in process, by token
	started map[string]chan bool          // channels of those who wait for the answer to a start, by token
	over    map[string]bool               // those tokens of held that are superseded
	cancel  map[string]context.CancelFunc // cancels the running work, by token
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

// record returns a question or an outcome. All records for an event have its record key, so oncebus reads them in the
// order in which they were sent.
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

// read reads the answers until ctx is done. The answer superseded may come without a question.
func (a *asker) read(ctx context.Context) {
	for ctx.Err() == nil {
		fetches := a.client.PollFetches(ctx)
		if err := fetches.Err(); err != nil && ctx.Err() == nil {
			slog.Warn("answers not read, retrying", "error", err)
		}
		fetches.EachRecord(a.take)
	}
}

// take handles an answer. It ignores answers to another executor, to an earlier start of this executor, and for an
// earlier event.
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

// renew sends a renewal for every event in process, including events that wait until the work on another event ends.
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

// sent logs a question that could not be sent. The asker asks the question again later.
func sent(r *kgo.Record, err error) {
	if err != nil && !errors.Is(err, context.Canceled) {
		slog.Warn("question not sent, retrying", "topic", r.Topic, "error", err)
	}
}

// hold starts the renewals of events; release ends them.
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

// askAgain is the time after which a request for a start without an answer is repeated.
const askAgain = 5 * time.Second

// ask asks for the start of an event until there is an answer, and returns whether it is granted. An answer may be
// lost; oncebus repeats it for the same start id. After a stop, ask asks once more, because no other process can get
// an event that was granted to this process.
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

// running returns a context that ends when the attempt is superseded, and a function that releases it.
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
