package judge

import (
	"fmt"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/kafka"
)

// turn is what a judge does with an event, apart from its verdict.
type turn uint8

const (
	// turnFresh: judge it.
	turnFresh turn = iota
	// turnUnchecked: forward it unchecked. The store cannot be used, and the route
	// fails open.
	turnUnchecked
	// turnSkip: skip it. The store cannot be used. The event was forwarded unchecked
	// before, or will be judged after the restore.
	turnSkip
	// turnForwarded: store it, do not emit it. It was forwarded unchecked.
	turnForwarded
	// turnDeadLettered: skip it. It became a dead letter during the bypass.
	turnDeadLettered
)

// turnOf returns the turn of a record. No other function of this package compares
// Blind with a route's FailOpen.
func (t *Judge) turnOf(route *app.Route, offset int64) turn {
	bypassed := offset < t.Open.BypassedTo(route.NamespaceID)
	switch {
	case t.Blind && (bypassed || !route.FailOpen):
		return turnSkip
	case t.Blind:
		return turnUnchecked
	case bypassed && t.Open.IsDeadLettered(offset):
		return turnDeadLettered
	case bypassed:
		return turnForwarded
	}
	return turnFresh
}

const bypassedReason = "local state cannot be used: not checked for duplicates"

// forwardUnchecked emits an event without a look-up.
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
			verdict: ev.verdict, status: ev.verdict.String(), row: &row, claim: &dedup.Claim{Key: *ev.key}, to: ev.requester(), brokerTime: ev.brokerTime,
		})
	}
}

// storeForwarded stores an event that was forwarded unchecked, so that its later
// duplicates are recognised.
func (t *Judge) storeForwarded(j *Judging, ev *event, c *candidate) error {
	if ev.route.Mode == rules.ClaimMode {
		return t.storeForwardedClaim(j, ev, c)
	}
	verdict, row := dedup.Decide(c.event, c.prior, c.hasPrior, ev.route.Span, c.streamTime)
	if verdict != dedup.Unique && verdict != dedup.AfterWindow || t.overLimit(ev.route, c) {
		return nil
	}
	t.put(j, &change{row: &row, replaced: c.replaced})
	return nil
}

func (t *Judge) storeForwardedClaim(j *Judging, ev *event, c *candidate) error {
	d, err := dedup.DecideForwardedClaim(t.claimEvent(ev, &c.event), c.prior, c.hasPrior, ev.route.Span, c.streamTime)
	if err != nil {
		return fmt.Errorf("%w: %w", kafka.ErrIllegalState, err)
	}
	if !d.Write || !t.fits(&d.Row) || t.overLimit(ev.route, c) {
		return nil
	}
	t.put(j, &change{row: &d.Row, replaced: c.replaced, left: d.Carried, joined: d.Carried + d.Added})
	return nil
}
