//go:build unix

package proxy

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/processor/kafkatest"
)

// realRun is a broker with a proxy, and a topic of its own.
type realRun struct {
	t      *testing.T
	broker *kafkatest.Broker
	proxy  *Proxy
	topic  string
}

// TestRealFaults applies rules to a real client and a real broker, and reads the
// effect without the proxy.
func TestRealFaults(t *testing.T) {
	p := open(t, 1)
	broker := kafkatest.Start(t, kafkatest.WithListener(kafkatest.Listener{Name: "PROXIED", Advertise: p.Addrs()}))
	if err := p.Forward(broker.ListenAddrs("PROXIED")); err != nil {
		t.Fatal(err)
	}
	for i, test := range []struct {
		name string
		run  func(*realRun)
	}{
		{"advertised", (*realRun).advertised},
		{"commit done and unknown", (*realRun).commitUnknown},
		{"commit not done", (*realRun).commitLost},
		{"late commit", (*realRun).lateCommit},
		{"late produce", (*realRun).lateProduce},
		{"duplicate produce", (*realRun).duplicateProduce},
		{"refused", (*realRun).refused},
		{"no offsets", (*realRun).noOffsets},
		{"blackhole", (*realRun).blackhole},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := &realRun{t: t, broker: broker, proxy: p, topic: fmt.Sprintf("topic-%d", i)}
			if _, err := broker.Admin().CreateTopic(t.Context(), 1, -1, nil, r.topic); err != nil {
				t.Fatal(err)
			}
			defer p.Clear()
			test.run(r)
		})
	}
}

// kafka3 reports whether the broker has the transactions of Kafka 3.
func kafka3() bool { return strings.HasPrefix(kafkatest.Version(), "3.") }

// client connects through the proxy with a client id; a transactional id is optional.
func (r *realRun) client(opts ...kgo.Opt) *kgo.Client {
	r.t.Helper()
	cl, err := kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(r.proxy.Addrs()...), kgo.ClientID("victim-0"), kgo.DefaultProduceTopic(r.topic),
		kgo.MetadataMinAge(50 * time.Millisecond),
	}, opts...)...)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(cl.Close)
	return cl
}

func (r *realRun) add(rule Rule) *Fault {
	r.t.Helper()
	rule.ClientID = "victim"
	f, err := r.proxy.Add(rule)
	if err != nil {
		r.t.Fatal(err)
	}
	return f
}

// struck checks how often the rule has struck.
func (r *realRun) struck(f *Fault, n int) {
	r.t.Helper()
	if got, err := f.Struck(), f.Err(); got != n || err != nil {
		r.t.Errorf("rule %s struck %d times, want %d; %v", f.Name(), got, n, err)
	}
}

// begin opens a transaction with one record.
func (r *realRun) begin(cl *kgo.Client, value string) {
	r.t.Helper()
	if err := cl.BeginTransaction(); err != nil {
		r.t.Fatal(err)
	}
	if err := cl.ProduceSync(soon(r.t), kgo.StringRecord(value)).FirstErr(); err != nil {
		r.t.Fatal(err)
	}
}

// committed returns the topic's committed values, read without the proxy up to its
// last stable offset.
func (r *realRun) committed() string {
	r.t.Helper()
	ctx := soon(r.t)
	ends, err := r.broker.Admin().ListCommittedOffsets(ctx, r.topic)
	if err != nil {
		r.t.Fatal(err)
	}
	end, _ := ends.Lookup(r.topic, 0)
	cl, err := kgo.NewClient(kgo.SeedBrokers(r.broker.Seeds()...), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{r.topic: {0: kgo.NewOffset().At(0)}}))
	if err != nil {
		r.t.Fatal(err)
	}
	defer cl.Close()
	values := []string{}
	for next := int64(0); next < end.Offset; {
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			r.t.Fatalf("read %s to %d: %v", r.topic, end.Offset, err)
		}
		fetches.EachRecord(func(rec *kgo.Record) {
			if next = rec.Offset + 1; !rec.Attrs.IsControl() {
				values = append(values, string(rec.Value))
			}
		})
	}
	return fmt.Sprint(values)
}

func (r *realRun) wantCommitted(want string) {
	r.t.Helper()
	if got := r.committed(); got != want {
		r.t.Errorf("committed %s, want %s", got, want)
	}
}

// advertised: clients whose seed is the proxy use only the proxy, because the broker
// advertises its address at that listener.
func (r *realRun) advertised() {
	brokers, err := kadm.NewClient(r.client()).ListBrokers(soon(r.t))
	if err != nil || len(brokers) != 1 || fmt.Sprintf("%s:%d", brokers[0].Host, brokers[0].Port) != r.proxy.Addrs()[0] {
		r.t.Errorf("brokers %+v, %v; want %v", brokers, err, r.proxy.Addrs())
	}
	direct, err := r.broker.Admin().ListBrokers(soon(r.t))
	if err != nil || fmt.Sprintf("%s:%d", direct[0].Host, direct[0].Port) != r.broker.Seeds()[0] {
		r.t.Errorf("brokers %+v, %v; want %v", direct, err, r.broker.Seeds())
	}
}

