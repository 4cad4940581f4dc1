package judge

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/wire"
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

// TestReplyToABatch: the senders of a batch that was not decompressed get one reply, which
// names its first and its last record. A batch of outcomes has no senders.
func TestReplyToABatch(t *testing.T) {
	route := &app.Route{NameBytes: []byte("ops"), Route: &rules.Route{
		Name: "ops", Mode: rules.ClaimMode, Topics: []string{"ops.raw"}, DeadLetter: "dead",
		Claim: rules.Claims{Outcomes: "ops.outcomes", Replies: "ops.replies"},
	}}
	rt := &app.App{Clock: app.NewBrokerClock(), Routes: []*app.Route{route}, Outcomes: map[string][]*app.Route{"ops.outcomes": {route}}, TopicNumbers: map[string]uint16{"ops.raw": 7}}
	limits := app.TopicLimits{MaxBytes: 1 << 20, BeforeMaxMS: app.Forever, AfterMaxMS: app.Forever}
	rt.Limits.Store(&map[string]app.TopicLimits{"dead": limits, "ops.replies": limits})
	for topic, want := range map[string]string{
		"ops.raw":      "[dead invalid topic#7/3/10 topic#7/3/12 ops.replies invalid topic#7/3/10 topic#7/3/12]",
		"ops.outcomes": "[dead invalid topic#0/3/10 topic#0/3/12]",
	} {
		var sent []string
		e := NewEmitter(rt, func(r *kgo.Record) error {
			headers := wire.Headers(r.Headers)
			sent = append(sent, r.Topic)
			for _, name := range []string{wire.HeaderVerdict, wire.HeaderSource, wire.HeaderBatchLast} {
				value, _ := headers.Header(name)
				sent = append(sent, string(value))
			}
			return nil
		})
		e.DeadLetterBatch(&kgo.ErrDecompressTooLarge{Topic: topic, Partition: 3, Offset: 10, NextOffset: 13}, 1000, 1<<20)
		if fmt.Sprint(sent) != want {
			t.Errorf("a batch of %s: %v, want %s", topic, sent, want)
		}
	}
}
