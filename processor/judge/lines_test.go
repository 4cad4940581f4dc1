package judge_test

import (
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/app"
)

// TestFloodsAreSampled protects the log from floods: of the lines that many events cause only some are logged, and
// the log has the number of the others.
func TestFloodsAreSampled(t *testing.T) {
	const events = 300
	for _, c := range []struct {
		line  string
		event func(w *world, n int) string // its value, after the first events
	}{
		{"collision", func(*world, int) string { return `{"id":"key-0","amount":2}` }},
		{"requests answered without an outcome", func(w *world, n int) string { // each evicts a claim
			w.now = claimedAt(n) + (2*time.Hour + 10*time.Minute).Milliseconds() + 1
			return fmt.Sprintf(`{"id":"later-%d"}`, n)
		}},
		{"duplicate after its window", func(w *world, n int) string {
			w.now = claimedAt(n) + (time.Hour + time.Minute).Milliseconds()
			return fmt.Sprintf(`{"id":"key-%d","amount":1}`, n)
		}},
	} {
		t.Run(c.line, func(t *testing.T) {
			w := newWaiters(t, 1, "dead_letter")
			produce := func(value string) {
				w.app.Clock.Set(w.now)
				w.produce(&kgo.Record{Topic: "ops.raw", Timestamp: time.UnixMilli(w.now), Value: []byte(value)})
			}
			for n := range events {
				w.now = claimedAt(n)
				produce(fmt.Sprintf(`{"id":"key-%d","amount":1}`, n))
			}
			for n := range events {
				produce(c.event(w, n))
			}
			w.run()
			w.task(app.TaskID{Topic: w.app.Topology.Repartition}).LogOmitted(true)
			lines := strings.Count(w.logs.String(), "msg=\""+c.line)
			omitted := 0
			for text := range strings.Lines(w.logs.String()) {
				if _, number, found := strings.Cut(text, " omitted="); found {
					n, err := strconv.Atoi(strings.TrimSpace(number))
					must(t, err)
					omitted += n
				}
			}
			if lines == 0 || lines >= events || lines+omitted != events {
				t.Errorf("%d lines logged and %d omitted, of %d:\n%.2000s", lines, omitted, events, w.logs.String())
			}
		})
	}
}

// claimedAt returns when the n-th event claims its key, in ms.
func claimedAt(n int) int64 { return 1_700_000_000_000 + int64(n) }

// TestDuplicatesOfTopicsAreLogged protects that, in plain mode, a duplicate has a log line of the configured level,
// and an event after its window has a line of level info. Of the lines beyond the configured rate the log has the
// number.
func TestDuplicatesOfTopicsAreLogged(t *testing.T) {
	for _, c := range []struct {
		log                     app.DuplicateLog
		duplicates, afterWindow int
	}{
		{app.DuplicateLog{Level: slog.LevelDebug, Max: 2}, 0, 2},
		{app.DuplicateLog{Level: slog.LevelInfo, Max: 2}, 2, 2},
		{app.DuplicateLog{Level: slog.LevelInfo, Max: 100}, 5, 3},
		{app.DuplicateLog{Level: slog.LevelInfo}, 0, 0},
	} {
		w := newAllocWorld(t, "")
		w.app.DuplicateLog = c.log
		task, offset := w.task(app.TaskID{Topic: "prepartitioned.raw"}), int64(0)
		send := func(id string) {
			t.Helper()
			r := &kgo.Record{Topic: "prepartitioned.raw", Offset: offset, Timestamp: time.UnixMilli(w.now), Value: fmt.Appendf(nil, `{"id":%q}`, id)}
			offset++
			must(t, task.Process(w.judging, []*kgo.Record{r}))
		}
		for range 6 {
			send("a")
		}
		send("b")
		send("c")
		w.now += (61 * time.Minute).Milliseconds()
		w.app.Clock.Set(w.now)
		for _, id := range []string{"a", "b", "c"} {
			send(id)
		}
		task.LogOmitted(true)
		text := w.logs.String()
		duplicates, after := strings.Count(text, "msg=duplicate "), strings.Count(text, `msg="duplicate after its window is emitted again"`)
		if duplicates != c.duplicates || after != c.afterWindow {
			t.Errorf("%+v: %d lines for duplicates and %d for events after the window, want %d and %d:\n%s", c.log, duplicates, after, c.duplicates, c.afterWindow, text)
		}
		if duplicates > 0 && !strings.Contains(text, "route=prepartitioned verdict=duplicate key=ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb event=prepartitioned.raw/0/1 first=prepartitioned.raw/0/0 first_time=1700000000000") {
			t.Errorf("a line for a duplicate:\n%s", text)
		}
		if c.duplicates == 2 && !strings.Contains(text, `level=INFO msg="lines omitted" line=duplicate omitted=3`) {
			t.Errorf("no number of the omitted lines:\n%s", text)
		}
	}
}
