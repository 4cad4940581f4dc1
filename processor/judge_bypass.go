package processor

import (
	"fmt"
	"slices"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/wire"
)

// leaves tells whether the events of a class at this offset are left where
// they are while the task passes events: they wait for the store, or went out.
func (t *judge) leaves(route *app.Route, offset int64) bool {
	return t.blind && (!route.FailOpen || offset < t.open.BypassedTo(route.Class))
}

// passedBefore tells whether a running task meets an event that went out
// unchecked, or is withheld.
func (t *judge) passedBefore(class uint8, offset int64) bool {
	return len(t.open.Bypassed) > 0 && !t.blind && offset < t.open.BypassedTo(class)
}

// passedUpTo notes that the events of fail-open classes are out up to an offset.
func (t *judge) passedUpTo(offset int64) {
	for _, class := range t.rt.FailOpen[t.id.Topic] {
		at := slices.IndexFunc(t.open.Bypassed, func(p wire.BypassedOffset) bool { return p.Class == class })
		if at < 0 {
			t.open.Bypassed = append(t.open.Bypassed, wire.BypassedOffset{Class: class, To: offset})
			continue
		}
		t.open.Bypassed[at].To = max(offset, t.open.Bypassed[at].To)
	}
}

const bypassedReason = "local state cannot be used: not checked for duplicates"

// pass emits an event that could not be looked up.
func (t *judge) pass(j *judging, ev *event, decided *dedup.Event) {
	ev.verdict, ev.reason = dedup.Bypassed, bypassedReason
	out := j.emit(ev, ev.route.Output)
	j.conclude(ev)
	switch {
	case !out:
		t.open.DeadLetter(ev.rec.Offset, ev.rec.Offset+1)
	case ev.route.Mode == rules.ClaimMode:
		row := dedup.Row{Digest: decided.Digest, First: decided.Time, At: ev.from}
		t.answer(j, ev.route, &reply{
			verdict: ev.verdict, status: ev.verdict.String(), row: &row, claim: &dedup.Claim{Key: *ev.key}, to: ev.requester(), present: ev.present,
		})
	}
}

// remember records an event that went out unchecked, so that its later copies
// are known.
func (t *judge) remember(j *judging, ev *event, decided *dedup.Event, prior *dedup.Row, held bool, streamTime int64) error {
	if ev.route.Mode == rules.ClaimMode {
		return t.rememberClaim(j, ev, decided, prior, held, streamTime)
	}
	verdict, row := dedup.Decide(*decided, *prior, held, ev.route.Span, streamTime)
	stood := standing(ev.route, prior, held, streamTime)
	if verdict != dedup.Unique && verdict != dedup.AfterWindow || stood == nil && t.overLimit(ev.route) {
		return nil
	}
	t.record(j, &row)
	t.openCounts.ReplaceRow(&row, stood)
	return nil
}

func (t *judge) rememberClaim(j *judging, ev *event, decided *dedup.Event, prior *dedup.Row, held bool, streamTime int64) error {
	c, err := dedup.RememberClaim(t.claimEvent(ev, decided), *prior, held, ev.route.Span, streamTime)
	if err != nil {
		return fmt.Errorf("%w: %w", kafka.ErrIllegalState, err)
	}
	stood := standing(ev.route, prior, held, streamTime)
	if !c.Write || !t.fits(&c.Row) || stood == nil && t.overLimit(ev.route) {
		return nil
	}
	t.record(j, &c.Row)
	t.openCounts.ReplaceClaim(&c, stood)
	return nil
}
