package processor_test

import (
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor"
	"oncebus/processor/front"
	"oncebus/processor/wire"
)

// shippedOrders is a process that runs with the shipped orders.yaml, and the orders that a test sends to it.
type shippedOrders struct {
	*bench
	cfg processor.Config
	i   *instance
}

// edgeMS is the beginning of a minute. The times of orders are relative to it.
const edgeMS = testTime / 60_000 * 60_000

func newShippedOrders(t *testing.T, changes ...string) *shippedOrders {
	t.Helper()
	file, err := os.ReadFile("../deployments/routes/orders.yaml")
	must(t, err)
	b := newBench(t, strings.NewReplacer(changes...).Replace(string(file)))
	cfg := b.config("one")
	return &shippedOrders{b, cfg, b.ready(b.start(cfg))}
}

// order makes an order with the event time at in a record with the timestamp came, both in ms after edgeMS.
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

// run returns the latest dispatched event of a request, or nil if there is none.
func (s *shippedOrders) run(request string) (run *kgo.Record) {
	s.t.Helper()
	for _, r := range s.read("orders.unique") {
		if string(r.Key) == request {
			run = r
		}
	}
	return run
}

// TestInspectorFindsAndForgetsAdjacentBuckets protects that the operator's commands find and forget the same rows of
// adjacent buckets by which the service judges a duplicate.
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
	erased := s.forget(inspector, *derive(retry))
	if len(erased.Rows) != 1 || erased.Rows[0].Digest != original {
		t.Errorf("asked to forget %+v, want %v", erased, original)
	}
	s.send(order("b", "c1", 61_000, 62_000, 2))
	assertHeaders(t, s.run("b"), map[string]string{wire.HeaderVerdict: "unique", wire.HeaderAttempt: "2"})
	if dead := s.read("oncebus.dead-letter"); len(dead) > 0 {
		t.Errorf("dead letters: %v", dead[0].Headers)
	}
	s.promiseHeld(s.cfg)
}
