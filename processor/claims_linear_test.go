package processor_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup/rules"
	"oncebus/processor/wire"
)

// requestSent is a request for a key; outcomeSent is an outcome that an executor sent for it.
type (
	requestSent struct{ key string }
	outcomeSent struct {
		key     string
		attempt int
		kind    string
		value   string
	}
)

// The answers to a request: run is a dispatched event, the other types are replies. The type accepted is the answer
// to outcomeSent.
type (
	run      struct{ attempt int }
	pending  struct{}
	replayed struct{ status, value string }
	accepted bool
)

// claimSpec is the sequential specification of a key's claim. It follows the README (Claims) and was written without
// a look at the code.
type claimSpec struct {
	status  string // "", in_progress, submitted, completed
	attempt int
	last    replayed // the last outcome that ended an attempt
}

func (s claimSpec) step(input, output any) (bool, claimSpec) {
	if o, ok := input.(outcomeSent); ok {
		return s.applyOutcome(o, bool(output.(accepted)))
	}
	switch answer := output.(type) {
	case run: // the first attempt, or the lease is over; the specification has no clock
		legal := answer.attempt == s.attempt+1 && (s.status == "" || s.status == "in_progress")
		s.status, s.attempt = "in_progress", answer.attempt
		return legal, s
	case pending:
		return s.status == "in_progress" || s.status == "submitted", s
	case replayed: // the answer for a completed key, or to a request that waited
		return answer == s.last && (s.status == "completed" || answer.status != "completed"), s
	case nil: // no sender received the answer, and it did not run
		return true, s
	}
	return false, s
}

func (s claimSpec) applyOutcome(o outcomeSent, ok bool) (bool, claimSpec) {
	before := s
	legal := o.attempt == s.attempt
	switch {
	case !legal:
	case o.kind == "submitted":
		legal = s.status == "in_progress" || s.status == "submitted"
		s.status = "submitted"
	case o.kind == "completed" && s.status == "completed":
		return ok == (o.value == s.last.value), s // another result is a second execution
	case (o.kind == "failed" || o.kind == "rejected") && s.status == "" && s.attempt > 0:
		return ok, s // the same outcome came twice and counts once
	case o.kind == "completed", o.kind == "failed", o.kind == "rejected":
		legal = s.status == "in_progress" || s.status == "submitted"
		s.status, s.last = "", replayed{o.kind, o.value}
		if o.kind == "completed" {
			s.status = "completed"
		}
	}
	if !legal {
		return !ok, before
	}
	return ok, s
}

var claimModel = porcupine.Model{
	Partition: func(history []porcupine.Operation) (parts [][]porcupine.Operation) {
		at := map[string]int{}
		for _, op := range history {
			key := ""
			switch in := op.Input.(type) {
			case requestSent:
				key = in.key
			case outcomeSent:
				key = in.key
			}
			if _, ok := at[key]; !ok {
				at[key] = len(parts)
				parts = append(parts, nil)
			}
			parts[at[key]] = append(parts[at[key]], op)
		}
		return parts
	},
	Init: func() any { return claimSpec{} },
	Step: func(state, input, output any) (bool, any) { return state.(claimSpec).step(input, output) },
}

// linear is a run of senders and executors against an app, with one reader for both.
type linear struct {
	*bench
	client *kgo.Client // of senders and executors
	began  time.Time

	mu       sync.Mutex
	waiting  map[string]chan any // answers, by record key of the request
	refused  map[string]bool     // outcomes, by their record key
	history  []porcupine.Operation
	runs     chan *kgo.Record
	outcomes []int                // in history, the operations whose answer is known in the end
	called   map[string]time.Time // when a request was sent, by its record key
	inTime   map[string]bool      // outcomes that were stored in the lease of their attempt, as its first one
	answered map[string]bool      // tokens of attempts with an outcome
	unseen   map[string]int       // in history, by record key, the requests without an answer
}

func (l *linear) now() int64 { return time.Since(l.began).Nanoseconds() }

