package processor_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor"
	"oncebus/processor/app"
)

const keyedRoutes = `routes:
  - name: signals
    topics: [signals.raw]
    prepartitioned: true
    key:
      - field: id
    window: 1h
    output: signals.unique
    dead_letter: dead
`

// partitionOf returns the partition of an id, as a producer chooses it that partitions by the id.
func partitionOf(id string, partitions int32) int32 {
	sum := int32(0)
	for _, c := range []byte(id) {
		sum = (sum*31 + int32(c)) & 0x7fff_ffff
	}
	return sum % partitions
}

// sentDuplicates makes one to three records of each of n ids in a seeded order, on the partitions that place chooses.
// It also returns the last record of each id.
func sentDuplicates(seed uint64, n int, place func(rng *rand.Rand, id string) int32) ([]*kgo.Record, map[string]*kgo.Record) {
	rng := rand.New(rand.NewPCG(seed, 0))
	sent := map[string]*kgo.Record{}
	var records []*kgo.Record
	for at := range n {
		id := fmt.Sprint("id-", at)
		for range 1 + rng.IntN(3) {
			sent[id] = signal(id, place(rng, id), testTime+int64(at))
			records = append(records, sent[id])
		}
	}
	return records, sent
}

func byID(_ *rand.Rand, id string) int32      { return partitionOf(id, 4) }
func anywhere(rng *rand.Rand, _ string) int32 { return rng.Int32N(4) }
func renamed(topic string, rs []*kgo.Record) []*kgo.Record {
	for _, r := range rs {
		r.Topic = topic
	}
	return rs
}

// TestPrepartitionedRouteNeedsNoRepartitionTopic protects that each partition of a prepartitioned topic is a task of
// its own with a changelog, and that the routing stage creates nothing.
func TestPrepartitionedRouteNeedsNoRepartitionTopic(t *testing.T) {
	t.Parallel()
	b := newBench(t, keyedRoutes)
	i := b.ready(b.start(b.config("one")))
	records, sent := sentDuplicates(3, 300, byID)
	b.produce(records...)
	b.drain(i)
	assertOnce(t, b.read("signals.unique"), sent)
	topics, err := b.admin.ListTopics(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if topics.Has("app-repartition") || topics.Has("app-repartition-changelog") {
		t.Errorf("a prepartitioned route has no repartition topic, but there are %v", topics.Names())
	}
	if !topics.Has("app-signals.raw-changelog") {
		t.Errorf("no changelog of signals.raw among %v", topics.Names())
	}
	var tasks []string
	for _, task := range i.State().Tasks {
		tasks = append(tasks, task.Task)
	}
	if want := []string{"signals.raw/0", "signals.raw/1", "signals.raw/2", "signals.raw/3"}; !slices.Equal(tasks, want) {
		t.Errorf("tasks %v, want %v", tasks, want)
	}
	if group, err := b.admin.DescribeGroups(t.Context(), app.GroupName("app", processor.StageRoute)); err == nil && len(group["app-route"].Members) > 0 {
		t.Errorf("a router runs without a routed topic: %v", group)
	}
}

// TestPrepartitionedAndRoutedRouteInOneProcess runs both ways of a record at once with the same ids: the routes are
// two namespaces, and their keys never meet.
func TestPrepartitionedAndRoutedRouteInOneProcess(t *testing.T) {
	t.Parallel()
	b := newBench(t, strings.Replace(benchRoutes, "routes:\n", strings.ReplaceAll(keyedRoutes, "signals", "orders"), 1))
	cfg := b.config("one")
	cfg.Workers = 2
	i := b.ready(b.start(cfg))
	routed, sentRouted := sentDuplicates(4, 200, anywhere)
	keyed, sentKeyed := sentDuplicates(5, 200, byID)
	b.produce(append(routed, renamed("orders.raw", keyed)...)...)
	b.drain(i, "signals.raw")
	assertOnce(t, b.read("signals.unique"), sentRouted)
	assertOnce(t, b.read("orders.unique"), sentKeyed)
}

// TestPrepartitionedOrderIsKept protects that the records of a key are emitted in the order of their partition.
func TestPrepartitionedOrderIsKept(t *testing.T) {
	t.Parallel()
	b := newBench(t, keyedRoutes)
	i := b.ready(b.start(b.config("one")))
	var records []*kgo.Record
	for n := range 200 {
		r := signal(fmt.Sprint("id-", n), int32(n%4), testTime)
		r.Key = []byte{byte('a' + n%4)} // all records of a partition are one key's
		records = append(records, r)
	}
	b.produce(records...)
	b.drain(i)
	last := map[string]int{}
	for _, r := range b.read("signals.unique") {
		var n int
		if _, err := fmt.Sscanf(string(r.Value), `{"id":"id-%d"`, &n); err != nil {
			t.Fatal(err)
		}
		if before, ok := last[string(r.Key)]; ok && before >= n {
			t.Fatalf("key %s: record %d after %d", r.Key, n, before)
		}
		last[string(r.Key)] = n
	}
	if len(last) != 4 {
		t.Fatalf("keys %v, want four", last)
	}
}
