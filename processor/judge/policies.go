package judge

import (
	"fmt"
	"time"

	"oncebus/dedup"
	"oncebus/dedup/rules"
)

// turnAway handles an event without a key, by the route's policy.
func (e *Emitter) turnAway(ev *event, derived *rules.Derived) {
	ev.reason = derived.Reason
	policy := rules.DeadLetter
	ev.verdict = dedup.Invalid
	if derived.Finding == rules.KeyMissing {
		ev.verdict, policy = dedup.MissingKey, ev.route.OnMissingKey
	}
	e.byPolicy(ev, policy)
}

// byPolicy forwards, drops or dead-letters an event that was not judged.
func (e *Emitter) byPolicy(ev *event, policy rules.Policy) {
	switch policy {
	case rules.Forward:
		e.emit(ev, ev.route.Output)
	case rules.Drop:
	case rules.DeadLetter, rules.ToTopic, rules.Clamp:
		e.deadLetter(ev)
	}
	e.conclude(ev)
}

func (t *Judge) applyLatePolicy(j *Judging, ev *event, eventTime, streamTime int64) {
	ev.verdict = dedup.Late
	ev.reason = fmt.Sprintf("event time %d cannot be judged: stream time is %d, window %v, grace %v", eventTime, streamTime, ev.route.Window, ev.route.Grace)
	j.byPolicy(ev, ev.route.OnLate)
}

func (t *Judge) applyDuplicatePolicy(j *Judging, ev *event, eventTime int64) {
	j.conclude(ev)
	var topic string
	switch ev.route.Duplicates.Policy {
	case rules.Forward:
		topic = ev.route.Output
	case rules.ToTopic:
		topic = ev.route.Duplicates.Topic
	case rules.DeadLetter, rules.Drop, rules.Clamp:
		return
	}
	ev.reason = "duplicate " + (time.Duration(eventTime-ev.first.First) * time.Millisecond).String() + " after the first, window " + ev.route.Window.String()
	j.emit(ev, topic)
}
