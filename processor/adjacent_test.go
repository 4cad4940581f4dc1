package processor

import (
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/front"
	"oncebus/processor/wire"
)

// shippedOrders is a process with the shipped orders.yaml, and its orders.
type shippedOrders struct {
	*bench
	cfg Config
	i   *instance
}

// edgeMS is a minute's beginning: times of orders are relative to it.
const edgeMS = testTime / 60_000 * 60_000

func newShippedOrders(t *testing.T, changes ...string) *shippedOrders {
	t.Helper()
	file, err := os.ReadFile("../deployments/routes/orders.yaml")
	must(t, err)
	b := newBench(t, strings.NewReplacer(changes...).Replace(string(file)))
	cfg := b.config("one")
	return &shippedOrders{b, cfg, b.ready(b.start(cfg))}
}

// order makes an order of its own timestamp at, whose record came at came, both
// in ms from the edge on.
func order(request, client string, at, came int64, partition int32) *kgo.Record {
	return &kgo.Record{
		Topic: "orders.raw", Partition: partition, Key: []byte(request), Timestamp: time.UnixMilli(edgeMS + came),
		Value: fmt.Appendf(nil, `{"requestId":%q,"clientOrderId":%q,"timestamp":%d,"account":"A","symbol":"aapl","side":"buy","quantity":"1","type":"market"}`,
			request, client, edgeMS+at),
	}
}

// send sends orders and waits until they are judged.
func (s *shippedOrders) send(orders ...*kgo.Record) {
	s.t.Helper()
	for _, o := range orders {
		s.produce(o)
		s.drain(s.i, "orders.raw", "orders.outcomes")
	}
}

// conclude sends the outcome of the latest run of a request.
func (s *shippedOrders) conclude(request, kind, value string) {
	s.t.Helper()
	run := s.run(request)
	if run == nil {
		s.t.Fatalf("request %s did not run", request)
	}
	outcome := outcomeOf(run, kind, []byte(value))
	outcome.Topic = "orders.outcomes"
	s.send(outcome)
}

// run is the latest run of a request, nil for none.
func (s *shippedOrders) run(request string) (run *kgo.Record) {
	s.t.Helper()
	for _, r := range s.read("orders.unique") {
		if string(r.Key) == request {
			run = r
		}
	}
	return run
}

// repliesTo are the replies that a request got, one after the other.
func (s *shippedOrders) repliesTo(request string) (replies []string) {
	s.t.Helper()
	for _, r := range s.read("orders.replies") {
		if string(r.Key) == request {
			replies = append(replies, strings.TrimSuffix(header(r, wire.HeaderVerdict)+" "+string(r.Value), " "))
		}
	}
	return replies
}

// TestAdjacentOrderHasDuplicatesOfItsOwn: an order with other details in the
// next bucket is no duplicate of the first and no collision. It has a key.
func TestAdjacentOrderHasDuplicatesOfItsOwn(t *testing.T) {
	t.Parallel()
	s := newShippedOrders(t)
	s.send(order("a", "c1", 30_000, 30_000, 0))
	for n := range int32(5) {
		s.send(order("b", "c2", 70_000, 70_000, n%4))
	}
	var ran []string
	for _, r := range s.read("orders.unique") {
		ran = append(ran, string(r.Key)+" "+header(r, wire.HeaderVerdict))
	}
	if want := []string{"a unique", "b unique"}; !slices.Equal(ran, want) {
		t.Errorf("%v ran, want %v", ran, want)
	}
	if replies, want := s.repliesTo("b"), []string{"in_progress", "in_progress", "in_progress", "in_progress"}; !slices.Equal(replies, want) {
		t.Errorf("b got %v, want %v", replies, want)
	}
	if n := gather(t, s.i)[`oncebus_events_total{route="orders",verdict="collision"}`]; n != 0 {
		t.Errorf("%v collisions are counted", n)
	}
}

