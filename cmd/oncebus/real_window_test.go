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

// windowRoutes make every verdict visible: copies in a topic of their own, and one route for each policy for late events.
const windowRoutes = `
routes:
  - name: dead
    topics: [RAW.raw]
    match: {field: route, in: [dead]}
    key: [{field: id}]
    window: 1h
    grace: 10m
    output: APP.unique
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
    duplicates: {to: APP.duplicates}
    on_late: drop
    on_future: clamp
    dead_letter: APP.dead-letter
`

// sighting is one record of the story told to each of the window routes.
type sighting struct {
	event   string
	at      time.Duration // event time, from the story's start
	verdict string
	why     string
	clamped string // the verdict where the far future is clamped, if another; or untold
}

// untold marks a sighting that the story of a clamping route leaves out: it would move its stream time.
const untold = "untold"

const year = 365 * 24 * time.Hour

// beforeThePause and afterThePause are one story in two parts. Window 1 h, grace 10 m, so late means more than 70 min behind
// stream time, which stands in the comments where it moves.
var (
	beforeThePause = []sighting{
		{"a", 0, "unique", "first sighting", ""},                                                                   // 0
		{"a", 30 * time.Minute, "duplicate", "inside the window", ""},                                              // 30 m
		{"a", time.Hour, "duplicate", "at the window's edge", ""},                                                  // 1 h
		{"a", time.Hour + time.Millisecond, "after_window", "right behind the edge: let through, starts anew", ""}, // 1 h 1 ms
		{"a", 2*time.Hour + time.Millisecond, "duplicate", "at the edge of the window that started anew", ""},      // 2 h 1 ms
		{"b", 2 * time.Hour, "unique", "first sighting", ""},
		{"b", time.Hour, "duplicate", "before the first by event time, at the window's other edge", ""},
		{"b", time.Hour - time.Millisecond, "late", "before the first by more than the window", ""},
		{"c", 50*time.Minute + time.Millisecond, "unique", "at the edge of what can be judged", ""},
		{"d", 50 * time.Minute, "late", "a millisecond older than what can be judged", ""},
		{"d", 90 * time.Minute, "unique", "a late record leaves no trace: this is the first sighting", ""},
		{"x", year, "invalid", "a year ahead", untold},
		{"b", 2*time.Hour + 2*time.Millisecond, "duplicate", "the far future expired nothing", ""}, // 2 h 2 ms
		{"e", 51 * time.Minute, "unique", "the far future made nothing late", ""},
	}
	afterThePause = []sighting{
		{"b", 2*time.Hour + 3*time.Millisecond, "duplicate", "seen before the pause, inside the window", ""}, // 2 h 3 ms
		{"e", 52 * time.Minute, "duplicate", "seen before the pause, though old by any wall clock", ""},
		{"f", 50 * time.Minute, "late", "stream time was kept over the pause", ""},
		{"f", 2*time.Hour + 30*time.Minute, "unique", "first sighting", ""},                                   // 2 h 30 m
		{"b", 3*time.Hour + time.Millisecond, "after_window", "behind the window of the sighting at 2 h", ""}, // 3 h 1 ms
		{"f", 3 * time.Hour, "duplicate", "inside the window", ""},
		{"y", year, "invalid", "a year ahead; clamped: the present and an hour", "unique"},
		{"y", year + time.Minute, "invalid", "a year ahead; clamped: the present, an instant later, and an hour", "duplicate"},
		{"g", 3 * time.Hour, "unique", "first sighting; clamped: hours behind the present", "late"},
	}
)

// by returns the verdict of a route.
func (s sighting) by(route string) string {
	if route == "drop" && s.clamped != "" {
		return s.clamped
	}
	return s.verdict
}

