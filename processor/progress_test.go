package processor_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/processor"
	"oncebus/processor/wire"
)

// progressBench is a running app with a lease so long that no test waits for its time: evidence ends it.
type progressBench struct {
	*bench
	*instance
}

// withLease returns the claim routes with a short lease, and with the executors' consumer group unless group is "".
func withLease(group string) string {
	lease := "lease: 20ms"
	if group != "" {
		lease += "\n    executor_group: " + group
	}
	return strings.Replace(fmt.Sprintf(claimRoutes, "reject"), "lease: 10m", lease, 1)
}

func newProgressBench(t *testing.T, group string) *progressBench {
	t.Helper()
	return progressBenchOf(t, withLease(group))
}

// TestProgressOfAWorkerWithOutcomesAlone runs two workers, one with the input and the other with the outcomes. While
// a claim is open, the second worker writes progress records as often as any other, by the timestamps of the log.
func TestProgressOfAWorkerWithOutcomesAlone(t *testing.T) {
	t.Parallel()
	b := newBench(t, fmt.Sprintf(claimRoutes, "reject"), kfake.SeedTopics(1, "ops.raw", "ops.outcomes"))
	cfg := b.config("one")
	cfg.Workers = 2
	const interval, looks = 300 * time.Millisecond, 8
	i := b.ready(b.startWith(cfg, func(p *processor.Processor) { p.SetProgressInterval(interval) }))
	b.produce(operation("1", "first", 0))
	b.drainClaims(i)
	var times []time.Time
	b.wait("progress of the outcomes", func() bool {
		times = times[:0]
		b.eachObservation(func(r *kgo.Record, _ wire.Progress) {
			if r.Partition == 0 {
				times = append(times, r.Timestamp)
			}
		})
		return len(times) > looks
	})
	var gaps []time.Duration // a worker that waits for the machine writes one record late, and the next one on time
	for n := range looks {
		gaps = append(gaps, times[n+1].Sub(times[n]))
	}
	slices.Sort(gaps)
	if gaps[looks/2] < interval/2 {
		t.Errorf("records after %v, one every %v is enough", gaps, interval)
	}
}

func progressBenchOf(t *testing.T, routes string) *progressBench {
	t.Helper()
	b := newBench(t, routes)
	return &progressBench{b, b.ready(b.startObserving(b.config("one")))}
}

// startObserving starts an instance that observes often, and whose transactions are short.
func (b *bench) startObserving(cfg processor.Config, extra ...kgo.Opt) *instance {
	b.t.Helper()
	cfg.TransactionTimeout = 2 * time.Second
	return b.startWith(cfg, func(p *processor.Processor) { p.SetProgressInterval(50 * time.Millisecond) }, extra...)
}

// runsOf returns the dispatched attempts of an operation.
func (b *bench) runsOf(id string) (runs []*kgo.Record) {
	b.t.Helper()
	for _, r := range b.read("ops.run") {
		if strings.Contains(string(r.Value), fmt.Sprintf("\"id\":%q", id)) {
			runs = append(runs, r)
		}
	}
	return runs
}

// eachObservation calls fn with every progress record of outcomes, in the order of its partition.
func (b *bench) eachObservation(fn func(r *kgo.Record, p wire.Progress)) {
	b.t.Helper()
	for _, r := range b.read("app-repartition") {
		var env wire.Envelope
		must(b.t, wire.ReadEnvelope(r, &env))
		if !env.IsProgress {
			continue
		}
		p, err := wire.DecodeProgress(r.Value)
		must(b.t, err)
		if !p.IsEmpty() { // else it is of inputs alone
			fn(r, p)
		}
	}
}

// observed returns the newest progress record of outcomes, with its time.
func (b *bench) observed() (last wire.Progress, stored time.Time) {
	b.t.Helper()
	b.eachObservation(func(r *kgo.Record, p wire.Progress) {
		if !r.Timestamp.Before(stored) {
			last, stored = p, r.Timestamp
		}
	})
	return last, stored
}

// observations returns how many progress records of outcomes each partition has.
func (b *bench) observations() map[int32]int {
	b.t.Helper()
	counts := map[int32]int{}
	b.eachObservation(func(r *kgo.Record, _ wire.Progress) { counts[r.Partition]++ })
	return counts
}

// awaitsProgress reports whether a task says that it waits for progress, because its leases may not have ended.
func (b *bench) awaitsProgress() (awaited bool) {
	b.t.Helper()
	offsets, err := b.admin.FetchOffsets(b.t.Context(), "app-dedup")
	must(b.t, err)
	offsets.Each(func(o kadm.OffsetResponse) { awaited = awaited || strings.HasSuffix(o.Metadata, "+claims") })
	return awaited
}