// TestDuplicateOfTwoOrdersStaysTheFirsts: an order that was answered with the first
// one's outcome is answered so again, though another order has its key by now.
// Their records come ten minutes after their own timestamps.
func TestDuplicateOfTwoOrdersStaysTheFirsts(t *testing.T) {
	t.Parallel()
	s := newShippedOrders(t)
	s.send(order("A", "c1", 10_000, 610_000, 0))
	s.conclude("A", "completed", "order-A")
	s.send(order("B", "c1", 65_000, 665_000, 1), order("C", "c1", 75_000, 675_000, 2)) // C is 65 s after A
	s.conclude("C", "completed", "order-C")
	s.send(order("B", "c1", 65_000, 680_000, 3), order("C", "c1", 75_000, 681_000, 0))
	if replies, want := s.repliesTo("B"), []string{"replayed order-A", "replayed order-A"}; !slices.Equal(replies, want) {
		t.Errorf("B got %v, want %v", replies, want)
	}
	if replies, want := s.repliesTo("C"), []string{"unique order-C", "replayed order-C"}; !slices.Equal(replies, want) {
		t.Errorf("C got %v, want %v", replies, want)
	}
}

// TestOrderExpires: an order that is sent again after its window, as it was, is
// let through, logged and counted as such, whatever came in between; and then
// has duplicates again.
func TestOrderExpires(t *testing.T) {
	t.Parallel()
	const later = 90 * 60_000
	for _, c := range []struct {
		name  string
		at    int64 // the retry's own timestamp
		other int64 // when another order came; 0 for none
	}{
		{"verbatim", 59_000, 0}, {"verbatim, with other traffic", 59_000, later}, {"past the edge", 61_000, later},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newShippedOrders(t)
			s.send(order("a", "c1", 59_000, 59_000, 0))
			s.conclude("a", "completed", "X-1")
			if c.other > 0 {
				s.send(order("other", "c9", c.other, c.other, 1))
			}
			s.send(order("again", "c1", c.at, later, 2))
			assertHeaders(t, s.run("again"), map[string]string{wire.HeaderVerdict: "after_window", wire.HeaderAttempt: "2"})
			s.conclude("again", "completed", "X-2")
			s.send(order("copy", "c1", c.at, later+1000, 3))
			if replies, want := s.repliesTo("copy"), []string{"replayed X-2"}; !slices.Equal(replies, want) {
				t.Errorf("its duplicate got %v, want %v", replies, want)
			}
			if !strings.Contains(s.logs.String(), "duplicate after its window is dispatched again") {
				t.Error("the log has no line about it")
			}
			if n := gather(t, s.i)[`oncebus_events_total{route="orders",verdict="after_window"}`]; n != 1 {
				t.Errorf("%v are counted as expired, want 1", n)
			}
			if dead := s.read("oncebus.dead-letter"); len(dead) > 0 {
				t.Errorf("dead letters: %v", dead[0].Headers)
			}
			s.assertCounts()
		})
	}
}

// assertCounts compares what the task counts with the rows there are.
func (s *shippedOrders) assertCounts() {
	s.t.Helper()
	replies, rows := map[string]uint64{}, map[string]uint64{}
	for _, k := range s.keyCounts(s.cfg) {
		replies[k.Status] += k.Total
	}
	newest, _ := s.newestRows()
	for _, row := range newest {
		rows[row.Status.String()]++
	}
	for status, n := range rows {
		if status != dedup.Freed.String() && replies[status] != n {
			s.t.Errorf("%d keys are counted as %s, the rows are %d", replies[status], status, n)
		}
	}
}

// TestAttemptsGoOnPastTheEdge: an executor that failed an order knows the retry
// in the next bucket as another attempt.
func TestAttemptsGoOnPastTheEdge(t *testing.T) {
	t.Parallel()
	s := newShippedOrders(t)
	s.send(order("a", "c1", 59_000, 59_000, 0))
	s.conclude("a", "failed", "")
	s.send(order("b", "c1", 61_000, 61_000, 1))
	assertHeaders(t, s.run("b"), map[string]string{wire.HeaderVerdict: "unique", wire.HeaderAttempt: "2"})
	s.conclude("b", "rejected", "")
	s.send(order("a", "c1", 59_000, 62_000, 2))
	assertHeaders(t, s.run("a"), map[string]string{wire.HeaderVerdict: "unique", wire.HeaderAttempt: "3"})
	s.send(order("z", "c2", 61_000, 63_000, 3))
	assertHeaders(t, s.run("z"), map[string]string{wire.HeaderVerdict: "unique", wire.HeaderAttempt: "3"}) // the key's own count
}

