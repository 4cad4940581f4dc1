package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/cmd/oncebus/cli"
	"oncebus/dedup/rules"
	"oncebus/processor/kafkatest"
)

var demoBase = time.UnixMilli(1761955200000)

func TestDemoTrafficFollowsItsSeed(t *testing.T) {
	generate := func(seed uint64) []demoRecord {
		traffic := newDemoTraffic(seed, demoBase)
		return slices.Concat(traffic.live(3000), traffic.retries(500))
	}
	one, again, other := generate(1), generate(1), generate(2)
	if len(one) != 3500 || !reflect.DeepEqual(one, again) {
		t.Error("the same seed gives other records")
	}
	if reflect.DeepEqual(one, other) {
		t.Error("another seed gives the same records")
	}
}

// TestDemoTrafficHasEveryKind holds the generator to what the demo claims to show.
func TestDemoTrafficHasEveryKind(t *testing.T) {
	traffic := newDemoTraffic(7, demoBase)
	live := traffic.live(5000)
	retries := traffic.retries(500)
	count := map[string]int{}
	first := map[int]demoRecord{}
	for i, r := range slices.Concat(live, retries) {
		if r.event == badEvent {
			count["bad "+r.route]++
			continue
		}
		f, seen := first[r.event]
		switch {
		case !seen:
			first[r.event] = r
			if r.route == "signals" && !bytes.Contains(r.Value, []byte(`"traceId"`)) {
				count["without trace id"]++
			}
			continue
		case i >= len(live):
			count["after a pause"]++
			if r.Timestamp.Sub(f.Timestamp) < demoPause/2 {
				t.Fatalf("copy %d comes %v after the first", i, r.Timestamp.Sub(f.Timestamp))
			}
		case r.Partition == f.Partition && i > 0 && live[i-1].event == r.event:
			count["twin"]++
		case r.Partition != f.Partition:
			count["other partition"]++
		}
		if !bytes.Equal(r.Value, f.Value) {
			count["other bytes "+r.route]++
		}
	}
	for _, r := range live {
		if len(r.Headers) > 1 {
			count["forged headers"]++
		}
	}
	for _, kind := range []string{"bad signals", "bad webhooks", "without trace id", "after a pause", "twin", "other partition",
		"other bytes signals", "other bytes webhooks", "forged headers"} {
		if count[kind] < 20 {
			t.Errorf("%d records of kind %q", count[kind], kind)
		}
	}
}

// TestDemoTrafficAgainstItsRoutes checks generator and routes against each
// other, without a broker: one key per event, none for bad records.
func TestDemoTrafficAgainstItsRoutes(t *testing.T) {
	routes, err := demoRoutesOf(false, "")
	if err != nil {
		t.Fatal(err)
	}
	deriver := routes.NewDeriver(nil)
	traffic := newDemoTraffic(3, demoBase)
	keys, events := map[int][32]byte{}, map[[32]byte]int{}
	for _, r := range slices.Concat(traffic.live(20_000), traffic.retries(3000)) {
		d := deriver.Derive(&rules.Input{Topic: r.Topic, Key: r.Key, Value: r.Value, Timestamp: r.Timestamp.UnixMilli()})
		if (d.Finding == rules.Keyed) == (r.event == badEvent) {
			t.Fatalf("event %d, %s: %v %s", r.event, r.Value, d.Finding, d.Reason)
		}
		if r.event == badEvent {
			continue
		}
		if d.Route.Name != r.route {
			t.Fatalf("route %s took a record of %s", d.Route.Name, r.route)
		}
		if key, ok := keys[r.event]; ok && key != d.Key {
			t.Fatalf("event %d has two keys", r.event)
		}
		if event, ok := events[d.Key]; ok && event != r.event {
			t.Fatalf("events %d and %d share a key", event, r.event)
		}
		keys[r.event], events[d.Key] = d.Key, r.event
	}
}