// awaitProgress waits until the outcomes in these partitions are read up to a time, or until no task waits for that
// any more.
func (b *bench) awaitProgress(to time.Time, partitions ...int) wire.OutcomesProgress {
	b.t.Helper()
	var last wire.OutcomesProgress
	b.wait(fmt.Sprintf("the outcomes in %v to be read", partitions), func() bool {
		awaited := b.awaitsProgress()
		p, _ := b.observed()
		if len(p.Outcomes) != 1 {
			return false
		}
		last = p.Outcomes[0]
		return !awaited || !slices.ContainsFunc(partitions, func(n int) bool { return n >= len(last.ReadTo) || last.ReadTo[n] < to.UnixMilli() })
	})
	return last
}

// leaseOver returns a time after the leases of all events that are dispatched by now.
func leaseOver() time.Time { return time.Now().Add(200 * time.Millisecond) }

// assertRunsOnce sends a duplicate and fails if the operation was dispatched again.
func (p *progressBench) assertRunsOnce(id, request string) {
	p.t.Helper()
	p.produce(operation(id, request, 1))
	p.drain(p.instance, "ops.raw")
	if n := len(p.runsOf(id)); n != 1 {
		p.t.Fatalf("operation %s was dispatched %d times", id, n)
	}
}

// awaitTakeover sends duplicates until the operation is dispatched again.
func (p *progressBench) awaitTakeover(id string) {
	p.t.Helper()
	n := 0
	p.wait("the next attempt", func() bool {
		n++
		p.produce(operation(id, fmt.Sprint("again-", n), 2))
		p.drain(p.instance, "ops.raw")
		return len(p.runsOf(id)) == 2
	})
}

// TestHangingTransactionInTheOutcomesHoldsLeases lets an executor die in a transaction, so that the outcomes of all
// other executors in that partition wait behind it. These outcomes were stored in time, so their keys must not be
// dispatched again.
func TestHangingTransactionInTheOutcomesHoldsLeases(t *testing.T) {
	t.Parallel()
	p := newProgressBench(t, "")
	p.produce(operation("2", "second", 1))
	p.drainClaims(p.instance)
	dead := p.newClient(kgo.TransactionalID("executor-x"), kgo.TransactionTimeout(10*time.Minute))
	must(t, dead.BeginTransaction())
	dying := outcomeOf(p.runsOf("2")[0], "completed", []byte("X"))
	dying.Partition = 0
	must(t, dead.ProduceSync(t.Context(), dying).FirstErr())
	p.produce(operation("1", "first", 0)) // later, or its lease might end before the transaction hangs
	p.drain(p.instance, "ops.raw")
	good := outcomeOf(p.runsOf("1")[0], "completed", []byte("order-1"))
	good.Partition = 0
	p.produce(good)

	if last := p.awaitProgress(leaseOver(), 1, 2, 3); last.ReadTo[0] > time.Now().UnixMilli() {
		t.Errorf("partition 0 is read to %d", last.ReadTo[0])
	}
	p.assertRunsOnce("1", "copy")

	must(t, dead.EndTransaction(t.Context(), kgo.TryAbort)) // as the broker does at its timeout
	p.drainClaims(p.instance)
	p.assertRunsOnce("1", "late")
	assertHeaders(t, p.replies("ops.replies")["ops.raw/0/0"], map[string]string{wire.HeaderClaimStatus: "completed"})
	p.awaitTakeover("2")
}

// TestAddedPartitionOfTheOutcomesHoldsLeases covers a partition that was added to the outcomes topic, which an
// executor knows and no router knows yet.
func TestAddedPartitionOfTheOutcomesHoldsLeases(t *testing.T) {
	t.Parallel()
	b := newBench(t, withLease(""))
	p := &progressBench{b, b.ready(b.startObserving(b.config("one"), kgo.MetadataMaxAge(time.Hour)))}
	p.produce(operation("2", "other", 1)) // after which the clients have the metadata of all topics
	p.drainClaims(p.instance)
	_, err := p.admin.CreatePartitions(t.Context(), 1, "ops.outcomes")
	must(t, err)
	p.produce(operation("1", "first", 0)) // later, or its lease might end before there is a partition to await
	p.drainClaims(p.instance)
	executor := p.newClient()
	outcome := outcomeOf(p.runsOf("1")[0], "completed", []byte("order-1"))
	outcome.Partition = 4
	must(t, executor.ProduceSync(t.Context(), outcome).FirstErr())
	last := p.awaitProgress(leaseOver(), 0, 1, 2, 3)
	p.assertRunsOnce("1", "copy")
	if len(last.ReadTo) != 5 || last.ReadTo[4] != dedup.NoStreamTime {
		t.Errorf("the outcomes are read to %v", last.ReadTo)
	}
}