// TestAdjacentRetryIsClaimedUnderTheFirstKey: when the lease is over, a retry in
// the next bucket is the next attempt at the first one's claim, and comes with
// the key by which its executor knows it.
func TestAdjacentRetryIsClaimedUnderTheFirstKey(t *testing.T) {
	t.Parallel()
	s := newShippedOrders(t, "lease: 1m", "lease: 1ms")
	s.send(order("a", "c1", 59_000, 59_000, 0))
	b := order("b", "c1", 61_000, 61_000, 1)
	s.wait("the lease to be over", func() bool { // by the broker's clock
		s.send(b)
		return s.run("b") != nil
	})
	assertHeaders(t, s.run("b"), map[string]string{wire.HeaderVerdict: "unique", wire.HeaderAttempt: "2", wire.HeaderKey: header(s.run("a"), wire.HeaderKey)})
	s.conclude("b", "completed", "X-1")
	if replies := s.repliesTo("a"); !slices.Equal(replies, []string{"replayed X-1"}) && !slices.Equal(replies, []string{"unique X-1"}) {
		t.Errorf("a got %v", replies)
	}
	if dead := s.read("oncebus.dead-letter"); len(dead) > 0 {
		t.Errorf("dead letters: %v", dead[0].Headers)
	}
}

// TestInspectorFindsAndForgetsAdjacentBuckets: what the service judges a duplicate by,
// the operator's commands find, and forget.
func TestInspectorFindsAndForgetsAdjacentBuckets(t *testing.T) {
	t.Parallel()
	s := newShippedOrders(t)
	s.send(order("a", "c1", 59_000, 59_000, 0))
	first := s.run("a")
	retry := order("b", "c1", 61_000, 61_000, 1)
	s.send(retry)
	inspector, err := front.NewInspector(t.Context(), s.cfg.Config, s.routes, slog.New(slog.DiscardHandler))
	must(t, err)
	defer func() { inspector.Close() }()
	derive := func(r *kgo.Record) *rules.Derived {
		in := wire.InputOf(r)
		d := s.routes.NewDeriver(nil).Derive(&in)
		return &d
	}
	original := derive(order("a", "c1", 59_000, 59_000, 0)).Digest
	for name, came := range map[string]int64{"at once": 61_000, "hours later": 10 * 3600_000} {
		asked := derive(order("b", "c1", 61_000, came, 1))
		entry, found, err := inspector.Lookup(t.Context(), asked)
		must(t, err)
		if !found || entry.Row.Digest != original || entry.Row.Status != dedup.ClaimInProgress || wire.KeyText(&entry.Claim.Key) != header(first, wire.HeaderKey) {
			t.Errorf("%s: found %v: %+v", name, found, entry.Row)
		}
	}
	other := derive(order("b", "c2", 61_000, 61_000, 1))
	if entry, found, err := inspector.Lookup(t.Context(), other); found || err != nil {
		t.Errorf("an order with other details: %+v, %v", entry.Row, err)
	}
	digest, err := inspector.Forget(t.Context(), derive(retry))
	must(t, err)
	if digest != original {
		t.Errorf("asked to forget %v, want %v", digest, original)
	}
	s.send(order("b", "c1", 61_000, 62_000, 2))
	assertHeaders(t, s.run("b"), map[string]string{wire.HeaderVerdict: "unique", wire.HeaderAttempt: "2"})
	if dead := s.read("oncebus.dead-letter"); len(dead) > 0 {
		t.Errorf("dead letters: %v", dead[0].Headers)
	}
}
