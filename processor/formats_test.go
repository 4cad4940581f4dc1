package processor_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/avro"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sr"
	"github.com/twmb/franz-go/pkg/sr/srfake"

	"oncebus/dedup"
)

const (
	orderBefore = `{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}, {"name": "n", "type": "int"}]}`
	orderAfter  = `{"type": "record", "name": "Order", "fields": [{"name": "note", "type": ["null", "string"], "default": null}, {"name": "id", "type": "string"}, {"name": "n", "type": "long"}]}`
)

// formatRoutes returns a route with Avro and a route with JSON, routed or prepartitioned.
func formatRoutes(prepartitioned bool) string {
	return fmt.Sprintf(`routes:
  - {name: orders, topics: [orders.raw], format: avro, prepartitioned: %v, key: [{fields: [id, n]}], window: 1h, grace: 10m, output: orders.unique, dead_letter: dead}
  - {name: signals, topics: [signals.raw], prepartitioned: %v, key: [{field: id}], window: 1h, grace: 10m, output: signals.unique, dead_letter: dead}
`, prepartitioned, prepartitioned)
}

// schemaRegistry is a schema registry that a test can make unreachable.
type schemaRegistry struct {
	*srfake.Registry
	away  atomic.Bool
	asked atomic.Int32
}

func startRegistry(t *testing.T) *schemaRegistry {
	t.Helper()
	r := &schemaRegistry{Registry: srfake.New()}
	t.Cleanup(r.Close)
	r.Intercept(func(w http.ResponseWriter, _ *http.Request) bool {
		r.asked.Add(1)
		if !r.away.Load() {
			return false
		}
		http.Error(w, "away", http.StatusServiceUnavailable)
		return true
	})
	return r
}

// avroOrder returns an order in the encoding of a producer that registered this schema under this id.
func avroOrder(t *testing.T, schema string, id uint32, n int) *kgo.Record {
	t.Helper()
	value, err := avro.MustParse(schema).AppendEncode([]byte{0, 0, 0, 0, byte(id)}, map[string]any{"id": fmt.Sprintf("o-%d", n), "n": n, "note": nil})
	if err != nil {
		t.Fatal(err)
	}
	return &kgo.Record{Topic: "orders.raw", Key: fmt.Appendf(nil, "o-%d", n), Value: value, Timestamp: time.UnixMilli(testTime)}
}

