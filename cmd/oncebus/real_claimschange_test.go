//go:build unix

package main_test

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/cmd/oncebus/cli"
	"oncebus/processor/wire"
)

// claimsRoute is the route of claim mode of TestRealClaimsAcrossChanges.
const claimsRoute = `
  - name: ops
    topics: [APP.ops.raw]
    mode: claim
    key: [{field: id}]
    window: 1h
    output: APP.ops.unique
    outcomes: APP.ops.outcomes
    replies: APP.ops.replies
    lease: 30m
    while_in_progress: wait
    dead_letter: APP.dead-letter
`

// The files of TestRealClaimsAcrossChanges.
var (
	claimsFirst   = "\nroutes:" + routeNamed("signals") + claimsRoute
	claimsLonger  = strings.ReplaceAll(claimsFirst, "window: 1h", "window: 2h")
	claimsShorter = strings.ReplaceAll(claimsFirst, "window: 1h", "window: 40m") + routeNamed("alerts")
	claimsRemoved = strings.Replace(claimsShorter, strings.ReplaceAll(claimsRoute, "window: 1h", "window: 40m"), "", 1)
)

// A claimExecutor executes what is dispatched, and keeps an own account of it. It holds back the
// outcomes of some operations until the test wants them.
type claimExecutor struct {
	w    *world
	done chan struct{}

	mu       sync.Mutex
	executed map[string]int         // by operation
	held     map[string]*kgo.Record // the outcomes
	err      error
}

// startExecutor starts an executor, which ends with the test or with stop.
func (w *world) startExecutor() (x *claimExecutor, stop func()) {
	w.t.Helper()
	x = &claimExecutor{w: w, done: make(chan struct{}), executed: map[string]int{}, held: map[string]*kgo.Record{}}
	client := w.consumer(kgo.ConsumeTopics(w.topic("ops.unique")))
	ctx, cancel := context.WithCancel(w.t.Context())
	go func() { defer close(x.done); x.run(ctx, client) }()
	end := sync.OnceFunc(func() { cancel(); <-x.done })
	w.t.Cleanup(end)
	return x, end
}

func (x *claimExecutor) run(ctx context.Context, client *kgo.Client) {
	for ctx.Err() == nil {
		client.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
			id := string(r.Key)
			outcome := &kgo.Record{
				Topic: x.w.topic("ops.outcomes"), Partition: rand.Int32N(realPartitions), Key: r.Key, Value: []byte("result of " + id),
				Headers: []kgo.RecordHeader{{Key: wire.HeaderClaimToken, Value: []byte(headerOf(r, wire.HeaderClaimToken))}, {Key: wire.HeaderOutcome, Value: []byte("completed")}},
			}
			x.mu.Lock()
			defer x.mu.Unlock()
			x.executed[id]++
			h := fnv.New32a()
			h.Write(r.Key)
			if h.Sum32()%32 == 0 {
				x.held[id] = outcome
				return
			}
			x.send(outcome)
		})
	}
}

// send produces an outcome. The caller has the lock.
func (x *claimExecutor) send(outcome *kgo.Record) {
	x.w.producer.Produce(context.Background(), outcome, func(_ *kgo.Record, err error) {
		if err != nil {
			x.mu.Lock()
			defer x.mu.Unlock()
			x.err = errors.Join(x.err, err)
		}
	})
}

// release sends the outcomes that are held back, of at least one operation, and returns the operations.
func (x *claimExecutor) release() (ids []string) {
	x.w.t.Helper()
	x.mu.Lock()
	defer x.mu.Unlock()
	for id, outcome := range x.held {
		x.send(outcome)
		ids = append(ids, id)
	}
	clear(x.held)
	if len(ids) == 0 {
		x.w.t.Error("no claim is open")
	}
	return ids
}

// awaitAll waits until the executor has executed so many operations, and sends all outcomes.
func (x *claimExecutor) awaitAll(operations int) {
	x.w.t.Helper()
	eventually(x.w.t, "all operations to be executed", func(context.Context) error {
		x.mu.Lock()
		defer x.mu.Unlock()
		if len(x.executed) < operations {
			return fmt.Errorf("%d of %d", len(x.executed), operations)
		}
		return nil
	})
	x.release()
	if err := errors.Join(x.w.producer.Flush(x.w.t.Context()), x.err); err != nil {
		x.w.t.Fatal(err)
	}
}

