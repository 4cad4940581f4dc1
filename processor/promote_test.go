package processor_test

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/front"
	"oncebus/processor/move"
	"oncebus/processor/wire"
)

// The routes of a promotion: with the old key, with the old key and a shadow, and with the new key.
var (
	beforeRoutes   = strings.NewReplacer("window: 1h", "window: 10s", "grace: 10m", "grace: 2s").Replace(benchRoutes) + "    headers: [key]\n"
	trialRoutes    = beforeRoutes + "    shadow: {name: by-number, sample: 100%, key: [{field: number}]}\n"
	promotedRoutes = strings.Replace(beforeRoutes, "field: id", "field: number", 1) + "    namespace: signals~by-number\n"
)

// changer returns the changer of an operator's command.
func (b *bench) changer(routes string) *front.Changer {
	b.t.Helper()
	b.useRoutes(routes)
	cfg := b.config("operator").Config
	cfg.Partitions = 4
	c, err := front.NewChanger(cfg, b.routes, slog.New(slog.DiscardHandler), kgo.SeedBrokers(b.cluster.ListenAddrs()...))
	must(b.t, err)
	b.t.Cleanup(c.Close)
	return c
}

// numberedTraffic produces events with a fixed step of event time between them until it is stopped. Some events are
// copies by one key or by both keys.
type numberedTraffic struct {
	b      *bench
	random *rand.Rand
	at     int64
	step   int64 // ms of event time between two events
	n      int
	sent   []*kgo.Record
}

// send produces n events.
func (x *numberedTraffic) send(n int) {
	for range n {
		x.n++
		x.at += x.step
		id, number := x.n, x.n
		switch x.random.IntN(4) {
		case 0: // a copy by both keys
			if old := x.sent; len(old) > 0 {
				r := old[max(0, len(old)-1-x.random.IntN(300))]
				x.sent = append(x.sent, &kgo.Record{Topic: r.Topic, Partition: x.random.Int32N(4), Key: r.Key, Value: r.Value, Timestamp: time.UnixMilli(x.at)})
				continue
			}
		case 1: // by the new key alone
			number = max(1, x.n-x.random.IntN(300))
		case 2: // by the old key alone
			id = max(1, x.n-x.random.IntN(300))
		}
		x.sent = append(x.sent, numbered(id, number, x.random.Int32N(4), x.at))
	}
	x.b.produce(x.sent[len(x.sent)-n:]...)
}

// assertPromoted compares the output with what a promotion guarantees. No event that the new rule emitted is within
// the window of another emitted event with its number, and no event that the old rule emitted is within the window of
// another one with its id. For every event that is not emitted there is such an emitted event, or the event is a dead
// letter.
func (b *bench) assertPromoted(sent []*kgo.Record) (byOld, byNew int) {
	b.t.Helper()
	const window = 10_000
	type emitted struct {
		at    int64
		isNew bool
	}
	numbers, ids := map[string][]emitted{}, map[string][]emitted{}
	rule, err := rules.ParseRoutes("routes.yaml", []byte(promotedRoutes))
	must(b.t, err)
	deriver := rule.NewDeriver(nil)
	for _, r := range b.read("signals.unique") {
		id, number := keysOf(b.t, r)
		derived := deriver.Derive(&rules.Input{Topic: "signals.raw", Value: r.Value})
		one := emitted{r.Timestamp.UnixMilli(), header(r, "oncebus-key") == hex.EncodeToString(derived.Key[:])}
		if one.isNew {
			byNew++
		} else {
			byOld++
		}
		for _, other := range numbers[number] {
			if (one.isNew || other.isNew) && abs(one.at-other.at) <= window {
				b.t.Errorf("number %s is emitted at %d (new rule %v) and at %d (%v)", number, other.at, other.isNew, one.at, one.isNew)
			}
		}
		for _, other := range ids[id] {
			if !one.isNew && !other.isNew && abs(one.at-other.at) <= window {
				b.t.Errorf("id %s is emitted twice by the old rule, at %d and %d", id, other.at, one.at)
			}
		}
		numbers[number], ids[id] = append(numbers[number], one), append(ids[id], one)
	}
	dead := map[string]bool{}
	for _, r := range b.read("dead") {
		dead[string(r.Value)] = true
	}
	for _, r := range sent {
		id, number := keysOf(b.t, r)
		has := func(all []emitted) bool {
			return slices.ContainsFunc(all, func(e emitted) bool { return abs(e.at-r.Timestamp.UnixMilli()) <= window })
		}
		if !has(numbers[number]) && !has(ids[id]) && !dead[string(r.Value)] {
			b.t.Errorf("event %s at %d is lost", r.Value, r.Timestamp.UnixMilli())
		}
	}
	b.t.Logf("%d events: %d emitted by the old rule, %d by the new one, %d dead letters", len(sent), byOld, byNew, len(dead))
	return byOld, byNew
}

