package demo

import (
	"bytes"
	"reflect"
	"slices"
	"testing"
	"time"

	"oncebus/dedup/rules"
)

var baseTime = time.UnixMilli(1761955200000)

func TestDemoTrafficFollowsItsSeed(t *testing.T) {
	generate := func(seed uint64) []sentRecord {
		traffic := newTraffic(seed, baseTime)
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

// TestDemoTrafficHasEveryKind: the generator makes every kind of record that the demo
// shows.
func TestDemoTrafficHasEveryKind(t *testing.T) {
	traffic := newTraffic(7, baseTime)
	live := traffic.live(5000)
	retries := traffic.retries(500)
	count := map[string]int{}
	first := map[int]sentRecord{}
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
			if r.Timestamp.Sub(f.Timestamp) < pauseTime/2 {
				t.Fatalf("duplicate %d is %v after the first", i, r.Timestamp.Sub(f.Timestamp))
			}
		case r.Partition == f.Partition && i > 0 && live[i-1].event == r.event:
			count["next in the batch"]++
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
	for _, kind := range []string{"bad signals", "bad webhooks", "without trace id", "after a pause", "next in the batch", "other partition",
		"other bytes signals", "other bytes webhooks", "forged headers"} {
		if count[kind] < 20 {
			t.Errorf("%d records of kind %q", count[kind], kind)
		}
	}
}

// TestDemoTrafficAgainstItsRoutes checks generator and routes against each
// other, without a broker: one key per event, none for bad records.
func TestDemoTrafficAgainstItsRoutes(t *testing.T) {
	routes, err := parseRoutes(false, "")
	if err != nil {
		t.Fatal(err)
	}
	deriver := routes.NewDeriver(nil)
	traffic := newTraffic(3, baseTime)
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