// TestLaggingRouterHoldsLeases sends a duplicate by HTTP while the router lags behind and has not read the outcome.
// The duplicate does not pass through the router, and must not end the lease.
func TestLaggingRouterHoldsLeases(t *testing.T) {
	t.Parallel()
	b := newHTTPBench(t, withLease(""))
	i := b.ready(b.startObserving(b.config("one")))
	f := b.ingress("ingress")
	assertAnswer(t, f.submit(request("2", "other")), "unique in_progress attempt 1 forwarded")
	end := i.PauseRouting("ops.outcomes")
	b.produce(outcomeOf(b.runsOf("2")[0], "completed", []byte("order-2")))
	// The requests come later, because their leases might otherwise end before there is an outcome to read.
	assertAnswer(t, f.submit(request("1", "first")), "unique in_progress attempt 1 forwarded")
	b.produce(outcomeOf(b.runsOf("1")[0], "completed", []byte("order-1")))
	b.awaitProgress(leaseOver(), 1, 2, 3)
	if a := f.submit(request("1", "copy")); a.Forwarded {
		t.Error("a key that was completed in its lease runs again")
	}
	end()
	b.drain(i, "ops.outcomes")
	assertAnswer(t, f.submit(request("1", "late")), "replayed completed attempt 1 outcome")
}

// TestAbortedOutcomesHoldNoLease protects that control records and aborted records at the end of the outcomes topic,
// which an executor's transactions leave, do not count as unread outcomes.
func TestAbortedOutcomesHoldNoLease(t *testing.T) {
	t.Parallel()
	p := newProgressBench(t, "")
	p.produce(operation("1", "first", 0))
	p.drainClaims(p.instance)
	executor := p.newClient(kgo.TransactionalID("executor"))
	for n := range 3 {
		must(t, executor.BeginTransaction())
		for partition := range int32(4) {
			outcome := outcomeOf(p.runsOf("1")[0], "completed", fmt.Append(nil, n))
			outcome.Partition = partition
			must(t, executor.ProduceSync(t.Context(), outcome).FirstErr())
		}
		must(t, executor.EndTransaction(t.Context(), kgo.TryAbort))
	}
	p.awaitTakeover("1")
}

// TestExecutorAwayRunsEachKeyOnce protects that an executor that was away for many leases finds one attempt of each
// key when it returns.
func TestExecutorAwayRunsEachKeyOnce(t *testing.T) {
	t.Parallel()
	p := newProgressBench(t, "exec")
	p.produce(operation("1", "first", 0))
	p.drainClaims(p.instance)
	for n := range 3 {
		p.awaitProgress(leaseOver(), 0, 1, 2, 3)
		p.assertRunsOnce("1", fmt.Sprint("copy-", n))
	}
	// The executor returns, commits what it has read, and dies before it sends the outcome.
	p.commitOutput("exec")
	p.awaitTakeover("1")
}

// TestHangingTransactionInTheOutputHoldsLeases covers an executor that reads committed records and therefore cannot
// see an event behind the open transaction of a dead producer: the lease of this event must not end.
func TestHangingTransactionInTheOutputHoldsLeases(t *testing.T) {
	t.Parallel()
	p := newProgressBench(t, "exec")
	dead := p.newClient(kgo.TransactionalID("dead-producer"), kgo.TransactionTimeout(10*time.Minute))
	must(t, dead.BeginTransaction())
	for partition := range int32(4) {
		must(t, dead.ProduceSync(t.Context(), &kgo.Record{Topic: "ops.run", Partition: partition, Value: []byte("dead")}).FirstErr())
	}
	p.produce(operation("1", "first", 0))
	p.drain(p.instance, "ops.raw")
	p.awaitProgress(leaseOver(), 0, 1, 2, 3)
	p.produce(operation("1", "copy", 1))
	p.drain(p.instance, "ops.raw")
	must(t, dead.EndTransaction(t.Context(), kgo.TryAbort))
	if n := len(p.runsOf("1")); n != 1 {
		t.Fatalf("the operation was dispatched %d times", n)
	}
	p.commitOutput("exec")
	p.awaitTakeover("1")
}

// commitOutput commits the end of the output for an executor's group, and leaves the group without a member.
func (b *bench) commitOutput(group string) {
	b.t.Helper()
	ends, err := b.admin.ListCommittedOffsets(b.t.Context(), "ops.run")
	must(b.t, err)
	offsets := kadm.Offsets{}
	ends.Each(func(o kadm.ListedOffset) { offsets.AddOffset(o.Topic, o.Partition, max(0, o.Offset-1), -1) }) // before the last control record
	must(b.t, b.admin.CommitAllOffsets(context.Background(), group, offsets))
}