func abs(n int64) int64 { return int64(math.Abs(float64(n))) }

func keysOf(t *testing.T, r *kgo.Record) (id, number string) {
	t.Helper()
	var keys struct{ ID, Number string }
	must(t, json.Unmarshal(r.Value, &keys))
	return keys.ID, keys.Number
}

// sendAll produces n events and waits until all are judged. No partition is far behind another, so few events are
// late.
func (x *numberedTraffic) sendAll(i *instance, n int) {
	x.b.t.Helper()
	for ; n > 0; n -= 200 {
		x.send(min(n, 200))
		x.b.drain(i, "signals.raw")
	}
}

// tried starts two processes and a shadow, and waits until the shadow has seen enough.
func (b *bench) tried(x *numberedTraffic) (one, two *instance) {
	b.t.Helper()
	b.useRoutes(beforeRoutes)
	b.createTopic("signals.raw", 4)
	one, two = b.ready(b.start(b.config("one"))), b.ready(b.start(b.config("two")))
	x.sendAll(one, 300)
	b.apply(trialRoutes)
	b.taken(2, one, two)
	return one, two
}

// TestPromotionUnderTraffic sends events before, during and after the promotion of a shadow, with copies across these
// times. No event is lost, and each new key is emitted once.
func TestPromotionUnderTraffic(t *testing.T) {
	t.Parallel()
	b := newBench(t, beforeRoutes)
	x := &numberedTraffic{b: b, random: rand.New(rand.NewPCG(1, 2)), at: testTime, step: 20}
	one, two := b.tried(x)
	x.sendAll(one, 200)
	c := b.changer(promotedRoutes)
	if _, err := c.Promote(t.Context(), "ada", time.Minute, func(front.PromotionStep) {}); err == nil || !strings.Contains(err.Error(), "promote in") {
		t.Errorf("promoted too early: %v", err)
	}
	x.sendAll(one, 1300)
	x.step = 2
	b.wait("the shadow to be promotable", func() bool { return b.shadows()[0].Promotable })

	ctx, stop := context.WithCancel(t.Context())
	var traffic sync.WaitGroup
	traffic.Go(func() {
		pace := time.NewTicker(20 * time.Millisecond)
		defer pace.Stop()
		for ctx.Err() == nil {
			x.send(10)
			<-pace.C
		}
	})
	var steps []front.PromotionStep
	p, err := c.Promote(t.Context(), "ada", time.Minute, func(s front.PromotionStep) { steps = append(steps, s) })
	stop()
	traffic.Wait()
	must(t, err)
	if p.Set != 3 || p.Namespace != "signals~by-number" || p.Route != "signals" || len(steps) != 5 {
		t.Errorf("promoted %+v in steps %v", p, steps)
	}
	t.Logf("held for %d ms", p.HeldMS)
	b.taken(3, one, two)
	x.sendAll(one, 1000)
	if byOld, byNew := b.assertPromoted(x.sent); byOld < 500 || byNew < 500 {
		t.Errorf("%d events emitted by the old rule, %d by the new one", byOld, byNew)
	}
	again, err := c.Promote(t.Context(), "ada", time.Minute, func(front.PromotionStep) {})
	if err != nil || again.Set != 3 {
		t.Errorf("promoted again: %+v, %v", again, err)
	}
	b.assertFormerForwarded(one)
}

