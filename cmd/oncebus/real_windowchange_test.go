//go:build unix

package main_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/cmd/oncebus/cli"
)

// changingRoutes have a route for the edges of a changed window, whose events all show their verdicts,
// and one for the load.
const changingRoutes = `
routes:
  - name: edges
    topics: [APP.edges.raw]
    key: [{field: id}]
    time: {field: at}
    window: 1m
    grace: 10s
    output: APP.edges.unique
    headers: [route, key, verdict]
    duplicates: forward
    on_late: forward
    dead_letter: APP.dead-letter
  - name: load
    topics: [APP.load.raw]
    key: [{field: id}]
    window: 1m
    grace: 10s
    output: APP.load.unique
    on_late: drop
    dead_letter: APP.dead-letter
`

// The windows of changingRoutes in ms: the short one, its grace and the long one.
const shortWindow, changeGrace, longWindow = 60_000, 10_000, 180_000

// edge is an event at the edge of a window, and the verdict that it must get.
type edge struct {
	id      string
	at      int64 // ms
	verdict string
}

// A windowChange is an app whose windows change under load.
type windowChange struct {
	*world

	procs []*service
	edges []edge // all that were sent
	load  *lagLoad
}

// send sends events to the first partition of the edges' topic, and waits until they are judged.
func (c *windowChange) send(edges ...edge) {
	c.t.Helper()
	var records []*kgo.Record
	for _, e := range edges {
		records = append(records, &kgo.Record{Topic: c.topic("edges.raw"), Timestamp: time.UnixMilli(e.at), Value: fmt.Appendf(nil, `{"id":%q,"at":%d,"n":%d}`, e.id, e.at, len(c.edges))})
		c.edges = append(c.edges, e)
	}
	c.produce(records...)
	c.judged()
}

// judged waits until the output has all events of the edges.
func (c *windowChange) judged() {
	c.t.Helper()
	eventually(c.t, "the edges to be judged", func(ctx context.Context) error {
		out, err := c.read(ctx, c.topic("edges.unique"), nil)
		if err == nil && len(out) < len(c.edges) {
			err = fmt.Errorf("%d of %d", len(out), len(c.edges))
		}
		return err
	})
}

// check compares the verdicts.
func (c *windowChange) check() {
	c.t.Helper()
	got := make([]string, len(c.edges))
	for _, r := range c.output("edges.unique") {
		var event struct{ N int }
		if err := json.Unmarshal(r.Value, &event); err != nil {
			c.t.Fatal(err)
		}
		got[event.N] = strings.TrimSpace(got[event.N] + " " + headerOf(r, "oncebus-verdict"))
	}
	for n, e := range c.edges {
		if got[n] != e.verdict {
			c.t.Errorf("event %d of key %s at %d: %q, want %s", n, e.id, e.at, got[n], e.verdict)
		}
	}
}

// plan returns what 'oncebus plan' says of the window of the edges: stream time, and from which event
// time on it is whole.
func (c *windowChange) plan(file string) (streamTime, fullFrom int64) {
	c.t.Helper()
	out, problems, code := c.oncebus("", "plan", "-o", "json", file)
	var a struct {
		Windows []struct {
			Namespace string
			Tasks     []struct {
				StreamTime int64 `json:"stream_time"`
				FullFrom   int64 `json:"full_from"`
			}
		}
	}
	if err := json.Unmarshal([]byte(out), &a); err != nil || code != cli.ExitFailed {
		c.t.Fatalf("plan ended with %d: %v\n%s%s", code, err, out, problems)
	}
	for _, w := range a.Windows {
		if w.Namespace == "edges" && len(w.Tasks) == 1 {
			return w.Tasks[0].StreamTime, w.Tasks[0].FullFrom
		}
	}
	c.t.Fatalf("plan says nothing of the window: %s", out)
	return 0, 0
}

// change puts a file in force, sends the first events of the new set, and kills the process that
// judged them.
func (c *windowChange) change(file string, first ...edge) {
	c.t.Helper()
	a := c.apply(file)
	c.send(first...)
	owner := slices.IndexFunc(c.procs, func(p *service) bool {
		states, err := p.metric(c.t.Context(), "oncebus_tasks")
		return err == nil && states["running"] > 0
	})
	if owner < 0 {
		c.t.Fatal("no process has the task")
	}
	c.procs[owner].kill()
	c.t.Logf("set %d after %.1f s; process %s killed after its first events", a.Set, a.Seconds, c.procs[owner].Name)
	c.procs[owner] = c.start(c.procs[owner].Name)
	c.procs[owner].awaitReady()
}

