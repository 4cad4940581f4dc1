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

// briefRoutes have keys that are gone two seconds of stream time after their events.
func briefRoutes(time string) string {
	return strings.NewReplacer("window: 1h", "window: 1s", "    grace: 10m\n", "    grace: 0s\n"+time).Replace(benchRoutes)
}

// timedSignal returns an event with its time in the payload too.
func timedSignal(id string, partition int32, at int64) *kgo.Record {
	r := signal(id, partition, at)
	r.Value = fmt.Appendf(nil, `{"id":%q,"at":%d}`, id, at)
	return r
}

// awaitKeys waits until an instance has judged so many events, and counts so many keys, expired
// ones included.
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

// TestKeysGoWithoutTraffic: where event time is the record's, or the route says so, keys are gone
// though no event comes, whether they came from a topic or by HTTP. An event of after the rest is
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

// TestNightlyBatchIsNotLate: time of a payload field stands without events, so that a batch of
// yesterday's times is judged after any pause.
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

// TestKeysOfARemovedRouteGo: when no route has a namespace any more, its keys go after their retention in
// broker time, whether event time goes on without events or not. They are shown until then, and an
// export has none that decides nothing. The route comes back without them, and its live events are
// judged.
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