var commits = Match{
	APIs:  []int16{kmsg.EndTxn.Int16()},
	Where: func(req kmsg.Request) bool { return req.(*kmsg.EndTxnRequest).Commit },
}

// commitUnknown, row n1: the broker commits, and the response is lost. This client
// does not retry requests.
func (r *realRun) commitUnknown() {
	cl := r.client(kgo.TransactionalID(r.topic), kgo.RequestRetries(0))
	r.begin(cl, "a")
	f := r.add(Rule{Match: commits, Action: DropResponse, Count: 1})
	if err := cl.EndTransaction(soon(r.t), kgo.TryCommit); err == nil {
		r.t.Error("the commit's response arrived")
	}
	r.struck(f, 1)
	r.waitStable()
	r.wantCommitted("[a]")
}

// commitLost, row n1: the commit request is lost. The client sees the same as above,
// and the transaction stays open.
func (r *realRun) commitLost() {
	cl := r.client(kgo.TransactionalID(r.topic), kgo.RequestRetries(0))
	r.begin(cl, "a")
	f := r.add(Rule{Match: commits, Action: DropRequest, Count: 1, Reset: true})
	if err := cl.EndTransaction(soon(r.t), kgo.TryCommit); err == nil {
		r.t.Error("the commit got a response")
	}
	r.struck(f, 1)
	r.wantCommitted("[]")
	if got := r.state(); got != "Ongoing" {
		r.t.Errorf("transaction %s, want it open", got)
	}
}

// lateCommit, row n2: a commit is held. The client commits over another connection
// and begins the next transaction; then the held commit arrives. A broker with
// transaction.version 2 has raised the producer's epoch and rejects it.
func (r *realRun) lateCommit() {
	cl := r.client(kgo.TransactionalID(r.topic))
	r.begin(cl, "a")
	release := make(chan struct{})
	f := r.add(Rule{Match: commits, Action: HoldRequest, Release: release, Count: 1})
	if err := cl.EndTransaction(soon(r.t), kgo.TryCommit); err != nil {
		r.t.Fatalf("the commit over another connection: %v", err)
	}
	r.begin(cl, "b")
	close(release)
	late, err := f.Late(soon(r.t), 1)
	if err != nil || late[0].Err != nil {
		r.t.Fatalf("late %+v, %v", late, err)
	}
	if kafka3() {
		// Hazard C2: the commit ends the second transaction.
		if err := ErrorOf(late[0].Response); err != nil {
			r.t.Errorf("the broker's response to the late commit: %v", err)
		}
		r.waitStable()
		r.wantCommitted("[a b]")
		return
	}
	if err := ErrorOf(late[0].Response); !errors.Is(err, kerr.InvalidProducerEpoch) && !errors.Is(err, kerr.ProducerFenced) {
		r.t.Errorf("the broker's response to the late commit: %v", err)
	}
	if err := cl.EndTransaction(soon(r.t), kgo.TryAbort); err != nil {
		r.t.Fatal(err)
	}
	r.waitStable()
	r.wantCommitted("[a]")
}

// lateProduce, row n2: a Produce is held until after its transaction, which the
// client aborts before it begins another. The late records must not become part of
// that one.
func (r *realRun) lateProduce() {
	cl := r.client(kgo.TransactionalID(r.topic), kgo.RequestRetries(0))
	r.begin(cl, "a")
	if err := cl.EndTransaction(soon(r.t), kgo.TryCommit); err != nil {
		r.t.Fatal(err)
	}
	release := make(chan struct{})
	f := r.add(Rule{Match: Match{APIs: []int16{kmsg.Produce.Int16()}}, Action: HoldRequest, Release: release, Count: 1})
	r.begin(cl, "b") // the first Produce is held, the client sends it again
	if err := cl.EndTransaction(soon(r.t), kgo.TryAbort); err != nil {
		r.t.Fatal(err)
	}
	r.begin(cl, "c")
	close(release)
	late, err := f.Late(soon(r.t), 1)
	if err != nil || late[0].Err != nil {
		r.t.Fatalf("late %+v, %v", late, err)
	}
	// With the same epoch they are duplicates of those that the client sent again.
	if err := ErrorOf(late[0].Response); err == nil && !kafka3() {
		r.t.Error("the broker accepted the late records")
	}
	if err := cl.EndTransaction(soon(r.t), kgo.TryCommit); err != nil {
		r.t.Fatal(err)
	}
	r.waitStable()
	r.wantCommitted("[a c]")
}

// duplicateProduce: a Produce that arrives twice is written once, because the broker
// compares sequence numbers.
func (r *realRun) duplicateProduce() {
	cl := r.client()
	f := r.add(Rule{Match: Match{APIs: []int16{kmsg.Produce.Int16()}}, Action: DuplicateRequest, Count: 1})
	for _, v := range []string{"a", "b"} {
		if err := cl.ProduceSync(soon(r.t), kgo.StringRecord(v)).FirstErr(); err != nil {
			r.t.Fatal(err)
		}
	}
	r.struck(f, 1)
	r.wantCommitted("[a b]")
}