// TestDemoRoutesAreThoseDeployed keeps what the demo shows and what is shipped
// the same, but for what demo_routes.yaml and demo_http_routes.yaml say.
func TestDemoRoutesAreThoseDeployed(t *testing.T) {
	compared := 0
	for _, http := range []bool{false, true} {
		demo, err := demoRoutesOf(http, "")
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range demo.Routes {
			if r.Name == "deliveries" { // the demo's own
				continue
			}
			compared++
			shipped, err := readRoutes(filepath.Join("..", "..", "deployments", "routes", r.Name+".yaml"))
			if err != nil {
				t.Fatal(err)
			}
			at := slices.IndexFunc(shipped.Routes, func(s *rules.Route) bool { return s.Name == r.Name })
			if at < 0 {
				t.Fatalf("%s.yaml has no route of this name", r.Name)
			}
			want := shipped.Routes[at]
			if !http && r.HTTP != nil {
				t.Errorf("route %s has an http part where nothing comes in by HTTP", r.Name)
			}
			if http {
				r.HTTP, want.HTTP = unsigned(r.HTTP), unsigned(want.HTTP)
				if !reflect.DeepEqual(r.HTTP, want.HTTP) {
					t.Errorf("by HTTP the demo has %+v\nshipped is           %+v", r.HTTP, want.HTTP)
				}
			}
			r.HTTP, want.HTTP = nil, nil
			if got, want := describe(r), describe(want); !slices.Equal(got, want) {
				t.Errorf("the demo has %v\nshipped is   %v", got, want)
			}
			if r.KeyRule() != want.KeyRule() {
				t.Errorf("the demo has %v\nshipped is   %v", r.KeyRule(), want.KeyRule())
			}
		}
	}
	if compared != 2+3 {
		t.Errorf("%d routes were compared", compared)
	}
}

// unsigned is h without what the demo changes: signatures, and the header of
// its numbers.
func unsigned(h *rules.HTTP) *rules.HTTP {
	u := *h
	u.Signature, u.Headers = rules.Signature{}, nil
	if u.Outcomes != nil {
		u.Outcomes = &rules.Signature{}
	}
	return &u
}

// ledgerFixture is a ledger with an event of three copies (partitions 0, 1, 0),
// another one, a bad record, and a copy after the pause. In records they are
// 0, 1, 2; 3; 4; 5, as oncebus would emit them.
func ledgerFixture() (*demoLedger, []*kgo.Record) {
	var sent [2][]demoRecord
	add := func(part, event int, partition int32) {
		sent[part] = append(sent[part], demoRecord{event: event, route: "signals", Record: &kgo.Record{
			Topic: signalsRaw, Partition: partition, Key: []byte("k"), Value: fmt.Appendf(nil, "%d", event), Timestamp: demoBase,
			Headers: []kgo.RecordHeader{{Key: "oncebus-verdict", Value: []byte("forged")}},
		}})
	}
	add(0, 0, 0)
	add(0, 0, 1)
	add(0, 0, 0)
	add(0, 1, 2)
	add(0, badEvent, 3)
	add(1, 0, 4)
	l := &demoLedger{}
	l.add(sent[0])
	l.add(sent[1])
	var emitted []*kgo.Record
	for _, s := range slices.Concat(sent[0], sent[1]) {
		r := *s.Record
		r.Headers = []kgo.RecordHeader{s.Headers[1], {Key: "oncebus-route", Value: []byte("signals")}}
		if s.event == badEvent {
			r.Headers = append(r.Headers, kgo.RecordHeader{Key: "oncebus-reason", Value: []byte("why")})
		} else {
			r.Headers = append(r.Headers, kgo.RecordHeader{Key: "oncebus-verdict", Value: []byte("unique")})
		}
		emitted = append(emitted, &r)
	}
	return l, emitted
}

