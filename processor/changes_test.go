package processor_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"oncebus/processor/app"
	"oncebus/processor/front"
	"oncebus/processor/move"
)

// TestChangesFollowEachOther moves the keys of an app, promotes a shadow, and moves the app to another cluster. No
// change may undo an earlier one, and after the last move a start check finds what a start would find.
func TestChangesFollowEachOther(t *testing.T) {
	t.Parallel()
	b := newBench(t, beforeRoutes)
	b.createTopic("signals.raw", 4)
	cfg := b.config("one")
	i := b.ready(b.start(cfg))
	x := &numberedTraffic{b: b, random: rand.New(rand.NewPCG(5, 6)), at: testTime, step: 20}
	x.sendAll(i, 300)
	b.move(move.Options{Partitions: 3, Limit: time.Minute, By: "tester"})
	b.awaitGeneration(i, 2)
	_, err := b.mover().Finish(t.Context())
	must(t, err)
	for _, f := range b.diagnose(cfg, 0) {
		if f.Level == app.Fails || f.Check == "topics" && f.Text != "6 of the app's 6 topics exist" {
			t.Errorf("after the move: %+v", f)
		}
	}

	b.apply(trialRoutes)
	b.taken(2, i)
	x.sendAll(i, 1500)
	x.step = 2
	b.wait("the shadow to be promotable", func() bool { return b.shadows()[0].Promotable })
	p, err := b.changer(promotedRoutes).Promote(t.Context(), "ada", time.Minute, func(front.PromotionStep) {})
	if err != nil || p.Set != 3 {
		t.Fatalf("promoted %+v, %v", p, err)
	}
	b.taken(3, i)
	x.sendAll(i, 400)
	if byOld, byNew := b.assertPromoted(x.sent); byOld < 500 || byNew < 100 {
		t.Errorf("%d events emitted by the old rule, %d by the new one", byOld, byNew)
	}
	topics, err := app.DescribeTopics(t.Context(), b.admin, "app-repartition", "app-repartition-changelog")
	if err != nil || topics["app-repartition"].Partitions+topics["app-repartition-changelog"].Partitions > 0 {
		t.Errorf("topics of before the move are there again: %v, %v", topics, err)
	}

	file := b.leave(cfg.Config)
	other := newBench(t, promotedRoutes, kfake.ClusterID("east"))
	other.createTopic("signals.raw", 4)
	newMirror("signals.raw", b, other).run(0)
	there := other.config("one")
	there.Partitions = 3
	_, err = other.arrive(there.Config, file, false)
	must(t, err)
	j := other.ready(other.start(there))
	report, err := other.seedArrival(t.Context(), there.Config, file, unchanged)
	if err != nil || !report.Arrived || report.Taken != report.Keys {
		t.Fatalf("seeded: %+v, %v", report, err)
	}
	_, err = other.decider().Release(t.Context())
	must(t, err)
	other.produce(slices.Clone(x.sent[len(x.sent)-50:])...)
	other.drain(j, "signals.raw")
	if out := other.read("signals.unique"); len(out) != 0 {
		t.Errorf("%d copies were emitted in the other cluster", len(out))
	}
}
