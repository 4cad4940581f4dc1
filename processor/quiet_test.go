package processor_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
)

const (
	timeOfRecord = ""
	timeOfField  = "    time: {field: at}\n"
	timeGoesOn   = "    time: {field: at, goes_on: true}\n"
)

// briefRoutes returns routes whose keys are dropped two seconds of stream time after their events.
func briefRoutes(time string) string {
	return strings.NewReplacer("window: 1h", "window: 1s", "    grace: 10m\n", "    grace: 0s\n"+time).Replace(benchRoutes)
}

// timedSignal returns an event that has its time in the payload, too.
func timedSignal(id string, partition int32, at int64) *kgo.Record {
	r := signal(id, partition, at)
	r.Value = fmt.Appendf(nil, `{"id":%q,"at":%d}`, id, at)
	return r
}

// awaitKeys waits until an instance has judged this number of events and counts this number of keys, expired ones
// included.
func (b *bench) awaitKeys(i *instance, judged, want uint64) {
	b.t.Helper()
	b.wait(fmt.Sprintf("%d keys after %d events", want, judged), func() bool {
		var events, keys uint64
		for _, k := range i.State().Keys {
			events, keys = events+k.Judged, keys+k.Total
		}
		return events == judged && keys == want
	})
}

// TestKeysGoWithoutTraffic protects that keys are dropped without further events where event time is the record's
// time, or the route says so, whether the keys came from a topic or by HTTP. An event after the pause is still
// judged. The times are minutes apart, because time goes on for as long as the machine is busy.
func TestKeysGoWithoutTraffic(t *testing.T) {
	t.Parallel()
	for name, event := range map[string]string{"of the record": timeOfRecord, "of a field that goes on": timeGoesOn} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, briefRoutes(event))
			b.openHTTP()
			b.createTopic("signals.raw", 3)
			i, f := b.ready(b.startWith(b.config("one"), often)), b.ingress("door")
			if a := f.submit(submission("signals.raw", fmt.Sprintf(`{"id":"h","at":%d}`, testTime), testTime)); a.Verdict != dedup.Unique {
				t.Errorf("the request is %v", a.Verdict)
			}
			b.awaitKeys(i, 1, 0)
			b.produce(timedSignal("a", 0, testTime+10*minute))
			b.drain(i, "signals.raw")
			b.produce(timedSignal("b", 1, testTime+20*minute), timedSignal("c", 1, testTime+30*minute))
			b.drain(i, "signals.raw")
			b.awaitKeys(i, 4, 0)
			b.produce(timedSignal("a", 0, testTime+120*minute))
			b.drain(i, "signals.raw")
			if out := b.outputs("signals.unique"); out["k-a"] != "unique unique" || len(out) != 4 {
				t.Errorf("came out: %v", out)
			}
		})
	}
}

// TestNightlyBatchIsNotLate protects that the time of a payload field stands still without events, so that a batch
// with yesterday's times is judged after any pause.
func TestNightlyBatchIsNotLate(t *testing.T) {
	t.Parallel()
	b := newBench(t, briefRoutes(timeOfField))
	b.createTopic("signals.raw", 3)
	i := b.ready(b.startWith(b.config("one"), often))
	send := func(id string, at int64) {
		b.produce(timedSignal(id, 0, at))
		b.drain(i, "signals.raw")
	}
	send("a", testTime)
	began := time.Now()
	b.wait("more than window and grace", func() bool { return time.Since(began) > 3*time.Second })
	send("b", testTime+10)
	send("a", testTime+20)
	if out := b.outputs("signals.unique"); out["k-a"] != "unique" || out["k-b"] != "unique" || len(b.read("dead")) > 0 {
		t.Errorf("came out: %v; dead letters: %d", out, len(b.read("dead")))
	}
	b.awaitKeys(i, 3, 2)
}

// TestKeysOfARemovedRouteGo protects that the keys of a namespace without a route are dropped after their retention
// in broker time, whether or not event time goes on without events. Until then the metrics show them, and an export
// leaves out those that no longer decide anything. When the route comes back, it comes without them, and its live
// events are judged.
func TestKeysOfARemovedRouteGo(t *testing.T) {
	t.Parallel()
	for name, event := range map[string]string{"of the record": timeOfRecord, "of a field that stands": timeOfField} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			brief := briefRoutes(event)
			both := brief + strings.NewReplacer("signals", "alerts", "routes:\n", "").Replace(brief)
			b := newBench(t, both)
			b.createTopic("signals.raw", 1)
			b.createTopic("alerts.raw", 1)
			i := b.ready(b.startWith(b.config("one"), often))
			b.produce(renamed("alerts.raw", []*kgo.Record{timedSignal("a", 0, testTime)})...)
			b.drain(i, "alerts.raw")
			b.apply(brief)
			b.taken(2, i)
			b.awaitKeys(i, 1, 0)
			if _, e := b.export(b.transfers(b.config("operator"))); e.Namespaces["alerts"] != 0 {
				t.Errorf("exported: %v", e.Namespaces)
			}
			b.apply(both)
			b.taken(3, i)
			again := timedSignal("a", 0, time.Now().UnixMilli())
			b.produce(renamed("alerts.raw", []*kgo.Record{again, again})...)
			b.drain(i, "alerts.raw")
			if out := b.outputs("alerts.unique"); out["k-a"] != "unique unique" || len(b.read("dead")) > 0 {
				t.Errorf("came out: %v; dead letters: %d", out, len(b.read("dead")))
			}
		})
	}
}
