package processor_test

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/processor/app"
	"oncebus/processor/oracle"
	"oncebus/processor/wire"
)

// This file checks what an app has emitted after its partitions have lost something.

// account compares the output and the dead letters of each partition with what was sent.
func (l *losses) account() {
	l.t.Helper()
	emitted, dead := l.countOf("signals.unique"), l.countOf("dead")
	for p, c := range l.all {
		for _, name := range eventNames {
			for n, id := range l.ids[name][p] {
				if wrong := l.judgeEvent(p, name, n, emitted["k-"+id], dead["k-"+id]); wrong != "" {
					l.t.Errorf("%+v, decided %v: event %d of %s %s; emitted %d times, %d dead letters", c, l.decisionsOf(p), n, name, wrong, emitted["k-"+id], dead["k-"+id])
				}
			}
		}
	}
}

// judgeEvent says what is wrong with the numbers of times that an event was emitted and became a dead letter, or ""
// if nothing is wrong. The records of a and b were sent twice.
func (l *losses) judgeEvent(p int, name string, n, emitted, dead int) string {
	c := l.all[p]
	unread := name == "c"
	switch deleted := unread && (c.input == "recreated" || c.input == "cut" && n == 0); {
	case emitted > 1:
		return "was emitted twice"
	case deleted && emitted+dead > 0:
		return "was emitted after it had been deleted"
	case deleted, unread && n < aheadOffset-next && l.skips(p):
		return "" // the refusal said so
	case c.stateProblem() == "" && (emitted != 1 || dead != 0):
		return "must be emitted once"
	case emitted+dead == 0:
		return "is missing"
	}
	return ""
}

// skips reports whether, after the decisions on it, a partition goes on at the offset that the group was set ahead
// to.
func (l *losses) skips(p int) bool {
	c := l.all[p]
	if c.group != "ahead" || c.input == "recreated" {
		return false
	}
	if l.kind.routed {
		return l.wayOf(fmt.Sprint("signals.raw/", p)) == app.FromGroup
	}
	return c.nextAfter(l.wayOf(fmt.Sprint(l.kind.task, "/", p))) == aheadOffset
}

// wayOf returns the way of the first decision on topic/partition, or "" without a decision.
func (l *losses) wayOf(name string) app.Way {
	if all := l.decided[name]; len(all) > 0 {
		return all[0].way
	}
	return ""
}

// decisionsOf names the decisions on a partition and its task.
func (l *losses) decisionsOf(p int) (all []string) {
	names := []string{fmt.Sprint("signals.raw/", p)}
	if l.kind.routed {
		names = append(names, fmt.Sprint(l.kind.task, "/", p))
	}
	for _, name := range names {
		for _, d := range l.decided[name] {
			all = append(all, fmt.Sprintf("%s %s: %s", name, d.refusal.Problem, d.way.Flag()))
		}
	}
	return all
}

// countOf counts the records of a topic by record key.
func (l *losses) countOf(topic string) map[string]int {
	counts := map[string]int{}
	for id, records := range l.seen {
		for _, r := range records {
			if id.Topic == topic {
				counts[string(r.Key)]++
			}
		}
	}
	return counts
}

// judge lets the oracle judge the whole history of each partition that went on exactly: without a decision, or after
// a decision that states only which records had been deleted.
func (l *losses) judge(i *instance) {
	l.t.Helper()
	manifest := i.App().Manifest
	judged := 0
	for p, c := range l.all {
		if !l.exact(p) {
			continue
		}
		judged++
		cfg := oracle.Config{
			Repartition: l.kind.task, Changelog: l.kind.changelog, Partitions: int32(len(l.all)),
			Topics: map[string]uint16{"signals.raw": manifest.TopicNumber("signals.raw")},
			Routes: []oracle.Route{{
				Name: "signals", NamespaceID: manifest.NamespaceID("signals"), Window: i.App().Routes[0].Span.Size, Grace: i.App().Routes[0].Span.Grace,
				Skew: i.App().Routes[0].Span.Skew, Output: "signals.unique", DeadLetter: "dead", Duplicates: oracle.Drop, Late: oracle.DeadLetter,
			}},
		}
		if l.kind.task == "app-repartition" {
			cfg.Sources = i.App().Sources
		}
		_, violations := oracle.Check(cfg, l.history(i, int32(p)))
		for _, v := range violations {
			l.t.Errorf("%+v, decided %v: %v", c, l.decisionsOf(p), v)
		}
	}
	if judged == 0 && l.all[0].changelog != "recreated" && l.all[0].input != "recreated" {
		l.t.Error("the oracle has judged nothing")
	}
}

// exact reports whether the state of a partition is known and all of its existing records were routed once.
func (l *losses) exact(p int) bool {
	c := l.all[p]
	if c.stateProblem() != "" || c.input == "recreated" {
		return false
	}
	start := int64(0)
	if c.input == "cut" {
		start = cutTo
	}
	switch l.wayOf(fmt.Sprint("signals.raw/", p)) {
	case app.FromStart:
		return start >= next
	case app.FromGroup:
		return false
	}
	return true
}

// history returns what the test observed of a partition.
func (l *losses) history(i *instance, partition int32) *oracle.History {
	h := &oracle.History{Live: map[string][]oracle.Record{}}
	if l.all[partition].changelog != "whole" {
		h.Cut = append(h.Cut, fmt.Sprint(l.kind.changelog, "/", partition))
	}
	if l.all[partition].input == "cut" && !l.kind.routed {
		h.Cut = append(h.Cut, fmt.Sprint(l.kind.task, "/", partition))
	}
	keys := map[string]bool{}
	for _, r := range l.sent {
		if c := l.all[r.Partition]; r.Partition != partition || c.input == "cut" && r.Offset == next {
			continue
		}
		keys[string(r.Key)] = true
		h.Sent = append(h.Sent, oracle.Sent{Record: recordOf(r), Route: "signals", ID: string(r.Key[2:])})
		if !l.kind.routed {
			h.Live[l.kind.task] = append(h.Live[l.kind.task], recordOf(enveloped(i, r)))
		}
	}
	for id, records := range l.seen {
		for _, offset := range slices.Sorted(maps.Keys(records)) {
			r := records[offset]
			of := id.Partition == partition
			if id.Topic == "signals.unique" || id.Topic == "dead" {
				of = keys[string(r.Key)]
			}
			if of {
				h.Live[id.Topic] = append(h.Live[id.Topic], recordOf(r))
			}
		}
	}
	return h
}

// enveloped returns a record of a prepartitioned topic with the envelope that it would have in the repartition topic,
// because the oracle reads the envelope.
func enveloped(i *instance, r *kgo.Record) *kgo.Record {
	key := sha256.Sum256(r.Key[2:])
	at := dedup.Position{Topic: i.App().Manifest.TopicNumber(r.Topic), Partition: r.Partition, Offset: r.Offset}
	env := wire.Envelope{Route: []byte("signals"), Digest: i.App().Routes[0].OfKey(key)[0].Digest, Key: key, EventTime: r.Timestamp.UnixMilli(), Timestamp: r.Timestamp.UnixMilli(), From: at, RecordKey: r.Key}
	wrapped := *r
	wrapped.Key = env.Append(nil)
	return &wrapped
}

func recordOf(r *kgo.Record) oracle.Record {
	o := oracle.Record{Topic: r.Topic, Partition: r.Partition, Offset: r.Offset, Timestamp: r.Timestamp.UnixMilli(), Key: r.Key, Value: r.Value}
	for _, h := range r.Headers {
		o.Headers = append(o.Headers, oracle.Header{Key: h.Key, Value: h.Value})
	}
	return o
}
