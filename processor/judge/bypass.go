package judge

import (
	"fmt"
	"slices"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/wire"
)

// skipDuringBypass tells whether the events of a class at this offset are left where
// they are while the task passes events: they wait for the store, or went out.
func (t *Judge) skipDuringBypass(route *app.Route, offset int64) bool {
	return t.Blind && (!route.FailOpen || offset < t.Open.BypassedTo(route.NamespaceID))
}

// wasBypassed reports whether a running task reads an event again that it
// forwarded unchecked or dead-lettered while it bypassed.
func (t *Judge) wasBypassed(class uint8, offset int64) bool {
	return len(t.Open.Bypassed) > 0 && !t.Blind && offset < t.Open.BypassedTo(class)
}

// BypassedUpTo notes that the events of fail-open classes are out up to an offset.
func (t *Judge) BypassedUpTo(offset int64) {
	for _, class := range t.App.FailOpen[t.ID.Topic] {
		at := slices.IndexFunc(t.Open.Bypassed, func(p wire.BypassedOffset) bool { return p.Class == class })
		if at < 0 {
			t.Open.Bypassed = append(t.Open.Bypassed, wire.BypassedOffset{Class: class, To: offset})
			continue
		}
		t.Open.Bypassed[at].To = max(offset, t.Open.Bypassed[at].To)
	}
}

const bypassedReason = "local state cannot be used: not checked for duplicates"

// forwardUnchecked emits an event that could not be looked up.
func (t *Judge) forwardUnchecked(j *Judging, ev *event, decided *dedup.Event) {
	ev.verdict, ev.reason = dedup.Bypassed, bypassedReason
	out := j.emit(ev, ev.route.Output)
	j.conclude(ev)
	switch {
	case !out:
		t.Open.DeadLetter(ev.rec.Offset, ev.rec.Offset+1)
	case ev.route.Mode == rules.ClaimMode:
		row := dedup.Row{Digest: decided.Digest, First: decided.Time, At: ev.from}
		t.reply(j, ev.route, &reply{
			verdict: ev.verdict, status: ev.verdict.String(), row: &row, claim: &dedup.Claim{Key: *ev.key}, to: ev.requester(), present: ev.brokerTime,
		})
	}
}

// storeForwarded records an event that went out unchecked, so that its later copies
// are known.
func (t *Judge) storeForwarded(j *Judging, ev *event, decided *dedup.Event, prior *dedup.Row, held bool, streamTime int64) error {
	if ev.route.Mode == rules.ClaimMode {
		return t.storeForwardedClaim(j, ev, decided, prior, held, streamTime)
	}
	verdict, row := dedup.Decide(*decided, *prior, held, ev.route.Span, streamTime)
	stood := standing(ev.route, prior, held, streamTime)
	if verdict != dedup.Unique && verdict != dedup.AfterWindow || stood == nil && t.overLimit(ev.route) {
		return nil
	}
	t.putRow(j, &row)
	t.OpenCounts.ReplaceRow(&row, stood)
	return nil
}

func (t *Judge) storeForwardedClaim(j *Judging, ev *event, decided *dedup.Event, prior *dedup.Row, held bool, streamTime int64) error {
	c, err := dedup.DecideForwardedClaim(t.claimEvent(ev, decided), *prior, held, ev.route.Span, streamTime)
	if err != nil {
		return fmt.Errorf("%w: %w", kafka.ErrIllegalState, err)
	}
	stood := standing(ev.route, prior, held, streamTime)
	if !c.Write || !t.fits(&c.Row) || stood == nil && t.overLimit(ev.route) {
		return nil
	}
	t.putRow(j, &c.Row)
	t.OpenCounts.ReplaceClaim(&c, stood)
	return nil
}