// listen hands the emitted records and replies to the senders and executors that wait for them.
func (l *linear) listen(ctx context.Context) {
	client := l.newClient(kgo.ConsumeTopics("ops.run", "ops.replies", "dead"), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	for {
		fetches := client.PollFetches(ctx)
		if ctx.Err() != nil {
			return
		}
		fetches.EachRecord(func(r *kgo.Record) {
			var answer any
			switch {
			case r.Topic == "ops.run":
				attempt, _ := strconv.Atoi(header(r, wire.HeaderAttempt))
				answer = run{attempt}
				l.runs <- r
			case r.Topic == "dead":
				l.mu.Lock()
				l.refused[string(r.Key)] = true
				l.mu.Unlock()
				return
			case header(r, wire.HeaderVerdict) == "in_progress":
				answer = pending{}
			case header(r, wire.HeaderVerdict) == "replayed":
				answer = replayed{header(r, wire.HeaderClaimStatus), string(r.Value)}
			default:
				return // the outcome answers the request that ran
			}
			l.mu.Lock()
			waits := l.waiting[string(r.Key)]
			delete(l.waiting, string(r.Key))
			l.mu.Unlock()
			if waits != nil {
				waits <- answer
			}
		})
	}
}

// sendRequest sends a request and waits for its answer, or until ctx ends its patience.
func (l *linear) sendRequest(ctx context.Context, key, request string, partition int32) {
	answer := make(chan any, 1)
	l.mu.Lock()
	l.waiting["k-"+request], l.called["k-"+request] = answer, time.Now()
	l.mu.Unlock()
	op := porcupine.Operation{Input: requestSent{key}, Call: l.now(), Return: math.MaxInt64}
	rec := operation(key, request, partition)
	if l.client.ProduceSync(ctx, rec).FirstErr() == nil { // else it may be in Kafka all the same
		select {
		case op.Output = <-answer:
			op.Return = l.now()
		case <-ctx.Done():
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if op.Output == nil {
		l.unseen[string(rec.Key)] = len(l.history)
	}
	l.history = append(l.history, op)
}

// sendOutcome sends an outcome. Only the end of the run shows whether the app refused it.
func (l *linear) sendOutcome(ctx context.Context, key string, event *kgo.Record, kind, value, id string) {
	attempt, _ := strconv.Atoi(header(event, wire.HeaderAttempt))
	rec := outcomeOf(event, kind, []byte(value))
	rec.Key = []byte(id)
	op := porcupine.Operation{Input: outcomeSent{key, attempt, kind, value}, Output: id, Call: l.now(), Return: math.MaxInt64}
	if err := l.client.ProduceSync(ctx, rec).FirstErr(); err != nil {
		return
	}
	l.mu.Lock()
	token := header(event, wire.HeaderClaimToken)
	if !l.answered[token] && time.Since(l.called[string(event.Key)]) < linearLease { // no lease begins before its request
		l.inTime[id] = true
	}
	l.answered[token] = true
	l.outcomes = append(l.outcomes, len(l.history))
	l.history = append(l.history, op)
	l.mu.Unlock()
}

// execute works off events as good and bad executors do.
func (l *linear) execute(ctx context.Context, rng *rand.Rand) {
	var old []*kgo.Record
	for n := 0; ; n++ {
		var event *kgo.Record
		select {
		case event = <-l.runs:
		case <-ctx.Done():
			return
		}
		derived := l.routes.NewDeriver(nil).Derive(&rules.Input{Topic: "ops.raw", Value: event.Value})
		key := fieldOf(event.Value, "id")
		id := fmt.Sprintf("o-%s-%s-%d", derived.Digest, header(event, wire.HeaderAttempt), n)
		value := "v" + id
		switch rng.IntN(10) {
		case 0: // the executor dies
		case 1:
			l.sendOutcome(ctx, key, event, "failed", value, id)
		case 2:
			l.sendOutcome(ctx, key, event, "rejected", value, id)
			l.sendOutcome(ctx, key, event, "rejected", value, id+"-again")
		case 3:
			l.sendOutcome(ctx, key, event, "submitted", "", id+"-s")
			l.sendOutcome(ctx, key, event, "completed", value, id)
		case 4: // the outcomes come out of order
			l.sendOutcome(ctx, key, event, "completed", value, id)
			l.sendOutcome(ctx, key, event, "submitted", "", id+"-s")
		default:
			l.sendOutcome(ctx, key, event, "completed", value, id)
		}
		if old = append(old, event); rng.IntN(4) == 0 { // a zombie answers an old event again
			zombie := old[rng.IntN(len(old))]
			l.sendOutcome(ctx, fieldOf(zombie.Value, "id"), zombie, "completed", "zombie", id+"-z")
		}
	}
}

// TestClaimsAreLinearizable runs senders, executors and restarts at random. For each key, some single order of
// requests and outcomes must explain every answer.
func TestClaimsAreLinearizable(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"reject", "wait", "reject and lag"} {
		t.Run(name, func(t *testing.T) {
			policy, _, lags := strings.Cut(name, " ")
			history := linearRun(t, policy, 1, lags)
			seen := map[string]int{}
			for _, op := range history {
				seen[fmt.Sprintf("%T to %T", op.Output, op.Input)]++
				if o, ok := op.Input.(outcomeSent); ok {
					seen[fmt.Sprintf("%s: %v", o.kind, op.Output)]++
				}
			}
			t.Logf("%d operations: %v", len(history), seen)
			for _, kind := range []string{"processor_test.run to processor_test.requestSent", "processor_test.replayed to processor_test.requestSent", "completed: true", "completed: false", "failed: true", "submitted: true"} {
				if seen[kind] < 10 {
					t.Errorf("only %d of %s: the run shows too little", seen[kind], kind)
				}
			}
			if got := porcupine.CheckOperations(claimModel, history); !got {
				t.Fatalf("%d operations fit no order", len(history))
			}
			for name, plant := range claimErrors {
				broken, ok := plant(history)
				if !ok {
					t.Errorf("%s: the run has nothing to plant it in", name)
				} else if porcupine.CheckOperations(claimModel, broken) {
					t.Errorf("%s: goes unnoticed", name)
				}
			}
		})
	}
}

const linearLease = 300 * time.Millisecond

// lag holds stored outcomes back for some leases at a time until ctx is done: either the router does not read them,
// or they stand behind the open transaction of an executor that died.
func (l *linear) lag(ctx context.Context, current *atomic.Pointer[instance]) {
	dead := l.newClient(kgo.TransactionalID("executor-that-dies"), kgo.TransactionTimeout(10*time.Minute))
	tick := time.NewTicker(3 * linearLease)
	defer tick.Stop()
	for n := int32(0); ; n++ {
		end := func() {}
		switch n % 3 {
		case 0:
			end = current.Load().PauseRouting("ops.outcomes")
		case 1:
			must(l.t, dead.BeginTransaction())
			must(l.t, dead.ProduceSync(context.WithoutCancel(ctx), &kgo.Record{Topic: "ops.outcomes", Partition: n / 3 % 4, Value: []byte("aborted")}).FirstErr())
			end = func() { must(l.t, dead.EndTransaction(context.WithoutCancel(ctx), kgo.TryAbort)) }
		}
		select {
		case <-tick.C:
			end()
		case <-ctx.Done():
			end()
			return
		}
	}
}

// linearRun returns the history of a run. With lags, the run fails if the app refused an outcome, because another
// attempt had begun, although it was stored within the lease of its attempt.
func linearRun(t *testing.T, policy string, seed uint64, lags bool) []porcupine.Operation {
	const senders, requests, keys, restarts = 8, 250, 300, 3
	b := newBench(t, fmt.Sprintf(strings.Replace(claimRoutes, "lease: 10m", fmt.Sprint("lease: ", linearLease), 1), policy))
	cfg := b.config("one")
	cfg.CommitInterval = 5 * time.Millisecond
	start := func() *instance { return b.ready(b.startObserving(cfg)) }
	i := start()
	l := &linear{
		bench: b, client: b.newClient(), began: time.Now(), waiting: map[string]chan any{}, refused: map[string]bool{}, unseen: map[string]int{}, runs: make(chan *kgo.Record, 1<<16),
		called: map[string]time.Time{}, inTime: map[string]bool{}, answered: map[string]bool{},
	}
	ctx, cancel := context.WithCancel(t.Context())
	var others, all, lagging sync.WaitGroup
	current := atomic.Pointer[instance]{}
	current.Store(i)
	lagged, endLag := context.WithCancel(ctx)
	if lags {
		lagging.Go(func() { l.lag(lagged, &current) })
	}
	others.Go(func() { l.listen(ctx) })
	others.Go(func() { l.execute(ctx, rand.New(rand.NewPCG(seed, 99))) })
	// Each request has an answer at the latest when its lease has ended. The patience has a limit so that a request
	// without an answer fails the test by the counts.
	sending, ended := context.WithTimeout(ctx, 5*time.Minute)
	defer ended()
	for s := range senders {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(seed, uint64(s)))
			for n := range requests {
				l.sendRequest(sending, fmt.Sprint(rng.IntN(keys)), fmt.Sprintf("%d-%d", s, n), rng.Int32N(4))
			}
		})
	}
	for n := range restarts {
		b.wait("some answers", func() bool {
			l.mu.Lock()
			defer l.mu.Unlock()
			return len(l.history) > (n+1)*senders*requests/(restarts+1)
		})
		must(t, i.stop())
		if n == 1 {
			cfg.StateDir = t.TempDir()
		}
		i = start()
		current.Store(i)
	}
	all.Wait()
	endLag()
	lagging.Wait()
	b.drainClaims(i)
	cancel()
	others.Wait()
	for _, r := range b.read("dead") {
		l.refused[string(r.Key)] = true
		if lags && l.inTime[string(r.Key)] && strings.Contains(header(r, wire.HeaderReason), "token is for attempt") {
			t.Errorf("outcome %s was stored in the lease of its attempt, and another attempt had begun: %s", r.Key, header(r, wire.HeaderReason))
		}
	}
	t.Logf("%d of %d outcomes were stored in the lease of their attempt", len(l.inTime), len(l.outcomes))
	for _, r := range b.read("ops.run") {
		if at, ok := l.unseen[string(r.Key)]; ok { // it claimed the key all the same
			attempt, _ := strconv.Atoi(header(r, wire.HeaderAttempt))
			l.history[at].Output = run{attempt}
		}
	}
	for _, at := range l.outcomes {
		l.history[at].Output = accepted(!l.refused[l.history[at].Output.(string)])
	}
	return l.history
}