// TestRegistryIsAway makes the registry unreachable. The partitions whose records name schemas that the process has
// not read wait, and all others go on. Nothing is lost, emitted twice or dead-lettered. Copies with an evolved schema
// are duplicates, and the emitted bytes are unchanged.
func TestRegistryIsAway(t *testing.T) {
	for _, prepartitioned := range []bool{false, true} {
		t.Run(fmt.Sprintf("prepartitioned=%v", prepartitioned), func(t *testing.T) {
			registry := startRegistry(t)
			registry.SeedSchema("orders.raw-value", 1, 1, sr.Schema{Schema: orderBefore})
			b := newBench(t, formatRoutes(prepartitioned))
			for _, topic := range []string{"orders.raw", "signals.raw"} {
				b.createTopic(topic, 1)
			}
			cfg := b.config("a")
			cfg.Schema.URLs, cfg.Schema.Timeout, cfg.Schema.UnknownAfter = []string{registry.URL()}, 5*time.Second, time.Hour
			i := b.ready(b.start(cfg))
			unread := func() float64 { return gather(t, i)["oncebus_schema_waits"] }

			b.produce(avroOrder(t, orderBefore, 1, 1), avroOrder(t, orderBefore, 1, 2), avroOrder(t, orderBefore, 1, 1))
			b.wait("the first orders", func() bool {
				drained := b.drained(i, "orders.raw")
				n := len(b.read("orders.unique"))
				if drained && n < 2 {
					t.Fatalf("%d orders are in the output, and all were read", n)
				}
				return n == 2
			})
			registry.away.Store(true)
			b.produce(avroOrder(t, orderBefore, 1, 3), avroOrder(t, orderAfter, 2, 3), avroOrder(t, orderAfter, 2, 4), avroOrder(t, orderBefore, 1, 4), avroOrder(t, orderAfter, 2, 1))
			b.wait("a partition that waits", func() bool {
				if slices.Contains(b.keysOf("orders.unique"), "o-4") {
					t.Fatal("an order was judged that is behind one whose schema was not read")
				}
				return unread() == 1
			})
			if waits := i.State().SchemaWaits; len(waits) != 1 || waits[0].Partition != "orders.raw/0" || !strings.Contains(waits[0].Reason, "until schema 2 was read") {
				t.Errorf("the state has %v", waits)
			}
			b.ready(i) // the process stays ready, because replacing it would not bring back the registry
			b.produce(signal("s", 0, testTime))
			b.wait("the other route", func() bool { return len(b.read("signals.unique")) == 1 })
			asked := registry.asked.Load()
			b.wait("more questions", func() bool { return registry.asked.Load() > asked+1 })

			registry.away.Store(false) // it does not have the schema yet, as a replica that lags behind
			asked = registry.asked.Load()
			b.wait("a question that is answered with 404", func() bool { return registry.asked.Load() > asked+1 })
			if unread() != 1 {
				t.Error("the partition does not wait for a schema that the registry does not have yet")
			}
			registry.SeedSchema("orders.raw-value", 2, 2, sr.Schema{Schema: orderAfter})
			b.wait("all orders", func() bool { return len(b.read("orders.unique")) >= 4 && b.drained(i, "orders.raw", "signals.raw") })
			if got, want := b.keysOf("orders.unique"), []string{"o-1", "o-2", "o-3", "o-4"}; !slices.Equal(got, want) {
				t.Errorf("the output has %v, want %v", got, want)
			}
			for _, r := range b.read("orders.unique") {
				schema := map[string]byte{"o-1": 1, "o-2": 1, "o-3": 1, "o-4": 2}[string(r.Key)] // of the first of its key
				if r.Value[4] != schema || len(r.Headers) > 0 {
					t.Errorf("%s came out as %q with %v", r.Key, r.Value, r.Headers)
				}
			}
			if got := b.read("dead"); len(got) > 0 {
				t.Errorf("%d dead letters, the first with %v", len(got), got[0].Headers)
			}
			if unread() != 0 {
				t.Error("the partition is still counted as waiting")
			}
		})
	}
}

// TestOtherPartitionsOfAPollGoOn protects that, of all partitions of a poll, only the partition waits whose record
// has an unread schema.
func TestOtherPartitionsOfAPollGoOn(t *testing.T) {
	const partitions = 12
	for _, prepartitioned := range []bool{false, true} {
		t.Run(fmt.Sprintf("prepartitioned=%v", prepartitioned), func(t *testing.T) {
			registry := startRegistry(t)
			registry.away.Store(true)
			b := newBench(t, formatRoutes(prepartitioned))
			b.createTopic("orders.raw", 1)
			b.createTopic("signals.raw", partitions)
			b.produce(avroOrder(t, orderBefore, 1, 1))
			for n := range int32(partitions) {
				r := signal(fmt.Sprintf("s-%d", n), 0, testTime)
				r.Partition = n
				b.produce(r)
			}
			cfg := b.config("a")
			cfg.Schema.URLs, cfg.Schema.Timeout = []string{registry.URL()}, 5*time.Second
			i := b.ready(b.start(cfg))
			b.wait("all signals", func() bool {
				if waits := gather(t, i)["oncebus_schema_waits"]; waits > 1 {
					t.Fatalf("%v partitions wait, want only that of the order", waits)
				}
				return len(b.read("signals.unique")) == partitions
			})
			b.wait("a partition that waits", func() bool { return gather(t, i)["oncebus_schema_waits"] == 1 })
			registry.SeedSchema("orders.raw-value", 1, 1, sr.Schema{Schema: orderBefore})
			registry.away.Store(false)
			b.wait("the order", func() bool { return len(b.read("orders.unique")) == 1 && b.drained(i, "orders.raw", "signals.raw") })
		})
	}
}

