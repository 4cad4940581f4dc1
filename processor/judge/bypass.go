package judge

import (
	"fmt"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/kafka"
)

// turn says what happens to an event of an input, apart from its verdict.
type turn uint8

const (
	// turnFresh: it is judged.
	turnFresh turn = iota
	// turnUnchecked: the store cannot be used, and the route fails open.
	turnUnchecked
	// turnWaits: the store cannot be used. The event is judged after the restore,
	// or has been forwarded unchecked already.
	turnWaits
	// turnKnown: it was forwarded unchecked. It is stored and not emitted again.
	turnKnown
	// turnDone: it became a dead letter during the bypass.
	turnDone
)

// turnOf is the one place that asks whether the store can be used and whether a
// route fails open.
func (t *Judge) turnOf(route *app.Route, offset int64) turn {
	bypassed := offset < t.Open.BypassedTo(route.NamespaceID)
	switch {
	case t.Blind && (bypassed || !route.FailOpen):
		return turnWaits
	case t.Blind:
		return turnUnchecked
	case bypassed && t.Open.IsDeadLettered(offset):
		return turnDone
	case bypassed:
		return turnKnown
	}
	return turnFresh
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
		j.reply(ev.route, &reply{
			verdict: ev.verdict, status: ev.verdict.String(), row: &row, claim: &dedup.Claim{Key: *ev.key}, to: ev.requester(), present: ev.brokerTime,
		})
	}
}

// storeForwarded stores an event that was forwarded unchecked, so that its later
// duplicates are recognised.
func (t *Judge) storeForwarded(j *Judging, ev *event, c *candidate) error {
	if ev.route.Mode == rules.ClaimMode {
		return t.storeForwardedClaim(j, ev, c)
	}
	verdict, row := dedup.Decide(c.event, c.prior, c.held, ev.route.Span, c.streamTime)
	if verdict != dedup.Unique && verdict != dedup.AfterWindow || t.overLimit(ev.route, c) {
		return nil
	}
	t.put(j, &change{row: &row, replaced: c.replaced})
	return nil
}

func (t *Judge) storeForwardedClaim(j *Judging, ev *event, c *candidate) error {
	d, err := dedup.DecideForwardedClaim(t.claimEvent(ev, &c.event), c.prior, c.held, ev.route.Span, c.streamTime)
	if err != nil {
		return fmt.Errorf("%w: %w", kafka.ErrIllegalState, err)
	}
	if !d.Write || !t.fits(&d.Row) || t.overLimit(ev.route, c) {
		return nil
	}
	t.put(j, &change{row: &d.Row, replaced: c.replaced, left: d.Carried, joined: d.Carried + d.Added})
	return nil
}
