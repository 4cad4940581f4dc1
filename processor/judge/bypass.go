package judge

import (
	"fmt"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/kafka"
)

// Reasons of events that were forwarded without a claim, and of the replies to their duplicates. Senders see
// these texts.
const (
	offReason       = "the route is switched off (enabled: false): not checked for duplicates"
	bypassedReason  = "local state cannot be used: not checked for duplicates"
	forwardedReason = "an event of the key was forwarded without a claim: no outcome will follow, and sending it again does not execute it again; oncebus forget frees the key"
	keyKeptReason   = "an event of the key was also forwarded without a claim, so it may have been executed: the key is not free; oncebus forget frees it"
)

// passOff forwards an event whose route is switched off, whatever key and time the event has, and
// stores nothing. It reports whether the route is switched off.
func (t *Judge) passOff(j *Judging, ev *event, turn turn) bool {
	if !ev.route.Off {
		return false
	}
	if turn == turnForwarded {
		return true // a bypass has already forwarded the event
	}
	if !j.passOff(ev) && turn == turnUnchecked {
		t.Open.DeadLetter(ev.rec.Offset, ev.rec.Offset+1)
	}
	return true
}

// passOff emits an event whose route is switched off. It reports whether the output topic accepted it.
func (e *Emitter) passOff(ev *event) bool {
	ev.verdict, ev.reason = dedup.Bypassed, offReason
	out := e.emit(ev, ev.route.Output)
	e.conclude(ev)
	if out && ev.route.Mode == rules.ClaimMode {
		e.replyWithoutClaim(ev)
	}
	return out
}

// forwardUnchecked emits an event during a bypass, without looking up its key.
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
			verdict: ev.verdict, status: ev.verdict.String(), row: &row, claim: &dedup.Claim{Key: *ev.dedupKey()}, to: ev.requester(), brokerTime: ev.brokerTime,
		})
	}
}

// storeForwarded stores an event that a bypass forwarded unchecked, so that its later duplicates are
// recognised. It does not emit the event again.
func (t *Judge) storeForwarded(j *Judging, ev *event, c *candidate) error {
	if ev.route.Mode == rules.ClaimMode {
		return t.storeForwardedClaim(j, ev, c)
	}
	verdict, row, err := t.decidePlain(c)
	if err != nil || verdict != dedup.Unique && verdict != dedup.AfterWindow || t.overLimit(ev.route, c) {
		return err
	}
	t.putFirst(j.Emitter, c, &row)
	t.shadow(j, ev, c, true)
	return nil
}

func (t *Judge) storeForwardedClaim(j *Judging, ev *event, c *candidate) error {
	if err := t.writeFound(j.Emitter, c); err != nil {
		return err
	}
	d, err := dedup.DecideForwardedClaim(t.claimEvent(ev, c), c.prior, c.hasPrior, c.window, c.streamTime)
	if err != nil {
		return fmt.Errorf("%w: %w", kafka.ErrIllegalState, err)
	}
	if !d.Write || !t.fits(&d.Row) || t.overLimit(ev.route, c) {
		return nil
	}
	left := t.keepFormer(j.Emitter, ev.route, d.Former)
	t.put(j.Emitter, &change{row: &d.Row, claim: &d.Claim, replaced: c.replaced, left: left})
	return nil
}