func TestDemoLedgerConvicts(t *testing.T) {
	tests := []struct {
		name    string
		outputs []int // of the fixture's records
		dead    []int
		change  func(records []*kgo.Record)
		want    [3]int // missing, extra, altered
	}{
		{"all well", []int{0, 3}, []int{4}, nil, [3]int{}},
		{"the first of another partition", []int{1, 3}, []int{4}, nil, [3]int{}},
		{"a lost event", []int{0}, []int{4}, nil, [3]int{1, 0, 0}},
		{"a lost bad record", []int{0, 3}, nil, nil, [3]int{1, 0, 0}},
		{"the same record twice", []int{0, 3, 3}, []int{4}, nil, [3]int{0, 1, 0}},
		{"two copies", []int{0, 1, 3}, []int{4}, nil, [3]int{0, 1, 0}},
		{"a bad record twice", []int{0, 3}, []int{4, 4}, nil, [3]int{0, 1, 0}},
		{"a bad record in the output", []int{0, 3, 4}, []int{4}, nil, [3]int{0, 1, 0}},
		{"an event in the dead-letter topic", []int{0}, []int{3, 4}, nil, [3]int{1, 1, 0}},
		{"not the first of its partition", []int{2, 3}, []int{4}, nil, [3]int{0, 0, 1}},
		{"the copy after the pause", []int{5, 3}, []int{4}, nil, [3]int{0, 0, 1}},
		{"another value", []int{0, 3}, []int{4}, func(r []*kgo.Record) { r[3].Value = []byte("x") }, [3]int{0, 0, 1}},
		{"no record key", []int{0, 3}, []int{4}, func(r []*kgo.Record) { r[3].Key = nil }, [3]int{0, 0, 1}},
		{"another time", []int{0, 3}, []int{4}, func(r []*kgo.Record) { r[3].Timestamp = demoBase.Add(time.Millisecond) }, [3]int{0, 0, 1}},
		{"a header more", []int{0, 3}, []int{4}, func(r []*kgo.Record) { r[3].Headers = append(r[3].Headers, kgo.RecordHeader{Key: "x"}) }, [3]int{0, 0, 1}},
		{"a forged verdict left", []int{0, 3}, []int{4}, func(r []*kgo.Record) {
			r[3].Headers = append(r[3].Headers, kgo.RecordHeader{Key: "oncebus-verdict", Value: []byte("unique")})
		}, [3]int{0, 0, 1}},
		{"no reason", []int{0, 3}, []int{4}, func(r []*kgo.Record) { r[4].Headers = r[4].Headers[:1] }, [3]int{0, 0, 1}},
		{"a stranger", []int{0, 3, 1}, []int{4}, func(r []*kgo.Record) { r[1].Headers = nil }, [3]int{0, 1, 0}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l, records := ledgerFixture()
			if l.unique() != 2 || l.bad != 1 || l.duplicates() != 3 {
				t.Fatalf("the fixture has %d events, %d bad records and %d copies", l.unique(), l.bad, l.duplicates())
			}
			if tt.change != nil {
				tt.change(records)
			}
			for _, i := range tt.outputs {
				l.output("signals", records[i])
			}
			for _, i := range tt.dead {
				l.deadLetter(records[i])
			}
			l.close()
			if got := [3]int{l.missing, l.extra, l.altered}; got != tt.want {
				t.Errorf("missing, extra, altered: %v, want %v; %q", got, tt.want, l.faults)
			}
			if (len(l.faults) > 0) != (tt.want != [3]int{}) {
				t.Errorf("faults: %q", l.faults)
			}
		})
	}
}

func TestDemoProgressLine(t *testing.T) {
	registry := prometheus.NewRegistry()
	events := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "oncebus_events_total", Help: "Events."}, []string{"route", "verdict"})
	registry.MustRegister(events)
	events.WithLabelValues("signals", "unique").Add(5)
	events.WithLabelValues("webhooks", "unique").Add(2)
	events.WithLabelValues("webhooks", "duplicate").Add(4)
	events.WithLabelValues("webhooks", "invalid").Add(1)
	events.WithLabelValues("signals", "missing_key").Add(2)
	const want = " s  produced 20 of 30  judged 14: 7 unique, 4 copies, 3 bad\n"
	for _, terminal := range []bool{false, true} {
		var out bytes.Buffer
		p := newProgress(&out, registry, 30)
		p.terminal = terminal
		p.produced.Store(20)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		p.show(ctx)
		if got := out.String(); !strings.HasSuffix(got, want) || strings.HasPrefix(got, "\r\x1b[K") != terminal {
			t.Errorf("terminal %v: %q", terminal, got)
		}
	}
}