// refused, row n3: errors that brokers return while they load. The client retries;
// the refused requests never reached the broker.
func (r *realRun) refused() {
	before := r.proxy.Requests(kmsg.InitProducerID)
	find := r.add(Rule{Match: Match{APIs: []int16{kmsg.FindCoordinator.Int16()}}, Action: Refuse, Error: kerr.CoordinatorNotAvailable, Count: 2})
	load := r.add(Rule{Match: Match{APIs: []int16{kmsg.InitProducerID.Int16()}}, Action: Refuse, Error: kerr.CoordinatorLoadInProgress, Count: 2})
	busy := r.add(Rule{Match: commits, Action: Refuse, Error: kerr.ConcurrentTransactions, Count: 2})
	cl := r.client(kgo.TransactionalID(r.topic))
	r.begin(cl, "a")
	if err := cl.EndTransaction(soon(r.t), kgo.TryCommit); err != nil {
		r.t.Fatal(err)
	}
	r.struck(find, 2)
	r.struck(load, 2)
	r.struck(busy, 2)
	if n := r.proxy.Requests(kmsg.InitProducerID) - before; n != 1 {
		r.t.Errorf("%d InitProducerID requests reached the broker", n)
	}
	r.waitStable()
	r.wantCommitted("[a]")
}

// noOffsets, row n3: a group's offsets are missing, or unreadable.
func (r *realRun) noOffsets() {
	ctx := soon(r.t)
	adm := kadm.NewClient(r.client())
	var offsets kadm.Offsets
	offsets.AddOffset(r.topic, 0, 5, -1)
	if err := adm.CommitAllOffsets(ctx, "g", offsets); err != nil {
		r.t.Fatal(err)
	}
	f := r.add(Rule{Match: Match{APIs: []int16{kmsg.OffsetFetch.Int16()}}, Action: PatchResponse, Patch: NoOffsets, Count: 1})
	unstable := r.add(Rule{Match: Match{APIs: []int16{kmsg.OffsetFetch.Int16()}}, Action: PatchResponse, Error: kerr.UnknownServerError, Skip: 1, Count: 1})
	for i, want := range []int64{-1, 0, 5} {
		got, err := adm.FetchOffsets(ctx, "g")
		o, _ := got.Lookup(r.topic, 0)
		if i == 1 {
			if err == nil && o.Err == nil {
				r.t.Errorf("the patched error is missing: %+v", got)
			}
		} else if err != nil || o.At != want {
			r.t.Errorf("offset %+v, %v; want %d", o, err, want)
		}
	}
	r.struck(f, 1)
	r.struck(unstable, 1)
}

// blackhole, row n4: one client is cut off while another continues. After the removal
// the first continues too.
func (r *realRun) blackhole() {
	victim, other := r.client(), r.client(kgo.ClientID("other"))
	for _, cl := range []*kgo.Client{victim, other} {
		if err := cl.ProduceSync(soon(r.t), kgo.StringRecord("warm")).FirstErr(); err != nil {
			r.t.Fatal(err)
		}
	}
	f := r.add(Rule{Action: Blackhole})
	acked := make(chan error, 1)
	victim.Produce(soon(r.t), kgo.StringRecord("victim"), func(_ *kgo.Record, err error) { acked <- err })
	if err := f.Wait(soon(r.t), 1); err != nil {
		r.t.Fatal(err)
	}
	if err := other.ProduceSync(soon(r.t), kgo.StringRecord("other")).FirstErr(); err != nil {
		r.t.Fatal(err)
	}
	r.wantCommitted("[warm warm other]")
	select {
	case err := <-acked:
		r.t.Errorf("an acknowledgement from a blackhole: %v", err)
	default:
	}
	f.Remove()
	if err := <-acked; err != nil {
		r.t.Error(err)
	}
	r.wantCommitted("[warm warm other victim]")
}

// state returns the state of the test's transaction.
func (r *realRun) state() string {
	r.t.Helper()
	described, err := r.broker.Admin().DescribeTransactions(soon(r.t), r.topic)
	if err != nil {
		r.t.Fatal(err)
	}
	one, err := described.On(r.topic, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	return one.State
}

// waitStable returns when no transaction of the topic is open or ending.
func (r *realRun) waitStable() {
	r.t.Helper()
	err := kafkatest.Await(soon(r.t), "no transaction is open in "+r.topic, func(ctx context.Context) error {
		open, err := kafkatest.OpenTransactions(ctx, r.broker.Admin(), r.topic)
		if err != nil {
			return kafkatest.Fatal(err)
		}
		if len(open) > 0 {
			return fmt.Errorf("open on %v", open)
		}
		return nil
	})
	if err != nil {
		r.t.Fatal(err)
	}
}