// TestShadowOfAnotherFormat protects that a shadow derives its key from the decoded record, too.
func TestShadowOfAnotherFormat(t *testing.T) {
	registry := startRegistry(t)
	registry.SeedSchema("orders.raw-value", 1, 1, sr.Schema{Schema: orderBefore})
	registry.SeedSchema("orders.raw-value", 2, 2, sr.Schema{Schema: orderAfter})
	b := newBench(t, strings.Replace(formatRoutes(false), "key: [{fields: [id, n]}]", "key: [{fields: [id, n]}], shadow: {name: by-n, sample: 100%, key: [{field: n}]}", 1))
	b.createTopic("orders.raw", 1)
	b.createTopic("signals.raw", 1)
	cfg := b.config("a")
	cfg.Schema.URLs, cfg.Schema.Timeout = []string{registry.URL()}, 5*time.Second
	i := b.ready(b.start(cfg))
	b.produce(avroOrder(t, orderBefore, 1, 1), avroOrder(t, orderAfter, 2, 1), avroOrder(t, orderAfter, 2, 2))
	b.wait("both orders", func() bool { return len(b.read("orders.unique")) == 2 && b.drained(i, "orders.raw") })
	b.wait("all events in the shadow", func() bool {
		states := b.shadows()
		return len(states) == 1 && looked(&states[0]) == 3
	})
	if state := b.shadows()[0]; state.Events[dedup.ShadowNoKey.String()] > 0 {
		t.Errorf("events without a new key: %v", state.Events)
	}
}

// TestUnknownSchemaBecomesADeadLetter protects that a record whose schema the registry does not have delays its
// partition for a limited time only.
func TestUnknownSchemaBecomesADeadLetter(t *testing.T) {
	registry := startRegistry(t)
	registry.SeedSchema("orders.raw-value", 1, 1, sr.Schema{Schema: orderBefore})
	b := newBench(t, formatRoutes(false))
	b.createTopic("orders.raw", 1)
	b.createTopic("signals.raw", 1)
	cfg := b.config("a")
	cfg.Schema.URLs, cfg.Schema.Timeout, cfg.Schema.UnknownAfter = []string{registry.URL()}, 5*time.Second, 50*time.Millisecond
	i := b.ready(b.start(cfg))
	damaged := avroOrder(t, orderBefore, 1, 8)
	damaged.Value = damaged.Value[:len(damaged.Value)-1]
	b.produce(avroOrder(t, orderBefore, 1, 1), avroOrder(t, orderBefore, 77, 2), avroOrder(t, orderBefore, 1, 3), damaged, avroOrder(t, orderBefore, 1, 1))
	b.wait("both orders", func() bool { return len(b.read("orders.unique")) >= 2 && b.drained(i, "orders.raw") })
	var reasons []string
	for _, r := range b.read("dead") {
		reasons = append(reasons, header(r, "oncebus-reason"))
	}
	want := []string{"payload: not valid avro: the registry has no schema 77, for 50ms", "payload: not valid avro: the value is cut short or damaged"}
	if slices.Sort(reasons); !slices.Equal(reasons, want) {
		t.Errorf("the dead letters have the reasons %q, want %q", reasons, want)
	}
	if got, want := b.keysOf("orders.unique"), []string{"o-1", "o-3"}; !slices.Equal(got, want) {
		t.Errorf("the output has %v, want %v", got, want)
	}
}

// TestStopWhileAPartitionWaits protects that a process stops although the registry is unreachable, and that the next
// process goes on at the record that waits.
func TestStopWhileAPartitionWaits(t *testing.T) {
	registry := startRegistry(t)
	registry.SeedSchema("orders.raw-value", 1, 1, sr.Schema{Schema: orderBefore})
	registry.away.Store(true)
	b := newBench(t, formatRoutes(false))
	b.createTopic("orders.raw", 1)
	b.createTopic("signals.raw", 1)
	cfg := b.config("a")
	cfg.Schema.URLs, cfg.Schema.Timeout = []string{registry.URL()}, 5*time.Second
	i := b.ready(b.start(cfg))
	b.produce(avroOrder(t, orderBefore, 1, 1), avroOrder(t, orderBefore, 1, 1))
	b.wait("a partition that waits", func() bool { return gather(t, i)["oncebus_schema_waits"] == 1 })
	if err := i.stop(); err != nil {
		t.Fatal(err)
	}
	registry.away.Store(false)
	i = b.ready(b.start(cfg))
	b.wait("the order", func() bool { return len(b.read("orders.unique")) >= 1 && b.drained(i, "orders.raw") })
	if got := b.keysOf("orders.unique"); !slices.Equal(got, []string{"o-1"}) {
		t.Errorf("the output has %v", got)
	}
}