// TestRealWindowChanges makes a window longer, shorter and longer again under load at two processes,
// and kills the process that has the task after its first events of each set. Copies come at the
// edges of what is known: a row from 1 ms before counts as absent, one at the edge decides, and from
// the event time on that the plan prints the longer window holds as a whole.
func TestRealWindowChanges(t *testing.T) {
	t.Parallel()
	w := newLoadedWorld(t, changingRoutes)
	// One task, so that one stream time applies to all events of a namespace.
	w.settings = []string{"PARTITIONS=1", "WORKERS=1", "LEAVE_ON_STOP=false"}
	w.createTopics(nil, "load.raw")
	w.createPartitions(1, nil, "edges.raw") // one source, whose events move stream time at once
	c := &windowChange{world: w, procs: []*service{w.start("a"), w.start("b")}}
	for _, p := range c.procs {
		p.awaitReady()
	}
	shorter, longer := w.routes, w.routesFile("longer.yaml", strings.ReplaceAll(changingRoutes, "window: 1m", "window: 3m"))
	c.load = w.startLagLoad()
	pauses, stopWatching := w.watchOutput("load.unique")
	c.load.runs(5 * time.Second)

	// The last event makes k the horizon of the short window.
	k := time.Now().Add(-5 * time.Hour).UnixMilli()
	s := k + 2*shortWindow + changeGrace
	c.send(edge{"p", k - 1, "unique"}, edge{"q", k, "unique"}, edge{"r", k - 1, "unique"}, edge{"u", k + 1, "unique"}, edge{"v", k + 1, "unique"}, edge{"s", s, "unique"})
	full := s + longWindow - 2*shortWindow - changeGrace
	if at, from := c.plan(longer); at != s || from != full {
		t.Errorf("the plan has stream time %d and is whole from %d, want %d and %d", at, from, s, full)
	}
	pauses.begin("1 longer, process killed")
	c.change(longer, edge{"q", s, "duplicate"})
	last := full + 2 + shortWindow + 1 // before the second lengthening
	k2 := last - 2*shortWindow - changeGrace
	c.send(edge{"p", s, "unique"}, edge{"p", s, "duplicate"}, edge{"x", k2 - 1, "unique"}, edge{"y", k2, "unique"},
		edge{"r", full - 1, "unique"}, edge{"q", full, "duplicate"}, edge{"u", full + 1, "duplicate"}, edge{"v", full + 2, "after_window"}, edge{"w", full + 2, "unique"})
	c.load.runs(5 * time.Second)

	pauses.begin("2 shorter, process killed")
	if at, from := c.plan(shorter); at != full+2 || from > at {
		t.Errorf("the plan has stream time %d and is whole from %d, want %d and at once", at, from, full+2)
	}
	c.change(shorter, edge{"w", full + 2 + shortWindow, "duplicate"})
	c.send(edge{"w", last, "after_window"}, edge{"q", last - shortWindow - changeGrace - 1, "late"})
	c.load.runs(5 * time.Second)

	pauses.begin("3 longer again, process killed")
	if at, from := c.plan(longer); at != last || from != k2+longWindow {
		t.Errorf("the plan has stream time %d and is whole from %d, want %d and %d", at, from, last, k2+longWindow)
	}
	c.change(longer, edge{"y", last, "duplicate"})
	c.send(edge{"x", last, "unique"}, edge{"y", k2 + longWindow, "duplicate"}, edge{"y", k2 + longWindow + 1, "after_window"})
	c.load.runs(5 * time.Second)
	pauses.begin("")
	c.load.stop()
	w.drained([]string{"edges.raw", "load.raw"}, []string{"edges.unique", "load.unique", "dead-letter"})
	stopWatching()
	c.check()
	w.checkAudited(c.load.sent + int64(len(c.edges)))
	for _, p := range c.procs {
		p.stop()
	}
}

// eventSpeed is how much faster than the clock the event time of a lagLoad is.
const eventSpeed = 10

// loadLags are how long after an event its copies come, in event time: within the short window, after
// it, and after what is retained for the long one.
var loadLags = []time.Duration{10 * time.Second, 59 * time.Second, 61 * time.Second, 150 * time.Second, 190 * time.Second}

// startLagLoad sends events to one partition at loadRate, with copies at loadLags.
func (w *world) startLagLoad() *lagLoad {
	ctx, cancel := context.WithCancel(w.t.Context())
	l := &lagLoad{copiedLoad: &copiedLoad{w: w, cancel: cancel, done: make(chan struct{}), next: map[string]int{}}, began: time.Now().Add(-3 * time.Hour)}
	go func() { defer close(l.done); l.run(ctx) }()
	w.t.Cleanup(cancel)
	return l
}

// A lagLoad sends events whose event time is eventSpeed as fast as the clock.
type lagLoad struct {
	*copiedLoad

	began time.Time
}

func (l *lagLoad) run(ctx context.Context) {
	ticker := time.NewTicker(loadTick)
	defer ticker.Stop()
	fresh := int(loadRate) * int(loadTick/time.Millisecond) / 1000 / (1 + len(loadLags))
	for tick := 0; ctx.Err() == nil; tick++ {
		at := l.began.Add(time.Duration(tick) * loadTick * eventSpeed)
		l.sendIDs(tick*fresh, fresh, at)
		for _, lag := range loadLags {
			if before := tick - int(lag/(loadTick*eventSpeed)); before >= 0 {
				l.sendIDs(before*fresh, fresh, at)
			}
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
		}
	}
	l.failed(l.w.producer.Flush(context.Background()))
}

func (l *lagLoad) sendIDs(first, n int, at time.Time) {
	for i := range n {
		r := &kgo.Record{Topic: l.w.topic("load.raw"), Timestamp: at, Value: fmt.Appendf(nil, `{"id":"l-%d"}`, first+i)}
		l.w.producer.Produce(context.Background(), r, func(_ *kgo.Record, err error) { l.failed(err) })
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sent += int64(n)
}
