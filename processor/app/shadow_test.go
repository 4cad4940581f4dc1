package app

import (
	"math"
	"strings"
	"testing"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/wire"
)

const liveRoutes = `routes:
  - name: orders
    topics: [orders.raw]
    key: [{field: id}]
    window: 10s
    grace: 2s
    output: orders.unique
`

// promotedApp returns an app whose third set has promoted the shadow of the second.
func promotedApp(t *testing.T, lateBefore int64) (trial, promoted *App) {
	t.Helper()
	var sets []*rules.Routes
	for _, text := range []string{
		liveRoutes, liveRoutes + "    shadow: {name: a, sample: 100%, key: [{field: number}]}\n",
		strings.Replace(liveRoutes, "field: id", "field: number", 1) + "    namespace: orders~a\n",
	} {
		set, err := rules.ParseRoutes("routes.yaml", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		sets = append(sets, set)
	}
	trial, err := OfflineSets("app", 2, sets[:2]...)
	if err != nil {
		t.Fatal(err)
	}
	if promoted, err = OfflineSets("app", 2, sets...); err != nil {
		t.Fatal(err)
	}
	promoted.Manifest.sets.all[3].Promoted = []Promoted{{Namespace: "orders~a", LateBefore: lateBefore}}
	return trial, promoted
}

// TestShadowBeginsWithTheSet: a task notes the latest event that the shadow has not seen. At the
// promotion events that may be copies of it are late, and its counts end.
func TestShadowBeginsWithTheSet(t *testing.T) {
	trial, promoted := promotedApp(t, 111)
	live, shadow := trial.ByName["orders"].NamespaceID, trial.ByName["orders~a"].NamespaceID
	if trial.ByName["orders"].Shadow != trial.ByName["orders~a"] || !trial.ByName["orders~a"].IsShadow() || promoted.ByName["orders~a"] != promoted.ByName["orders"] || promoted.ByName["orders"].NamespaceID != shadow {
		t.Fatal("the names of the routes are wrong")
	}
	c := wire.Checkpoint{Set: 1}
	c.StreamTimes.At[live], c.StreamTimes.Has[live] = 90, true
	c.SetAhead(live, 100)
	trial.GoOver(&c)
	if s := c.ShadowOf(shadow); c.Set != 2 || s == nil || s.Begin != 100 || len(c.Known) != 0 {
		t.Errorf("the checkpoint is %+v", c)
	}
	promoted.GoOver(&c)
	if len(c.Shadows) != 0 || len(c.Known) != 1 || c.Known[0] != (wire.KnownSince{NamespaceID: shadow, Since: math.MinInt64, LateBefore: 111}) {
		t.Errorf("after the promotion shadows %+v, known %+v", c.Shadows, c.Known)
	}
	if w := c.Window(shadow, promoted.ByName["orders"].Span); !w.Late(110, dedup.NoStreamTime) || w.Late(111, dedup.NoStreamTime) {
		t.Error("events before 111 are late, and no others")
	}
}

// TestShadowIsPromotableAfterTwoWindows: by the slowest task that has events of the shadow.
func TestShadowIsPromotableAfterTwoWindows(t *testing.T) {
	trial, _ := promotedApp(t, 0)
	shadow := trial.ByName["orders~a"].NamespaceID
	task := func(partition int32, begin, streamTime int64) TaskCheckpoint {
		c := TaskCheckpoint{Task: TaskID{Topic: "app-repartition", Partition: partition}, Checkpoint: wire.Checkpoint{Set: 2, Shadows: []wire.ShadowCounts{{NamespaceID: shadow, Begin: begin}}}}
		c.Checkpoint.StreamTimes.At[shadow], c.Checkpoint.StreamTimes.Has[shadow] = streamTime, streamTime != dedup.NoStreamTime
		return c
	}
	for _, c := range []struct {
		tasks []TaskCheckpoint
		wait  int64
	}{
		{[]TaskCheckpoint{task(0, 100, 22_100), task(1, 50, 30_000)}, 0},
		{[]TaskCheckpoint{task(0, 100, 22_099), task(1, 50, 30_000)}, 1},
		{[]TaskCheckpoint{task(0, 50, 22_100), task(1, 1100, dedup.NoStreamTime)}, 1000},
		{[]TaskCheckpoint{task(0, 50, dedup.NoStreamTime), task(1, 100, dedup.NoStreamTime)}, 22_000},
		{[]TaskCheckpoint{task(0, dedup.NoStreamTime, 5), task(1, dedup.NoStreamTime, 7)}, 0},
	} {
		s, ok := StateOf(trial.Shadows(c.tasks), "orders~a")
		if !ok || s.WaitMS != c.wait || s.Promotable != (c.wait == 0) || (s.Check() == nil) != s.Promotable {
			t.Errorf("the state is %+v, want a wait of %d ms", s, c.wait)
		}
	}
}

// TestFormerKeyRuleEnds: after a promotion the namespace of the former rule has no route. Its rows are
// counted and shown, and bounded by its window as before, until their retention is over.
func TestFormerKeyRuleEnds(t *testing.T) {
	trial, promoted := promotedApp(t, 111)
	former := trial.ByName["orders"].NamespaceID
	c := wire.Checkpoint{Set: 3}
	c.StreamTimes.At[former], c.StreamTimes.Has[former] = 90_000, true
	if before := promoted.Horizons(&c)[former]; before != 90_000-22_000 {
		t.Errorf("rows from %d on decide, want two windows and the grace", before)
	}
	counts := NewCounts(promoted)
	counts.Replace(&dedup.Row{NamespaceID: former, Status: dedup.Seen, First: 90_000}, nil)
	shown := counts.List(promoted, &c)
	if len(shown) != 2 || shown[0].Namespace != "orders" || shown[0].Total != 1 || len(shown[0].Routes) != 1 {
		t.Errorf("shown are %+v", shown)
	}
	if since := promoted.Manifest.sets.all[3].At.UnixMilli(); promoted.RetiredUntil[former] != since+22_000 || len(promoted.RetiredUntil) != 1 || len(trial.RetiredUntil) != 0 {
		t.Errorf("rows decide until %v, the set is of %d", promoted.RetiredUntil, since)
	}
}