// tell produces the story's part to every route, in order on one partition, and enters every record as an event of its own.
func tell(w *world, l *ledger, start time.Time, part []sighting, name string) {
	w.t.Helper()
	var records []*kgo.Record
	for _, route := range []string{"dead", "pass", "drop"} {
		for i, s := range part {
			if s.by(route) == untold {
				continue
			}
			r := &kgo.Record{
				Topic: w.topic("raw"), Partition: 0, Key: []byte(s.event), Timestamp: start.Add(s.at),
				Value: fmt.Appendf(nil, `{"route":%q,"id":%q}`, route, s.event),
			}
			records = append(records, l.add(fmt.Sprintf("%s/%s/%d", route, name, i), r))
		}
	}
	w.produce(records...)
}

// verdicts finds for every record of the story where it came out, as "topic verdict".
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
				w.t.Errorf("record %s came out twice, the second time at %s", event, at(r))
			}
			found[event] = topic + " " + headerOf(r, "oncebus-verdict")
		}
	}
	return found
}

// checkStory compares the verdicts of one part with the story's.
func checkStory(t *testing.T, found map[string]string, part []sighting, name string) {
	t.Helper()
	lateTo := map[string]string{"dead": "dead-letter late", "pass": "unique late", "drop": ""}
	for _, route := range []string{"dead", "pass", "drop"} {
		for i, s := range part {
			if s.by(route) == untold {
				continue
			}
			want := map[string]string{
				"unique": "unique unique", "after_window": "unique after_window", "duplicate": "duplicates duplicate",
				"late": lateTo[route], "invalid": "dead-letter invalid",
			}[s.by(route)]
			if got := found[fmt.Sprintf("%s/%s/%d", route, name, i)]; got != want {
				t.Errorf("route %s, %s[%d], event %s at %v (%s): came out as %q, want %q", route, name, i, s.event, s.at, s.why, got, want)
			}
		}
	}
}

// checkCounts compares what a process counted with the part of the story that it judged.
func checkCounts(t *testing.T, s *service, part []sighting) {
	t.Helper()
	want := map[string]int{}
	for _, route := range []string{"dead", "pass", "drop"} {
		for _, verdict := range []string{"unique", "duplicate", "after_window", "late", "missing_key", "limited", "invalid", "collision", "in_progress", "replayed", "bypassed"} {
			want[route+"/"+verdict] = 0
		}
		for _, s := range part {
			if v := s.by(route); v != untold {
				want[route+"/"+v]++
			}
		}
	}
	checkEvents(t, want, s)
	for what := range s.events() {
		if _, ok := want[what]; !ok {
			t.Errorf("oncebus_events_total has %s", what)
		}
	}
}

// The story of a window and its edges comes out the same for each policy for late events, over a pause in which the process is
// away and a backlog builds up, and once more when another app reads all of it from the start: event time decides, no clock.
func TestRealWindows(t *testing.T) {
	t.Parallel()
	w := newWorld(t, strings.ReplaceAll(windowRoutes, "RAW", "APP"))
	w.createTopics([]string{"message.timestamp.after.max.ms=9223372036854775807"}, "raw")
	outputs := []string{"unique", "duplicates", "dead-letter"}
	l := newLedger()
	start := time.Now().Add(-5 * time.Hour).Truncate(time.Millisecond)
	// One task, so that one stream time sees the whole story.
	settings := []string{"PARTITIONS=1"}

	s := w.start("a", settings...)
	s.awaitReady()
	tell(w, l, start, beforeThePause, "before")
	w.drained([]string{"raw"}, outputs)
	checkCounts(t, s, beforeThePause)
	s.stop()
	tell(w, l, start, afterThePause, "after")
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

	// The same input read by an app that has seen none of it.
	replay := newWorld(t, strings.ReplaceAll(windowRoutes, "RAW", w.app))
	s = replay.start("a", settings...)
	s.awaitReady()
	replay.drainedFrom([]string{w.topic("raw")}, replay.topicsOf(outputs))
	again := replay.verdicts(l)
	for _, event := range l.events {
		if again[event] != found[event] {
			t.Errorf("record %s came out as %q, when replayed as %q", event, found[event], again[event])
		}
	}
	s.stop()
}