func TestDemoEndToEnd(t *testing.T) {
	var counts [2]demoResult
	for i := range counts {
		got := execute(t.Context(), []string{"ONCEBUS_BROKERS=nobody.invalid:1"}, "", "demo", "--seed", "42", "--events", "4000")
		lines := strings.Split(strings.TrimSuffix(got.stdout, "\n"), "\n")
		if err := json.Unmarshal([]byte(lines[len(lines)-1]), &counts[i]); err != nil || got.code != cli.ExitStopped {
			t.Fatalf("exit code %d, %v\n%s%s", got.code, err, got.stdout, got.stderr)
		}
		for _, want := range []string{"seed 42", " s  produced ", "records produced"} {
			if !strings.Contains(got.stderr, want) {
				t.Errorf("%q is not shown:\n%s", want, got.stderr)
			}
		}
		counts[i].Seconds = 0
	}
	r := counts[0]
	if counts[0] != counts[1] {
		t.Errorf("the same seed gives %+v and %+v", counts[0], counts[1])
	}
	if r.Events != 4000 || r.Unique+r.Duplicates+r.Invalid != 4000 || r.Missing != 0 || r.Extra != 0 || r.Altered != 0 || r.Unique < 1000 || r.Duplicates < 1000 || r.Invalid < 50 {
		t.Errorf("%+v", r)
	}
}

// TestDemoOnAGivenBroker runs the demo as on a real Kafka: under a prefix of its
// own, and leaving nothing behind.
func TestDemoOnAGivenBroker(t *testing.T) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "signals.raw", "somebody.elses"))
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()
	var created atomic.Int64
	cluster.ControlKey(int16(kmsg.CreateTopics), func(r kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		for _, topic := range r.(*kmsg.CreateTopicsRequest).Topics {
			if created.Add(1); !strings.HasPrefix(topic.Topic, "oncebus-demo-") {
				t.Errorf("topic %s was created", topic.Topic)
			}
		}
		return nil, nil, false
	})
	got := execute(t.Context(), nil, "", "demo", "--events", "1000", "--brokers", strings.Join(cluster.ListenAddrs(), ","))
	if got.code != cli.ExitStopped || !strings.HasPrefix(got.stdout, `{"events":1000,`) {
		t.Fatalf("%+v", got)
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	topics, err := admin.ListTopics(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if left := topics.Names(); !slices.Equal(left, []string{"signals.raw", "somebody.elses"}) || created.Load() < 5 {
		t.Errorf("%d topics were created, left are %q", created.Load(), left)
	}
	groups, err := admin.ListGroups(t.Context())
	if err != nil || len(groups) > 0 {
		t.Errorf("groups left: %v, %v", groups.Groups(), err)
	}
}

// TestRealDemo is the same on Apache Kafka.
func TestRealDemo(t *testing.T) {
	broker := kafkatest.Shared(t)
	got := execute(t.Context(), nil, "", "demo", "--seed", "7", "--brokers", strings.Join(broker.Seeds(), ","))
	if got.code != cli.ExitStopped || !strings.Contains(got.stdout, `"missing":0,"extra":0,"altered":0,"seed":7,`) {
		t.Fatalf("%+v", got)
	}
	t.Log(got.stdout)
	client, err := kgo.NewClient(kgo.SeedBrokers(broker.Seeds()...))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	topics, err := admin.ListTopics(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	groups, err := admin.ListGroups(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Concat(topics.Names(), groups.Groups()) {
		if strings.HasPrefix(name, "oncebus-demo-") {
			t.Errorf("%s is left", name)
		}
	}
}

func TestDemoWithoutABroker(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	got := execute(ctx, nil, "", "demo", "--brokers", "127.0.0.1:1")
	if got.code != cli.ExitFailed || got.stdout != "" || !strings.Contains(got.stderr, "oncebus demo: create the input topics on 127.0.0.1:1") {
		t.Errorf("%+v", got)
	}
}