// awaitReplies waits until each of these operations has a reply with its result.
func (w *world) awaitReplies(ids []string) {
	w.t.Helper()
	eventually(w.t, "the results of claims that were open", func(ctx context.Context) error {
		replies, err := w.read(ctx, w.topic("ops.replies"), nil)
		if err != nil {
			return err
		}
		got := map[string]bool{}
		for _, r := range replies {
			got[string(r.Key)] = got[string(r.Key)] || headerOf(r, wire.HeaderClaimStatus) == "completed"
		}
		for _, id := range ids {
			if !got[id] {
				return fmt.Errorf("operation %s has no result", id)
			}
		}
		return nil
	})
}

// check compares what was executed with what was sent, and each request with its reply.
func (x *claimExecutor) check(operations int) {
	x.w.t.Helper()
	var wrong []string
	for i := range operations {
		if id := fmt.Sprintf("ops-%d", i); x.executed[id] != 1 {
			wrong = append(wrong, fmt.Sprintf("%s was executed %d times", id, x.executed[id]))
		}
	}
	replies := map[string]string{}
	for _, r := range x.w.output("ops.replies") {
		replies[headerOf(r, wire.HeaderSource)] += headerOf(r, wire.HeaderClaimStatus) + " " + string(r.Value)
	}
	requests := x.w.output("ops.raw")
	for _, r := range requests {
		if want := "completed result of " + string(r.Key); replies[at(r)] != want {
			wrong = append(wrong, fmt.Sprintf("request %s got %q, want %q", at(r), replies[at(r)], want))
		}
	}
	x.w.t.Logf("%d operations executed once, %d requests with %d replies; %d wrong", operations, len(requests), len(replies), len(wrong))
	if len(replies) != len(requests) {
		wrong = append(wrong, fmt.Sprintf("%d requests have %d replies", len(requests), len(replies)))
	}
	complain(x.w.t, wrong, "claims across changes")
}

// TestRealClaimsAcrossChanges changes the window of a route of claim mode, adds a route, and removes
// and puts back that route, under load at two processes, while an executor answers and holds some
// outcomes back over each change. One process is killed right after a change. Each operation is
// executed once, and each sender gets the result of its own operation.
func TestRealClaimsAcrossChanges(t *testing.T) {
	t.Parallel()
	w := newLoadedWorld(t, claimsFirst)
	w.createTopics(nil, "signals.raw", "alerts.raw", "ops.raw", "ops.outcomes")
	a, b := w.start("a", "LEAVE_ON_STOP=false"), w.start("b", "LEAVE_ON_STOP=false")
	a.awaitReady()
	b.awaitReady()
	awaitSharing(t, realPartitions, a, b)
	x, stopExecutor := w.startExecutor()
	l := w.startCopiedLoad(time.Now, "ops", "signals")
	l.runs(2 * time.Second)

	longer := w.apply(w.routesFile("longer.yaml", claimsLonger))
	b.kill()
	t.Logf("window longer, process killed: %+v", longer)
	l.runs(copyAfter)
	x.release()
	b = w.start("b", "LEAVE_ON_STOP=false")
	b.awaitReady()

	shorter := w.routesFile("shorter.yaml", claimsShorter)
	t.Logf("window shorter, route added: %+v", w.apply(shorter))
	l.add("alerts")
	x.release()
	l.runs(copyAfter)
	w.selfAudit(cli.ExitStopped) // it cannot check across a removal

	t.Logf("route removed: %+v", w.apply(w.routesFile("removed.yaml", claimsRemoved)))
	l.runs(time.Second)
	open := x.release()
	w.awaitReplies(open)
	t.Logf("%d claims got their outcomes while their route was removed", len(open))
	t.Logf("route put back: %+v", w.apply(shorter))
	l.runs(copyAfter)
	l.stop()

	inputs, outputs := []string{"signals.raw", "alerts.raw", "ops.raw"}, []string{"signals.unique", "alerts.unique", "ops.unique", "ops.replies", "dead-letter"}
	w.drained(inputs, outputs)
	x.awaitAll(l.next["ops"])
	w.drained(append(inputs, "ops.outcomes"), outputs)
	stopExecutor()
	l.check()
	x.check(l.next["ops"])
	a.stop()
	b.stop()
}
