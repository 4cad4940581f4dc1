package judge_test

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"oncebus/dedup"
)

// judgedEvent is an event with its verdicts in an interleaving.
type judgedEvent struct {
	*sourceEvent

	verdicts []string
	admitted int64 // its time, but for an event of the future that of the window's limit
	moves    bool  // its source has come to its time
	own      int64 // what its own source had come to before it, longAgo for nothing
	ownHere  int64 // the same, of the events that the same task judges
	others   int64 // what any source had come to when it was stored, if that was no history; with goesOn, by then
}

// is reports whether the event has this verdict and no other.
func (ev *judgedEvent) is(verdict string) bool {
	return len(ev.verdicts) == 1 && ev.verdicts[0] == verdict
}

// mayBeLate reports whether an event lies further behind than window and grace: behind what its own source had
// reached, or behind what all sources had reached when the event was stored. While sources send live, an event that
// is so far behind the others is late if it is read after their events.
func (ev *judgedEvent) mayBeLate(l *sourceLogs) bool {
	return ev.time < max(ev.own, ev.others)-l.window-l.grace
}

// mustBeLate reports whether an event lies further behind than window and grace of an earlier event of its own source
// and task. Such an event is late at any speed of reading.
func (ev *judgedEvent) mustBeLate(l *sourceLogs) bool {
	return ev.admitted < ev.ownHere-l.window-l.grace
}

// scopedKey is a key in its namespace.
type scopedKey struct{ namespace, key int }

// judged returns the events by number. It takes them from the source logs, and takes the broker times from the
// repartition topic, because these decide whether an event is from the future.
func (x *interleaving) judged() []*judgedEvent {
	l := x.logs
	all := make([]*judgedEvent, len(l.events))
	for n, ev := range l.events {
		j := &judgedEvent{sourceEvent: ev, verdicts: x.verdicts[n], admitted: ev.time, own: longAgo, ownHere: longAgo, others: longAgo}
		limit := x.admittedAt[n] + l.skew
		// The clock of a router decides whether the router takes the time of an event for the time of its source.
		if j.moves = ev.time <= limit+2*clockError; ev.time > limit {
			j.admitted = limit
		}
		all[n] = j
	}
	for i := range l.inputs {
		x.setOwn(l.inputs[i].events, all)
	}
	x.setOwn(l.sent, all)
	x.setOthers(all)
	return all
}

// longAgo lies before all times.
const longAgo int64 = math.MinInt64 / 2

// setOwn sets, for each event of a source, what the source had reached before the event.
func (x *interleaving) setOwn(events []*sourceEvent, all []*judgedEvent) {
	type place struct{ namespace, task int }
	own, ownHere := map[int]int64{}, map[place]int64{}
	for _, ev := range events {
		j, at := all[ev.number], place{x.logs.namespace(ev), x.taskOf[ev.number]}
		if front, ok := own[at.namespace]; ok {
			j.own = front
		}
		if front, ok := ownHere[at]; ok {
			j.ownHere = front
		}
		if j.moves {
			own[at.namespace] = max(j.own, ev.time)
		}
		if j.admitted == ev.time {
			ownHere[at] = max(j.ownHere, ev.time)
		}
	}
}

// setOthers sets what all sources had reached when an event was stored, unless the event belongs to the history. If
// time goes on without events, each source counts as having gone on since.
func (x *interleaving) setOthers(all []*judgedEvent) {
	l := x.logs
	since := func(at int64) int64 { // the world began
		if l.goesOn {
			return max(at, worldBegin)
		}
		return 0
	}
	stored := slices.SortedStableFunc(slices.Values(all), func(a, b *judgedEvent) int { return cmp.Compare(a.stored, b.stored) })
	highest := [2]int64{longAgo, longAgo}
	for from := 0; from < len(stored); {
		to := from
		for ; to < len(stored) && stored[to].stored == stored[from].stored; to++ {
			if n := l.namespace(stored[to].sourceEvent); stored[to].moves {
				highest[n] = max(highest[n], stored[to].time-since(stored[to].stored))
			}
		}
		for ; from < to; from++ {
			if stored[from].stored > worldBegin {
				stored[from].others = highest[l.namespace(stored[from].sourceEvent)] + since(stored[from].stored)
			}
		}
	}
}

