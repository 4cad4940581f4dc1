package judge

import (
	"bytes"
	"fmt"

	"oncebus/dedup"
	"oncebus/processor/kafka"
	"oncebus/processor/wire"
)

// query answers a sender that asks for the outcome of its event. The answer is the verdict that the next
// duplicate of the event would get. A query changes neither a row nor stream time, so it makes no attempt. A
// task that cannot use its store does not answer; the sender then asks again.
func (t *Judge) query(j *Judging, ev *event, env *wire.Envelope) error {
	if t.Blind {
		return nil
	}
	a := wire.VerdictRecord{To: ev.replyTo, Verdict: dedup.Unique, Key: ev.dedupKey(), Status: wire.StatusUnknown, BrokerTime: ev.brokerTime}
	if bytes.Equal(ev.route.WireName, env.Route) { // if not, a promotion has changed the key rule
		if err := t.findOutcome(j, ev, env, &a); err != nil {
			return err
		}
	}
	j.produceVerdict(&a)
	return nil
}

// findOutcome looks up the event's operation, and stores in the answer a what the task knows about the
// operation.
func (t *Judge) findOutcome(j *Judging, ev *event, env *wire.Envelope, a *wire.VerdictRecord) error {
	c := &j.current.candidate
	*c = candidate{streamTime: t.streamTime(ev.route.NamespaceID), window: t.window(ev.route), digest: env.Digest}
	c.event = dedup.Event{Digest: env.Digest, Time: env.EventTime, At: ev.from, NamespaceID: ev.route.NamespaceID, Fingerprint: ev.Fingerprint, Shift: ev.Shift}
	if err := t.lookUp(ev, c); err != nil {
		return err
	}
	row := &c.prior
	switch {
	case !c.hasPrior || row.NamespaceID != ev.route.NamespaceID || !c.window.Retains(row.First, c.streamTime):
		if c.window.Over(env.EventTime, c.streamTime) {
			a.Status = wire.StatusExpired
		}
		return nil
	case row.Status == dedup.Freed:
		a.Status = wire.StatusFreed
		return nil
	case !c.window.Covers(row.First, env.EventTime):
		a.Status = wire.StatusExpired // another operation has the key now
		return nil
	case c.event.Collides(row, c.window, c.streamTime):
		return nil // the row belongs to another event, whose outcome is not for this sender
	}
	claim, err := dedup.DecodeClaim(row.Result)
	if err != nil {
		return fmt.Errorf("%w: claim of key %v: %w", kafka.ErrIllegalState, row.Digest, err)
	}
	found := dedup.ClaimDecision{Row: *row, Claim: claim}
	a.Row, a.Claim, a.Status, a.Verdict = row, &claim, found.Status(), dedup.InProgress
	switch {
	case row.Status == dedup.Completed:
		stored := reply{verdict: dedup.Replayed, claim: &claim, value: claim.Result}
		a.Verdict, a.Value, a.Headers, a.HasOutcome = dedup.Replayed, claim.Result, claim.Headers, true
		a.Reason = stored.omitted(ev.route)
		a.Omitted = a.Reason != ""
	case a.Status == dedup.StatusForwarded:
		a.Verdict, a.Reason = dedup.Duplicate, forwardedReason
	}
	return nil
}
