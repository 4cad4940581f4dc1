package judge

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/app"
)

// TestEventThatGrewTooOldForItsTopic: a broker measures a timestamp against its
// clock when the record arrives, however long the event waited for us before.
func TestEventThatGrewTooOldForItsTopic(t *testing.T) {
	const hour, now = 3_600_000, 1_700_000_000_000
	rt := &app.App{Clock: app.NewBrokerClock()}
	rt.Clock.Set(now)
	rt.Limits.Store(&map[string]app.TopicLimits{
		"bounded":  {MaxBytes: 1000, BeforeMaxMS: hour, AfterMaxMS: hour},
		"open":     {MaxBytes: 1000, BeforeMaxMS: app.Forever, AfterMaxMS: hour},
		"appended": {MaxBytes: 1000, BeforeMaxMS: hour, AfterMaxMS: hour, AppendTime: true},
	})
	e := NewEmitter(rt, nil)
	for _, c := range []struct {
		topic       string
		at, present int64
		refused     string // the setting that does not let it in
		stamp       int64  // of an answer to an event of that present; 0 for the clock's
	}{
		{"bounded", now, now, "", now},
		{"bounded", now - hour/2, now, "", now},
		{"bounded", now - 2*hour, now, "before.max.ms", now},
		{"bounded", now - 2*hour, now - 2*hour, "before.max.ms", 0}, // in time when it was routed
		{"bounded", now - hour/2, now - 2*hour, "after.max.ms", 0},
		{"bounded", now, now + 2*hour, "before.max.ms", now + 2*hour}, // the clock lags behind
		{"bounded", math.MinInt64 / 1_000_000, now, "before.max.ms", now},
		{"open", now - 2*hour, now - 2*hour, "", now - 2*hour},
		{"appended", now - 2*hour, now - 2*hour, "", now - 2*hour},
	} {
		got := e.misfit(&kgo.Record{Topic: c.topic, Timestamp: time.UnixMilli(c.at)}, c.present)
		if !strings.Contains(got, c.refused) || got != "" && c.refused == "" {
			t.Errorf("%s, event of %d at %d: %q, want %q", c.topic, c.at-now, c.present-now, got, c.refused)
		}
		stamp := e.timestamp(c.topic, c.present)
		if c.stamp != 0 && stamp != c.stamp || c.stamp == 0 && (stamp < now || stamp > now+hour) {
			t.Errorf("%s: an answer to an event of %d bears %d", c.topic, c.present-now, stamp-now)
		}
	}
}
