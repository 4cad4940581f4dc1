package judge

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/wire"
)

// TestEventThatGrewTooOldForItsTopic protects that the timestamp of an event is checked against the present: a broker
// compares it with its clock when the record arrives, however long the event waited in oncebus before.
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

// TestReplyToABatch protects that the senders of a batch that was not decompressed get one reply, which names the
// first and the last record of the batch, also if the first record is the first of its partition. A batch of outcomes
// has no senders.
func TestReplyToABatch(t *testing.T) {
	route := &app.Route{NameBytes: []byte("ops"), Route: &rules.Route{
		Name: "ops", Mode: rules.ClaimMode, Topics: []string{"ops.raw"}, DeadLetter: "dead",
		Claim: rules.Claims{Outcomes: "ops.outcomes", Replies: "ops.replies"},
	}}
	rt := &app.App{Clock: app.NewBrokerClock(), Routes: []*app.Route{route}, Outcomes: map[string][]*app.Route{"ops.outcomes": {route}}, TopicNumbers: map[string]uint16{"ops.raw": 7}}
	limits := app.TopicLimits{MaxBytes: 1 << 20, BeforeMaxMS: app.Forever, AfterMaxMS: app.Forever}
	rt.Limits.Store(&map[string]app.TopicLimits{"dead": limits, "ops.replies": limits})
	for want, batch := range map[string]kgo.ErrDecompressTooLarge{
		"[dead invalid topic#7/3/10 topic#7/3/12 ops.replies invalid topic#7/3/10 topic#7/3/12]": {Topic: "ops.raw", Offset: 10, NextOffset: 13},
		"[dead invalid topic#7/3/0 topic#7/3/0 ops.replies invalid topic#7/3/0 topic#7/3/0]":     {Topic: "ops.raw", NextOffset: 1},
		"[dead invalid topic#0/3/10 topic#0/3/12]":                                               {Topic: "ops.outcomes", Offset: 10, NextOffset: 13},
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
		batch.Partition = 3
		e.DeadLetterBatch(&batch, 1000, 1<<20)
		if fmt.Sprint(sent) != want {
			t.Errorf("a batch of %s: %v, want %s", batch.Topic, sent, want)
		}
	}
}

// TestConnectHeaders protects that, with the setting, a dead letter has the headers of Kafka Connect after all
// others, whether it has its value or not. Without the setting, and on other records, these headers are absent.
func TestConnectHeaders(t *testing.T) {
	for _, small := range []bool{false, true} {
		for _, on := range []bool{false, true} {
			rt, err := app.Offline("app", 4, nil, connectRoutes(t))
			if err != nil {
				t.Fatal(err)
			}
			rt.ConnectHeaders = on
			var sent []*kgo.Record
			e := NewEmitter(rt, func(r *kgo.Record) error { sent = append(sent, r); return nil })
			ev := event{
				original: original{
					rec: &kgo.Record{Value: []byte("v")}, recordKey: []byte("k"), timestamp: 1_700_000_000_000,
					headers: []kgo.RecordHeader{{Key: wire.HeaderConnectTopic, Value: []byte("theirs")}},
					from:    dedup.Position{Topic: rt.TopicNumbers["raw"], Partition: 2, Offset: 17},
				},
				route: rt.Routes[0], verdict: dedup.MissingKey, reason: "no key", brokerTime: 1_700_000_000_000,
			}
			if small { // then the dead letter is a pointer
				limits := *rt.Limits.Load()
				dead := limits["dead"]
				dead.BeforeMaxMS = 1
				limits["dead"] = dead
				rt.Clock.Set(1_800_000_000_000)
			}
			e.deadLetter(&ev)
			got := map[string]string{}
			for _, h := range sent[0].Headers {
				got[h.Key] = string(h.Value)
			}
			want := map[string]string{
				wire.HeaderConnectTopic: "raw", wire.HeaderConnectPartition: "2", wire.HeaderConnectOffset: "17",
				wire.HeaderConnectException: "oncebus.missing_key", wire.HeaderConnectMessage: ev.reason,
			}
			for name, value := range want {
				if on && got[name] != value || !on && got[name] != "" && got[name] != "theirs" {
					t.Errorf("setting %v, small %v: %s is %q, want %q", on, small, name, got[name], value)
				}
			}
			if last := sent[0].Headers[len(sent[0].Headers)-1].Key; on && last != wire.HeaderConnectMessage {
				t.Errorf("small %v: the last header is %s", small, last)
			}
			if _, pointer := got[wire.HeaderValueHash]; pointer != small {
				t.Errorf("the dead letter is a pointer: %v, want %v", pointer, small)
			}
		}
	}
}

func connectRoutes(t *testing.T) *rules.Routes {
	t.Helper()
	routes, err := rules.ParseRoutes("routes.yaml", []byte("routes: [{name: r, topics: [raw], key: [{field: id}], window: 1h, output: out, dead_letter: dead}]"))
	if err != nil {
		t.Fatal(err)
	}
	return routes
}
