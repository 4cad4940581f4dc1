package app

import (
	"math"
	"strings"
	"testing"
	"time"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/wire"
)

// windowRoutes returns routes with one route and its window.
func windowRoutes(t *testing.T, window, grace string) *rules.Routes {
	t.Helper()
	routes, err := rules.ParseRoutes("routes.yaml", []byte(`
routes:
  - name: orders
    topics: [orders.raw]
    key: [{field: id}]
    output: orders.unique
    window: `+window+`
    grace: `+grace+"\n"))
	if err != nil {
		t.Fatal(err)
	}
	return routes
}

// at returns a checkpoint of a set, with a stream time of the first namespace.
func checkpointAt(set int64, id uint8, streamTime time.Time) wire.Checkpoint {
	c := wire.Checkpoint{Set: set}
	c.StreamTimes.At[id], c.StreamTimes.Has[id] = streamTime.UnixMilli(), true
	return c
}

// TestPlanSaysFromWhenOnAWindowIsWhole: two windows and the grace are stored, so a window twice
// as long holds at once. A longer one grows.
func TestPlanSaysFromWhenOnAWindowIsWhole(t *testing.T) {
	rt, err := OfflineSets("app", 2, windowRoutes(t, "24h", "10m"))
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 11, 26, 8, 40, 0, 0, time.UTC)
	id := rt.Routes[0].NamespaceID
	tasks := []TaskCheckpoint{
		{TaskID{"app-repartition", 0}, checkpointAt(1, id, now)},
		{TaskID{"app-repartition", 1}, wire.Checkpoint{Set: 1}}, // without events
	}
	for _, c := range []struct{ window, grace, want string }{
		{"24h", "10m", ""},
		{"48h", "10m", "orders: window 24h -> 48h at once"},
		{"1h", "10m", "orders: window 24h -> 1h at once"},
		{"24h", "1h", "orders: window 24h, grace 10m -> 1h at once"},
		{"168h", "10m", "orders: window 24h -> 168h after 119h50m of event time, for events from 2026-12-01T08:30:00Z on"},
		{"90m30s", "0s", "orders: window 24h -> 1h30m30s, grace 10m -> 0s at once"},
	} {
		var lines []string
		for _, p := range rt.PlanWindows(tasks, windowRoutes(t, c.window, c.grace)) {
			lines = append(lines, p.String())
		}
		if got := strings.Join(lines, "\n"); got != c.want {
			t.Errorf("%s, grace %s:\n%s\nwant\n%s", c.window, c.grace, got, c.want)
		}
	}
	tasks[1].Checkpoint = checkpointAt(1, id, now.Add(time.Hour))
	want := "orders: window 24h -> 168h after 119h50m of event time, for events from 2026-12-01T08:30:00Z on (app-repartition/0) to 2026-12-01T09:30:00Z on (app-repartition/1)"
	if p := rt.PlanWindows(tasks, windowRoutes(t, "168h", "10m")); p[0].String() != want {
		t.Errorf("%s\nwant\n%s", &p[0], want)
	}
}

// TestHorizonsGoByTheSetOfTheCheckpoint: a process with a shorter window evicts nothing before
// the task has gone over to it. A later set may be the longer one again.
func TestHorizonsGoByTheSetOfTheCheckpoint(t *testing.T) {
	rt, err := OfflineSets("app", 1, windowRoutes(t, "24h", "10m"), windowRoutes(t, "1h", "10m"))
	if err != nil {
		t.Fatal(err)
	}
	id, now := rt.Routes[0].NamespaceID, time.Date(2026, 11, 26, 8, 40, 0, 0, time.UTC)
	for set, want := range map[int64]int64{
		0: now.Add(-48*time.Hour - 10*time.Minute).UnixMilli(), // not since the level was raised
		1: now.Add(-48*time.Hour - 10*time.Minute).UnixMilli(),
		2: now.Add(-2*time.Hour - 10*time.Minute).UnixMilli(),
		3: math.MinInt64, // of another process: its window may be any
	} {
		c := checkpointAt(set, id, now)
		if got := rt.Horizons(&c)[id]; got != want {
			t.Errorf("set %d: rows before %d decide nothing, want %d", set, got, want)
		}
	}
	c := checkpointAt(2, id, now)
	c.Known = []wire.KnownSince{{NamespaceID: id, Since: now.Add(-time.Hour).UnixMilli()}}
	if got := rt.Horizons(&c)[id]; got != c.Known[0].Since {
		t.Errorf("rows before %d decide nothing, want %d", got, c.Known[0].Since)
	}
}

// TestKnownUnderKeepsOtherNamespaces: a set that leaves a window as it is keeps what is known of
// it. A task without a transaction since the level was raised changes from the window of set 1.
func TestKnownUnderKeepsOtherNamespaces(t *testing.T) {
	rt, err := OfflineSets("app", 1, windowRoutes(t, "1h", "10m"), windowRoutes(t, "7h", "10m"), windowRoutes(t, "7h", "10m"))
	if err != nil {
		t.Fatal(err)
	}
	id, now := rt.Routes[0].NamespaceID, time.Date(2026, 11, 26, 8, 40, 0, 0, time.UTC)
	c := checkpointAt(2, id, now)
	c.Known = []wire.KnownSince{{NamespaceID: id, Since: now.Add(-time.Hour).UnixMilli(), LateBefore: 3}, {NamespaceID: 200, Since: 7}}
	if got := rt.KnownUnder(&c, 3); len(got) != 2 || got[0] != c.Known[0] || got[1] != c.Known[1] {
		t.Errorf("known %v, want %v", got, c.Known)
	}
	if _, ok := rt.WindowAt(&wire.Checkpoint{Set: 4}, id); ok {
		t.Error("the window of a newer set is known")
	}
	want := dedup.Window{Size: time.Hour.Milliseconds(), Grace: 10 * time.Minute.Milliseconds()}.ChangeTo(rt.Routes[0].Span, now.UnixMilli())
	for set := range int64(2) {
		c = checkpointAt(set, id, now)
		if got := rt.KnownUnder(&c, 3); len(got) != 1 || got[0].Since != want.Since || got[0].LateBefore != want.LateBefore {
			t.Errorf("from set %d: known %v, want %d, %d", set, got, want.Since, want.LateBefore)
		}
	}
	c = checkpointAt(0, id, now)
	if got := rt.KnownUnder(&c, 1); got != nil {
		t.Errorf("from level 1 to set 1: known %v, want none", got)
	}
}