// check returns the violations of the rules by the verdicts, by the keys of the events.
func (x *interleaving) check() map[scopedKey][]string {
	found := map[scopedKey][]string{}
	keys := map[scopedKey][]*judgedEvent{}
	for _, ev := range x.judged() {
		key := scopedKey{x.logs.namespace(ev.sourceEvent), ev.key}
		keys[key] = append(keys[key], ev)
		if text := x.checkEvent(ev); text != "" {
			found[key] = append(found[key], text)
		}
	}
	for key, events := range keys {
		found[key] = append(found[key], x.checkKey(events)...)
		if len(found[key]) == 0 {
			delete(found, key)
		}
	}
	return found
}

// checkEvent checks the rules for an event alone.
func (x *interleaving) checkEvent(ev *judgedEvent) string {
	isFuture := ev.admitted != ev.time && !x.logs.clamps
	switch {
	case len(ev.verdicts) != 1:
		return fmt.Sprintf("event %d has verdicts %v, want one", ev.number, ev.verdicts)
	case ev.is(dedup.Invalid.String()) != isFuture:
		return fmt.Sprintf("event %d is %s, and it is from the future: %t", ev.number, ev.verdicts[0], isFuture)
	case ev.is(dedup.Late.String()) && !ev.mayBeLate(x.logs):
		return fmt.Sprintf("event %d is late, within window and grace of what its own source had come to", ev.number)
	case !isFuture && ev.mustBeLate(x.logs) && !ev.is(dedup.Late.String()):
		return fmt.Sprintf("event %d is %s, further behind its own source in its task than window and grace", ev.number, ev.verdicts[0])
	}
	return ""
}

// checkKey checks the events of a key.
func (x *interleaving) checkKey(events []*judgedEvent) (found []string) {
	var out []*judgedEvent
	first, last, sure := int64(math.MaxInt64), int64(math.MinInt64), true
	for _, ev := range events {
		if ev.is(cameOut) {
			out = append(out, ev)
		}
		first, last = min(first, ev.admitted), max(last, ev.admitted)
		sure = sure && !ev.mayBeLate(x.logs) && (ev.admitted == ev.time || x.logs.clamps)
	}
	slices.SortStableFunc(out, func(a, b *judgedEvent) int { return cmp.Compare(a.admitted, b.admitted) })
	for n := 1; n < len(out); n++ {
		if out[n].admitted-out[n-1].admitted <= x.logs.window {
			found = append(found, fmt.Sprintf("events %d and %d came out within one window", out[n-1].number, out[n].number))
		}
	}
	for _, ev := range events {
		if ev.is(dedup.Duplicate.String()) && !slices.ContainsFunc(out, func(o *judgedEvent) bool { return max(o.admitted-ev.admitted, ev.admitted-o.admitted) <= x.logs.window }) {
			found = append(found, fmt.Sprintf("event %d is a duplicate, and none came out within a window of it", ev.number))
		}
	}
	if sure && last-first <= x.logs.window && len(out) != 1 {
		found = append(found, fmt.Sprintf("all events lie within one window, and %d came out", len(out)))
	}
	return found
}

// span formats a time as a duration since the begin.
func span(at int64) string {
	if at < longAgo/2 {
		return "none"
	}
	return (time.Duration(at-worldBegin) * time.Millisecond).String()
}

// account describes the violations, with all events of their keys.
func (x *interleaving) account(found map[scopedKey][]string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "window %v, grace %v, skew %v, %d routers, %d tasks\n", time.Duration(x.logs.window)*time.Millisecond,
		time.Duration(x.logs.grace)*time.Millisecond, time.Duration(x.logs.skew)*time.Millisecond, len(x.routers), len(x.tasks))
	judged := x.judged()
	keys := slices.SortedFunc(maps.Keys(found), func(a, b scopedKey) int {
		return cmp.Or(len(found[a])-len(found[b]), a.key-b.key, a.namespace-b.namespace)
	})
	for n, key := range keys {
		if n == 3 {
			fmt.Fprintf(&b, "and %d keys more\n", len(keys)-n)
			break
		}
		fmt.Fprintf(&b, "key %d of namespace %d: %s\n", key.key, key.namespace, strings.Join(found[key], "; "))
		for _, ev := range judged {
			if ev.key != key.key || x.logs.namespace(ev.sourceEvent) != key.namespace {
				continue
			}
			source := "HTTP"
			if ev.source != byHTTP {
				source = x.logs.inputs[ev.source].String()
			}
			fmt.Fprintf(&b, "  event %d of %s: time %s, stored %s, routed %s; its source had come to %s, and all by then to %s: %v\n",
				ev.number, source, span(ev.admitted), span(ev.stored), span(x.admittedAt[ev.number]), span(ev.own), span(ev.others), ev.verdicts)
		}
	}
	for _, k := range x.tasks {
		b.WriteString(k.progress())
	}
	return b.String()
}
