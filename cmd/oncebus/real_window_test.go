//go:build unix

package main_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// windowRoutes make every verdict visible: duplicates go to another topic, and each
// policy for late events has a route.
const windowRoutes = `
routes:
  - name: dead
    topics: [RAW.raw]
    match: {field: route, in: [dead]}
    key: [{field: id}]
    window: 1h
    grace: 10m
    output: APP.unique
    headers: [route, key, verdict]
    duplicates: {to: APP.duplicates}
    on_late: dead_letter
    dead_letter: APP.dead-letter
  - name: pass
    topics: [RAW.raw]
    match: {field: route, in: [pass]}
    key: [{field: id}]
    window: 1h
    grace: 10m
    output: APP.unique
    headers: [route, key, verdict]
    duplicates: {to: APP.duplicates}
    on_late: forward
    dead_letter: APP.dead-letter
  - name: drop
    topics: [RAW.raw]
    match: {field: route, in: [drop]}
    key: [{field: id}]
    window: 1h
    grace: 10m
    output: APP.unique
    headers: [route, key, verdict]
    duplicates: {to: APP.duplicates}
    on_late: drop
    on_future: clamp
    dead_letter: APP.dead-letter
`

// scene is one record that the test sends to each of the window routes.
type scene struct {
	event   string
	at      time.Duration // event time, relative to the start of the story
	verdict string
	why     string
	clamped string // the verdict if the far future is clamped, if it differs
}

const year = 365 * 24 * time.Hour

// beforeThePause and afterThePause are one story in two parts. The window is 1 h and
// the grace period 10 min, so an event is late if it is more than 70 min before
// stream time. The comments have the stream time where it changes.
var (
	beforeThePause = []scene{
		{"a", 0, "unique", "first seen", ""},                                                                // 0
		{"a", 30 * time.Minute, "duplicate", "inside the window", ""},                                       // 30 m
		{"a", time.Hour, "duplicate", "at the window's edge", ""},                                           // 1 h
		{"a", time.Hour + time.Millisecond, "after_window", "1 ms after the edge: a new window begins", ""}, // 1 h 1 ms
		{"a", 2*time.Hour + time.Millisecond, "duplicate", "at the edge of the new window", ""},             // 2 h 1 ms
		{"b", 2 * time.Hour, "unique", "first seen", ""},
		{"b", time.Hour, "duplicate", "before the first by event time, at the window's other edge", ""},
		{"c", 50*time.Minute + time.Millisecond, "unique", "at the edge of the grace period", ""},
		{"d", 50 * time.Minute, "late", "a millisecond before the grace period", ""},
		{"d", 90 * time.Minute, "unique", "a late event stores no row, so this event is the first", ""},
		{"x", year, "invalid", "a year ahead", "unique"},
		{"b", 2*time.Hour + 2*time.Millisecond, "duplicate", "the far future evicted no row", ""}, // 2 h 2 ms
		{"e", 51 * time.Minute, "unique", "the far future made no event late", ""},
	}
	afterThePause = []scene{
		{"b", 2*time.Hour + 3*time.Millisecond, "duplicate", "seen before the pause, inside the window", ""}, // 2 h 3 ms
		{"e", 52 * time.Minute, "duplicate", "seen before the pause, although old by every wall clock", ""},
		{"f", 50 * time.Minute, "late", "the pause did not change stream time", ""},
		{"f", 2*time.Hour + 30*time.Minute, "unique", "first seen", ""},                                   // 2 h 30 m
		{"b", 3*time.Hour + time.Millisecond, "after_window", "after the window of the event at 2 h", ""}, // 3 h 1 ms
		{"f", 3 * time.Hour, "duplicate", "inside the window", ""},
		{"y", year, "invalid", "a year ahead; clamped to broker time plus an hour", "unique"},
		{"y", year + time.Minute, "invalid", "a year ahead; clamped to a later broker time plus an hour", "duplicate"},
		{"g", 3 * time.Hour, "unique", "the far future made no event late, clamped or not", ""},
	}
)

// by returns the verdict of a route.
func (s scene) by(route string) string {
	if route == "drop" && s.clamped != "" {
		return s.clamped
	}
	return s.verdict
}

// play produces a part of the story to every route, in order on one partition. Each
// record is an event of its own.
func play(w *world, l *ledger, start time.Time, part []scene, name string) {
	w.t.Helper()
	var records []*kgo.Record
	for _, route := range []string{"dead", "pass", "drop"} {
		for i, s := range part {
			r := &kgo.Record{
				Topic: w.topic("raw"), Partition: 0, Key: []byte(s.event), Timestamp: start.Add(s.at),
				Value: fmt.Appendf(nil, `{"route":%q,"id":%q}`, route, s.event),
			}
			records = append(records, l.add(fmt.Sprintf("%s/%s/%d", route, name, i), r))
		}
	}
	w.produce(records...)
}

