package judge_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/app"
)

// TestFloodsAreSampled: of the lines that each of many events causes some are logged, and the
// log has the number of the others.
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

// claimedAt is when the n-th event claims its key, ms.
func claimedAt(n int) int64 { return 1_700_000_000_000 + int64(n) }