// claimErrors are functions that plant an error into a history that must not be accepted. They return false if the
// history has no place for the error.
var claimErrors = map[string]func([]porcupine.Operation) ([]porcupine.Operation, bool){
	"two run under one attempt": plantAfter(func(o *porcupine.Operation) (any, bool) {
		if r, ok := o.Output.(run); ok {
			return r, true
		}
		return nil, false
	}),
	"another result is replayed": plantIn(func(o *porcupine.Operation) bool {
		r, ok := o.Output.(replayed)
		if ok {
			r.value += "!"
			o.Output = r
		}
		return ok
	}),
	"a zombie's outcome is accepted": plantIn(func(o *porcupine.Operation) bool {
		if in, ok := o.Input.(outcomeSent); ok && in.value == "zombie" && o.Output == accepted(false) {
			o.Output = accepted(true)
			return true
		}
		return false
	}),
	"a completed key runs again": plantAfter(func(o *porcupine.Operation) (any, bool) {
		if r, ok := o.Output.(replayed); ok && r.status == "completed" {
			return run{1000}, true
		}
		return nil, false
	}),
}

// plantIn plants an error in the first operation that change accepts.
func plantIn(change func(*porcupine.Operation) bool) func([]porcupine.Operation) ([]porcupine.Operation, bool) {
	return func(history []porcupine.Operation) ([]porcupine.Operation, bool) {
		broken := append([]porcupine.Operation(nil), history...)
		for i := range broken {
			if change(&broken[i]) {
				return broken, true
			}
		}
		return nil, false
	}
}

// plantAfter adds a request after the first operation that of accepts, with the answer that of returns.
func plantAfter(of func(*porcupine.Operation) (any, bool)) func([]porcupine.Operation) ([]porcupine.Operation, bool) {
	return func(history []porcupine.Operation) ([]porcupine.Operation, bool) {
		for i := range history {
			if answer, ok := of(&history[i]); ok {
				extra := porcupine.Operation{Input: history[i].Input, Output: answer, Call: math.MaxInt64 - 2, Return: math.MaxInt64 - 1}
				return append(append([]porcupine.Operation(nil), history...), extra), true
			}
		}
		return nil, false
	}
}

// fieldOf returns a string field of an operation's payload.
func fieldOf(payload []byte, name string) string {
	var fields map[string]any
	if json.Unmarshal(payload, &fields) != nil {
		return ""
	}
	text, _ := fields[name].(string)
	return text
}