// verdicts returns "topic verdict" of every record of the story.
func (w *world) verdicts(l *ledger) map[string]string {
	w.t.Helper()
	found := map[string]string{}
	for _, topic := range []string{"unique", "duplicates", "dead-letter"} {
		for _, r := range w.output(topic) {
			event, sent, err := l.match(r)
			if err != nil {
				w.t.Error(err)
				continue
			}
			complain(w.t, touched(sent, r), "record %s", event)
			if found[event] != "" {
				w.t.Errorf("record %s was emitted twice, the second time at %s", event, at(r))
			}
			found[event] = topic + " " + headerOf(r, "oncebus-verdict")
		}
	}
	return found
}

// checkStory compares the verdicts of one part with those expected.
func checkStory(t *testing.T, found map[string]string, part []scene, name string) {
	t.Helper()
	lateTo := map[string]string{"dead": "dead-letter late", "pass": "unique late", "drop": ""}
	for _, route := range []string{"dead", "pass", "drop"} {
		for i, s := range part {
			want := map[string]string{
				"unique": "unique unique", "after_window": "unique after_window", "duplicate": "duplicates duplicate",
				"late": lateTo[route], "invalid": "dead-letter invalid",
			}[s.by(route)]
			if got := found[fmt.Sprintf("%s/%s/%d", route, name, i)]; got != want {
				t.Errorf("route %s, %s[%d], event %s at %v (%s): got %q, want %q", route, name, i, s.event, s.at, s.why, got, want)
			}
		}
	}
}

// checkCounts compares the metrics of a process with the part of the story that it judged.
func checkCounts(t *testing.T, s *service, part []scene) {
	t.Helper()
	want := map[string]int{}
	for _, route := range []string{"dead", "pass", "drop"} {
		for _, verdict := range []string{"unique", "duplicate", "after_window", "late", "missing_key", "limited", "invalid", "collision", "in_progress", "replayed", "bypassed"} {
			want[route+"/"+verdict] = 0
		}
		for _, s := range part {
			want[route+"/"+s.by(route)]++
		}
	}
	checkEvents(t, want, s)
	for what := range s.events() {
		if _, ok := want[what]; !ok {
			t.Errorf("oncebus_events_total has %s", what)
		}
	}
}

// TestRealWindows: only event time determines the verdicts at the edges of a window.
// They are the same after a pause with a backlog, and in another app that reads the
// whole input later.
func TestRealWindows(t *testing.T) {
	t.Parallel()
	w := newWorld(t, strings.ReplaceAll(windowRoutes, "RAW", "APP"))
	w.createTopics([]string{"message.timestamp.after.max.ms=9223372036854775807"}, "raw")
	outputs := []string{"unique", "duplicates", "dead-letter"}
	l := newLedger()
	l.asks = true
	start := time.Now().Add(-5 * time.Hour).Truncate(time.Millisecond)
	// One task, so that one stream time applies to the whole story.
	settings := []string{"PARTITIONS=1"}

	s := w.start("a", settings...)
	s.awaitReady()
	play(w, l, start, beforeThePause, "before")
	w.drained([]string{"raw"}, outputs)
	checkCounts(t, s, beforeThePause)
	s.stop()
	play(w, l, start, afterThePause, "after")
	s = w.start("a", settings...)
	s.awaitReady()
	w.drained([]string{"raw"}, outputs)
	checkCounts(t, s, afterThePause)
	found := w.verdicts(l)
	checkStory(t, found, beforeThePause, "before")
	checkStory(t, found, afterThePause, "after")
	checkOrder(t, slices.DeleteFunc(w.output("unique"), func(r *kgo.Record) bool {
		v := headerOf(r, "oncebus-verdict")
		return headerOf(r, "oncebus-route") != "dead" || v != "unique" && v != "after_window"
	}), func(r *kgo.Record) int64 { return r.Timestamp.UnixMilli() })
	s.stop()

	// Another app reads the same input.
	replay := newWorld(t, strings.ReplaceAll(windowRoutes, "RAW", w.app))
	s = replay.start("a", settings...)
	s.awaitReady()
	replay.drainedFrom([]string{w.topic("raw")}, replay.topicsOf(outputs))
	again := replay.verdicts(l)
	for _, event := range l.events {
		if again[event] != found[event] {
			t.Errorf("record %s got %q, and %q in the second app", event, found[event], again[event])
		}
	}
	s.stop()
}