// TestWaitingSendersAreAnsweredAtTheEndOfTheLease covers an executor that died while no duplicate comes. Every
// waiting sender is answered once, also after a rebuild. The key is dispatched again when a sender sends again.
func TestWaitingSendersAreAnsweredAtTheEndOfTheLease(t *testing.T) {
	t.Parallel()
	p := progressBenchOf(t, strings.Replace(withLease(""), "while_in_progress: reject", "while_in_progress: wait", 1))
	p.produce(operation("1", "first", 0), operation("1", "second", 0), operation("2", "other", 1))
	p.drainClaims(p.instance)
	executed := outcomeOf(p.runsOf("2")[0], "completed", []byte("order-2"))
	p.produce(executed)
	p.wait("all three to be answered", func() bool { return len(p.replies("ops.replies")) == 3 })
	for source, request := range map[string]string{"ops.raw/0/0": "first", "ops.raw/0/1": "second"} {
		assertHeaders(t, p.replies("ops.replies")[source], map[string]string{
			wire.HeaderVerdict: "in_progress", wire.HeaderClaimStatus: "in_progress", wire.HeaderRequestID: request, wire.HeaderAttempt: "1",
		})
	}
	must(t, p.stop())
	p.instance = p.ready(p.startObserving(p.config("rebuilt")))
	p.awaitProgress(leaseOver(), 0, 1, 2, 3)
	p.produce(operation("1", "third", 0))
	p.drainClaims(p.instance)
	if n := len(p.runsOf("1")); n != 2 {
		t.Fatalf("the operation was dispatched %d times", n)
	}
	p.produce(outcomeOf(p.runsOf("1")[1], "completed", []byte("order-1")))
	p.wait("the third sender's reply", func() bool { return p.replies("ops.replies")["ops.raw/0/2"] != nil })
	p.drainClaims(p.instance)
	p.produce(operation("1", "fourth", 0)) // the third may have been answered at the end of its lease
	p.wait("the fourth sender's reply", func() bool { return p.replies("ops.replies")["ops.raw/0/3"] != nil })
	assertHeaders(t, p.replies("ops.replies")["ops.raw/0/3"], map[string]string{wire.HeaderVerdict: "replayed", wire.HeaderClaimStatus: "completed"})
}

// TestRestartsEndNoLeaseLate protects that restarts which come more often than the lease lasts do not begin the lease
// again.
func TestRestartsEndNoLeaseLate(t *testing.T) {
	t.Parallel()
	b := newBench(t, strings.Replace(fmt.Sprintf(claimRoutes, "reject"), "lease: 10m", "lease: 3s", 1))
	cfg := b.config("one")
	i := b.ready(b.startObserving(cfg))
	before := time.Now() // the lease begins after it
	b.produce(operation("1", "first", 0))
	b.drainClaims(i)
	for n := 0; len(b.runsOf("1")) == 1; n++ {
		must(t, i.stop())
		if n > 100 || time.Since(before) > time.Minute {
			t.Fatalf("%d restarts, and the claim was not taken over", n)
		}
		i = b.ready(b.startObserving(cfg))
		b.produce(operation("1", fmt.Sprint("copy-", n), 1))
		b.drainClaims(i)
	}
	if since := time.Since(before); since < 3*time.Second {
		t.Errorf("taken over %v after the dispatch", since)
	}
}

// TestProgressAtRest protects that no progress record is written while no claim is in progress, even if the lease of
// the last claim would have lasted longer.
func TestProgressAtRest(t *testing.T) {
	t.Parallel()
	b := newBench(t, fmt.Sprintf(claimRoutes, "reject"))
	p := &progressBench{b, b.ready(b.startObserving(b.config("one")))}
	p.produce(operation("1", "first", 0))
	p.drainClaims(p.instance)
	p.produce(outcomeOf(p.runsOf("1")[0], "completed", []byte("order-1")))
	p.drainClaims(p.instance)
	p.wait("the task to await no progress", func() bool { return !p.awaitsProgress() })
	seen := p.observations()
	for range 20 { // events of another kind need none
		p.produce(operation("1", "again", 1))
		p.drainClaims(p.instance)
	}
	for partition, n := range p.observations() {
		if n -= seen[partition]; n > 2 { // one may be on its way, and one is being made
			t.Errorf("%d progress records in partition %d while 20 duplicates were judged", n, partition)
		}
	}
}