// assertFormerForwarded sends records with old keys after a promotion, as an ingress does that was suspended
// meanwhile: copies of events, and an event of its own. The app derives their keys again.
func (b *bench) assertFormerForwarded(i *instance) {
	b.t.Helper()
	before, emitted := 0, map[string]bool{}
	for _, r := range b.read("signals.unique") {
		before++
		emitted[string(r.Value)] = true
	}
	var copies []*kgo.Record
	for _, r := range b.routedRecords() {
		var env wire.Envelope
		must(b.t, wire.ReadEnvelope(r, &env))
		if env.Shadow == 0 && string(env.Route) == "signals" && emitted[string(r.Value)] {
			copies = append(copies, &kgo.Record{Topic: r.Topic, Partition: r.Partition, Key: r.Key, Value: r.Value})
		}
	}
	copies = copies[len(copies)-20:]
	digits := regexp.MustCompile(`[0-9]`)
	fresh := *copies[0]
	fresh.Value = digits.ReplaceAll(fresh.Value, []byte("z"))
	b.produce(append(copies, &fresh)...)
	b.wait("the event of the front to be emitted", func() bool { return len(b.read("signals.unique")) > before })
	b.drain(i, "signals.raw")
	if n := len(b.read("signals.unique")) - before; n != 1 {
		b.t.Errorf("%d of 20 copies and an event were emitted, want the event", n)
	}
}

// TestPromotionKilledAtEachStep ends the command without a word after each of its steps, under traffic. A repeated
// command promotes the shadow. Without a repetition the hold ends and nothing has changed, or, after the act, the
// processes end the hold.
func TestPromotionKilledAtEachStep(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		after    front.PromotionStep
		repeated bool
	}{{front.StepHeld, true}, {front.StepJudged, true}, {front.StepJoined, false}, {front.StepActed, true}, {front.StepActed, false}} {
		t.Run(fmt.Sprint(c.after, c.repeated), func(t *testing.T) {
			t.Parallel()
			b := newBench(t, beforeRoutes)
			x := &numberedTraffic{b: b, random: rand.New(rand.NewPCG(3, 4)), at: testTime, step: 20}
			one, two := b.tried(x)
			x.sendAll(one, 1400)
			x.step = 2
			b.wait("the shadow to be promotable", func() bool { return b.shadows()[0].Promotable })
			changer := b.changer(promotedRoutes)
			const limit = time.Minute
			var command sync.WaitGroup
			command.Go(func() {
				_, err := changer.Promote(t.Context(), "ada", limit, func(s front.PromotionStep) {
					if s == c.after {
						runtime.Goexit()
					}
				})
				t.Errorf("the promotion went on: %v", err)
			})
			x.send(100)
			command.Wait()
			x.send(100)
			if c.after == front.StepJoined {
				b.passLimit(one, move.Options{Limit: limit})
			}
			if !c.repeated {
				b.wait("the hold to end", func() bool { return one.State().Hold == nil && two.State().Hold == nil })
			}
			if set := one.State().Routes.InForce; c.after == front.StepJoined && set != 2 {
				t.Errorf("set %d is in force after a promotion that did not act", set)
			}
			p, err := changer.Promote(t.Context(), "ada", time.Minute, func(front.PromotionStep) {})
			if err != nil || p.Set != 3 {
				t.Fatalf("promoted %+v, %v", p, err)
			}
			b.taken(3, one, two)
			x.sendAll(one, 600)
			if byOld, byNew := b.assertPromoted(x.sent); byOld < 500 || byNew < 300 {
				t.Errorf("%d events emitted by the old rule, %d by the new one", byOld, byNew)
			}
		})
	}
}

