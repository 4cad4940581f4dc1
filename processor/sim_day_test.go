//go:build synctests

package processor_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup/rules"
	"oncebus/processor"
	"oncebus/processor/kafkatest/embedded"
)

// daySeeds is the number of seeds from which on TestSimDayWithoutTraffic runs, because a day of virtual time takes a
// minute. Of the parts of make verify, the first one has so many.
const daySeeds = 11

// dayRoutes are a route whose event time is the broker's, and a route whose event time is a field. Rows are dropped
// at the latest two windows and a grace after their events.
const dayRoutes = `routes:
  - name: signals
    topics: [signals.raw]
    key: [{field: id}]
    window: 11h
    grace: 10m
    output: signals.unique
    dead_letter: dead
  - name: nightly
    topics: [nightly.raw]
    key: [{field: id}]
    window: 1h
    grace: 10m
    time: {field: at}
    output: nightly.unique
    dead_letter: dead
`

// TestSimDayWithoutTraffic protects that the key of a topic's last event is dropped a day later by the broker's
// clock, although no further event came, and that the event is then unique again. Until then the age of the key
// grows. Where event time is a field it stands still meanwhile, so that no event of a batch with the times of the day
// before is late.
func TestSimDayWithoutTraffic(t *testing.T) {
	if simNumber(t, "ONCEBUS_SIM_SEEDS", daySeeds) < daySeeds || simNumber(t, "ONCEBUS_SIM_FIRST", 1) > 1 || simNumber(t, "ONCEBUS_SIM_SEED", 0) > 0 {
		t.Skipf("a day of virtual time takes a minute: make sim SEEDS=%d runs it", daySeeds)
	}
	synctest.Test(t, func(t *testing.T) {
		b, own := newDayBench(t, dayRoutes)
		i := b.startDay(own)
		began := time.Now().UnixMilli()
		send := func(topic, id string, partition int32, at int64) {
			r := timedSignal(id, partition, at)
			r.Topic = topic
			b.produce(r)
			b.drain(i, "signals.raw", "nightly.raw")
		}
		keys := func() map[string]uint64 {
			all := map[string]uint64{}
			for _, k := range i.State().Keys {
				all[k.Namespace] += k.Total
			}
			return all
		}
		for n, id := range []string{"a", "b", "c"} {
			send("signals.raw", id, int32(n), began)
			send("nightly.raw", id, int32(n), began)
		}
		b.wait("3 keys of each", func() bool { // the state is published once a second
			all := keys()
			return all["signals"] == 3 && all["nightly"] == 3
		})
		time.Sleep(10 * time.Hour) //nolint:forbidigo // of virtual time
		for _, k := range i.State().Keys {
			age, ages := time.Duration(k.OldestMS)*time.Millisecond, k.Namespace == "signals"
			if k.Total > 0 && (ages && age < 10*time.Hour-time.Minute || !ages && age > time.Minute) {
				t.Errorf("the oldest key of %s is %v old after 10 hours without events", k.Namespace, age)
			}
		}
		time.Sleep(14 * time.Hour) //nolint:forbidigo // of virtual time
		if all := keys(); all["signals"] != 0 || all["nightly"] != 3 {
			t.Errorf("%v keys a day later, want those of nightly", all)
		}
		send("signals.raw", "a", 0, time.Now().UnixMilli())
		send("nightly.raw", "a", 0, began+1)
		send("nightly.raw", "d", 1, began+2)
		b.assertOutputs("signals.unique", map[string]string{"k-a": "unique unique", "k-b": "unique", "k-c": "unique"})
		b.assertOutputs("nightly.unique", map[string]string{"k-a": "unique", "k-b": "unique", "k-c": "unique", "k-d": "unique"})
		if late := b.read("dead"); len(late) > 0 {
			t.Errorf("%d dead letters", len(late))
		}
		_ = i.stop()
	})
}

// newDayBench starts a bench on a virtual network and a virtual clock.
func newDayBench(t *testing.T, routes string) (*bench, *simNet) {
	t.Helper()
	parsed, err := rules.ParseRoutes("routes.yaml", []byte(routes))
	if err != nil {
		t.Fatal(err)
	}
	vn := new(kfake.VirtualNetwork)
	own := newSimNet(vn.DialContext, time.Millisecond)
	t.Cleanup(own.open.Wait) // first to be registered, last to run: connections end by themselves
	b := &bench{
		t: t, says: true, logs: embedded.NewLog(t), routes: parsed, clientOpts: []kgo.Opt{kgo.Dialer(own.dial)},
		cluster: embedded.Start(t, kfake.NumBrokers(1), kfake.Ports(9001), kfake.ListenFn(vn.Listen)),
	}
	b.client = b.newClient(kgo.DisableClientMetrics())
	b.admin = kadm.NewClient(b.client)
	b.createTopic("signals.raw", 3)
	b.createTopic("nightly.raw", 3)
	return b, own
}

// startDay starts a process that omits everything that may be left undone for a minute, so that a day of virtual time
// takes seconds.
func (b *bench) startDay(own *simNet) *instance {
	b.t.Helper()
	cfg := b.config("one")
	cfg.StopTimeout, cfg.SessionTimeout, cfg.CommitInterval = noStopTimeout, time.Minute, time.Second
	return b.ready(b.startWith(cfg, func(p *processor.Processor) {
		p.SetManifestInterval(time.Hour)
		p.SetOwnersInterval(time.Hour)
		p.SetPurgeInterval(time.Hour)
	}, kgo.Dialer(own.dial), kgo.DisableClientMetrics()))
}