// switchHold puts a promotion's hold in force that no process ends, because no route set has its number.
func (b *bench) switchHold() *app.Hold {
	b.t.Helper()
	hold := app.NewPromotionHold("a test", "ada", 0)
	hold.Set = 99
	hold, err := app.BeginPromotion(b.t.Context(), b.conn(), b.config("operator").Config, b.topology(), hold)
	must(b.t, err)
	return hold
}

// TestPromotionWaitsForEveryTask protects that the hold does not end as long as the checkpoint of any task names the
// route set before the promotion.
func TestPromotionWaitsForEveryTask(t *testing.T) {
	t.Parallel()
	b := newBench(t, beforeRoutes)
	x := &numberedTraffic{b: b, random: rand.New(rand.NewPCG(5, 6)), at: testTime, step: 20}
	one, two := b.tried(x)
	must(t, one.stop())
	must(t, two.stop())
	hold := b.switchHold()
	found, err := app.Find(t.Context(), b.client, "app", b.routes)
	must(t, err)
	topology := found.Topology
	left, err := app.EndPromotion(t.Context(), b.conn(), b.config("operator").Config, topology, hold)
	if err != nil || len(left) != 4 {
		t.Errorf("tasks %v have not joined, %v; want all 4", left, err)
	}
	rows, err := app.ReadRows(t.Context(), b.client, topology)
	must(t, err)
	if in, err := app.HoldIn(rows); err != nil || in == nil || in.ID != hold.ID {
		t.Errorf("the hold in force is %+v, %v", in, err)
	}
}

// TestFormerRecordWaitsUnderTheHold protects that a record whose key follows the old rule waits while another task
// may still emit by that rule. After the hold, its key is derived again.
func TestFormerRecordWaitsUnderTheHold(t *testing.T) {
	t.Parallel()
	b := newBench(t, beforeRoutes)
	x := &numberedTraffic{b: b, random: rand.New(rand.NewPCG(7, 8)), at: testTime, step: 20}
	one, two := b.tried(x)
	x.sendAll(one, 1400)
	b.wait("the shadow to be promotable", func() bool { return b.shadows()[0].Promotable })
	_, err := b.changer(promotedRoutes).Promote(t.Context(), "ada", time.Minute, func(front.PromotionStep) {})
	must(t, err)
	b.taken(3, one, two)
	before := len(b.read("signals.unique"))
	hold := b.switchHold()
	b.wait("the processes to hold", func() bool { return one.State().Hold != nil && two.State().Hold != nil })
	var former *kgo.Record
	for _, r := range b.routedRecords() {
		var env wire.Envelope
		must(t, wire.ReadEnvelope(r, &env))
		if env.Shadow == 0 && string(env.Route) == "signals" {
			former = r
		}
	}
	value := regexp.MustCompile(`[0-9]`).ReplaceAll(former.Value, []byte("z"))
	b.produce(&kgo.Record{Topic: former.Topic, Partition: former.Partition, Key: former.Key, Value: value})
	waits := func() bool {
		for _, task := range append(one.State().Tasks, two.State().Tasks...) {
			if task.State == "waiting" && strings.Contains(task.Reason, "promotion") {
				return true
			}
		}
		return len(b.read("signals.unique")) > before
	}
	b.wait("the record to wait", waits)
	if n := len(b.read("signals.unique")); n != before {
		t.Errorf("%d events were emitted under the hold", n-before)
	}
	_, err = app.Release(t.Context(), b.conn(), b.config("operator").Config, b.topology(), hold.ID)
	must(t, err)
	b.wait("the event to be emitted", func() bool { return len(b.read("signals.unique")) == before+1 })
}
