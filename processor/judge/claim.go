package judge

import (
	"fmt"
	"time"

	"oncebus/dedup"
	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/wire"
)

// claim judges an event of claim mode. The first event of a key claims the key and is dispatched to the
// executor; a duplicate gets a reply at once, or waits for the outcome.
func (t *Judge) claim(j *Judging, ev *event, found *candidate) error {
	route, rule := ev.route, ev.route.Rule
	claimed := t.claimEvent(ev, found)
	claimed.Full = rule.Wait > 0 && !t.mayWait(route)
	c := &j.current.claim
	open, err := t.decideWaiting(j, ev, &claimed, found)
	if err != nil {
		return err
	}
	if open == nil {
		if *c, err = dedup.DecideClaim(claimed, found.prior, found.hasPrior, found.window, rule, found.streamTime); err != nil {
			return fmt.Errorf("%w: %w", kafka.ErrIllegalState, err)
		}
	}
	ev.verdict, ev.claimed = c.Verdict, c
	if c.Row.Status == dedup.ClaimInProgress {
		t.leaseBegan(c.Claim.Since, ev.brokerTime) // also for a claim that an earlier build stored
	}
	switch {
	case c.Verdict == dedup.Late:
		j.applyLatePolicy(ev, found)
		return nil // the policy for late events has concluded the event
	case c.Verdict == dedup.Collision:
		t.applyCollisionPolicy(j, ev, &c.Row)
		j.reply(route, &reply{
			verdict: dedup.Collision, status: c.Status(), row: &c.Row, claim: &c.Claim, reason: ev.reason, to: ev.requester(), brokerTime: ev.brokerTime,
		})
		return nil
	case c.Verdict == dedup.AfterWindow && route.RejectsAfterWindow:
		return t.rejectClaim(j, ev, c, found)
	case c.Dispatch:
		if t.overLimit(route, found) {
			t.applyLimitPolicy(j, ev)
			return nil
		}
		if found.isNewKey(c.Verdict) && !t.hasRoom(j, ev) {
			return nil
		}
		if found.collided != nil && !c.LeaseExpired {
			c.Verdict = dedup.Collision
			t.markCollision(j, ev, found.collided)
		}
		if err := t.dispatch(j, ev, c, found); err != nil {
			return err
		}
	case c.Write && (open != nil || t.fitsStarted(&c.Row)):
		t.storeWaiting(j, ev, c, found, open)
	default:
		t.replyToDuplicate(j, ev, c, c.Verdict)
	}
	j.conclude(ev)
	return nil
}

// claimEvent returns the event in the form in which package dedup decides on claims.
func (t *Judge) claimEvent(ev *event, found *candidate) dedup.ClaimEvent {
	key := *ev.dedupKey()
	if found.event.Digest != found.digest {
		key = dedup.CollisionKey(&key, ev.Fingerprint)
	}
	return dedup.ClaimEvent{Event: found.event, Key: key, ReceivedAt: ev.brokerTime, DispatchedAt: t.joinedAt, TaskStartedAt: t.StartedAt, Evidence: t.evidence(ev.route), Request: ev.requester(), Replaces: ev.replaces, AppToken: t.App.TokensNameApp}
}

// storeWaiting stores a duplicate that waits for the outcome, or adds the duplicate to a claim in memory (see
// joining). If the duplicate replaces a request whose client no longer waits, that request gets in_progress.
func (t *Judge) storeWaiting(j *Judging, ev *event, c *dedup.ClaimDecision, found *candidate, open *joining) {
	left := 0
	if c.Replaced != nil {
		left = 1
		gone := reply{verdict: dedup.InProgress, status: c.Row.Status.String(), row: &c.Row, claim: &c.Claim, to: *c.Replaced, brokerTime: ev.brokerTime}
		j.reply(t.App.ClaimRoute(gone.to.Route, ev.route), &gone)
		j.respondWithout(&gone)
	}
	if open != nil {
		t.join(open, c, left)
	} else {
		t.put(j.Emitter, &change{row: &c.Row, claim: &c.Claim, replaced: found.replaced, left: left, joined: 1})
	}
	ev.setOutcomeFollows(c)
}

// replyToDuplicate replies to a duplicate with what the stored claim says.
func (t *Judge) replyToDuplicate(j *Judging, ev *event, c *dedup.ClaimDecision, verdict dedup.Verdict) {
	a := reply{
		verdict: verdict, status: c.Status(), row: &c.Row, claim: &c.Claim,
		to: ev.requester(), value: c.Claim.Result, headers: c.Claim.Headers, brokerTime: ev.brokerTime,
	}
	if verdict == dedup.Duplicate {
		a.reason = forwardedReason
		ev.reason = a.reason // also for the verdict record
	}
	j.reply(ev.route, &a)
}

// rejectAfterWindow turns an event after the window of its key into a duplicate. With adjacent buckets, the row
// whose window is over may be the row of an adjacent key. The judge then knows only that this window is over
// (dedup.Event.Over), and not which event was first, so the event counts as its own first event.
func (ev *event) rejectAfterWindow(c *candidate) {
	if c.replaced == nil {
		c.prior = dedup.Row{Digest: c.event.Digest, First: c.event.Time, At: ev.from}
	}
	ev.verdict, ev.first = dedup.Duplicate, &c.prior
	after := time.Duration(c.event.Time-c.prior.First) * time.Millisecond
	ev.reason = fmt.Sprintf("%v after the first, window %v: refused, because on_after_window is reject", after, ev.route.Window)
}

// rejectClaim replies to an event that came after the window of the key's claim. The reply has no result: the
// result belongs to the earlier operation, and the executor does not run this event's operation.
func (t *Judge) rejectClaim(j *Judging, ev *event, c *dedup.ClaimDecision, found *candidate) error {
	*c = dedup.ClaimDecision{Verdict: dedup.Duplicate}
	a := reply{verdict: dedup.Duplicate, key: ev.dedupKey(), row: &found.prior, to: ev.requester(), brokerTime: ev.brokerTime}
	if ev.claimed = nil; found.replaced != nil {
		claim, err := dedup.DecodeClaim(found.prior.Result)
		if err != nil {
			return fmt.Errorf("%w: claim of key %v: %w", kafka.ErrIllegalState, found.prior.Digest, err)
		}
		c.Row, c.Claim = found.prior, claim
		ev.claimed, a.claim, a.status = c, &c.Claim, c.Status()
	}
	ev.rejectAfterWindow(found)
	a.reason = ev.reason
	j.reply(ev.route, &a)
	j.conclude(ev)
	return nil
}

// dispatch sends an event to the executor and stores its claim. If the row has no room for the request,
// dispatch stores the claim without the request and replies in_progress.
func (t *Judge) dispatch(j *Judging, ev *event, c *dedup.ClaimDecision, found *candidate) error {
	route := ev.route
	if !t.fitsStarted(&c.Row) {
		c.DropRequest()
	}
	if !t.fitsStarted(&c.Row) {
		ev.verdict, ev.reason = dedup.Invalid, t.misfit(&c.Row)
		j.deadLetter(ev)
		return nil
	}
	ev.claim = &c.Row
	ev.token = dedup.TokenOf(&c.Row, t.ID.Partition)
	if c.Claim.AppToken {
		ev.token.App = t.App.TokenApp
	}
	own := ev.dedupKey()
	// The executor gets the key of the claim, not the key of the event. It is the same key for all attempts of
	// the operation, also when an event of an adjacent bucket repeats the operation. And if the operation
	// collides with another event, its claim has another key than that event.
	ev.key = &c.Claim.Key
	out := j.emit(ev, route.Output)
	ev.key = own // the sender's reply has the key of its own event
	if !out {
		return nil
	}
	if found.isNewKey(c.Verdict) {
		ev.turn.addKey()
	}
	if c.Added == 0 {
		t.replyToDuplicate(j, ev, c, dedup.InProgress)
	}
	left := t.keepFormer(j.Emitter, route, c.Former)
	t.put(j.Emitter, &change{row: &c.Row, claim: &c.Claim, replaced: found.replaced, left: left, joined: c.Added})
	ev.setOutcomeFollows(c)
	if c.LeaseExpired {
		if err := t.announceTakeover(j, ev, found, c.Row.Attempt); err != nil {
			return err
		}
		j.count(route, leaseExpirations)
		if t.mayLog(lineLeaseExpired) {
			t.Log.Warn("lease expired without an outcome, dispatching again: executor died, or lease too short",
				"route", route.Name, "key", wire.KeyText(&c.Claim.Key), "attempt", c.Row.Attempt, "lease", route.Claim.Lease)
		}
	}
	if c.Verdict == dedup.AfterWindow && t.mayLog(lineAfterWindow) {
		t.Log.Info("duplicate after its window is dispatched again", "route", route.Name, "key", wire.KeyText(ev.dedupKey()), "attempt", c.Row.Attempt)
	}
	return nil
}

// fits reports whether the changelog accepts the row of a claim. If the broker refused the row, the transaction
// would abort, and again at every further attempt.
func (t *Judge) fits(row *dedup.Row) bool {
	return t.fitsBytes(len(row.Result))
}

// fitsStarted reports whether the changelog accepts the row of a claim in progress, and would still
// accept it when the executor's start id is added.
func (t *Judge) fitsStarted(row *dedup.Row) bool {
	return t.fitsBytes(len(row.Result) + startBytes)
}

// fitsBytes reports whether the changelog accepts a row whose encoded claim has that many bytes.
func (t *Judge) fitsBytes(claim int) bool {
	return claim <= dedup.MaxResultBytes && rowBytes(claim) <= int(t.App.Limit(t.Changelog).MaxBytes)
}

// startBytes is the largest number of bytes that a start id adds to a row.
const startBytes = 2 + dedup.StartIDMax

// rowBytes returns how much of the changelog's max.message.bytes a row needs: the encoded claim, plus
// all other fields at their longest. A row that fits therefore still fits with fewer requests, with
// another status or attempt, and with its result omitted.
func rowBytes(claim int) int {
	return wire.RecordOverhead + len(dedup.Digest{}) + rowBytesMax + claim
}

// rowBytesMax is an upper bound for the longest row without its claim, plus the length and digest that
// stand for an omitted result.
const rowBytesMax = 80

// misfit returns why the changelog does not accept the row.
func (t *Judge) misfit(row *dedup.Row) string {
	limits := t.App.Limit(t.Changelog)
	return fmt.Sprintf(wire.ReasonTooLarge+"%s: the claim takes %d bytes, %s is %d", t.Changelog, rowBytes(len(row.Result)), limits.BytesSetting, limits.MaxBytes)
}

// requester returns the request to which the outcome of the event goes.
func (ev *event) requester() dedup.Request {
	r := dedup.Request{At: ev.from, Key: ev.recordKey}
	if ev.Request != "" {
		r.ID = []byte(ev.Request)
	}
	if ev.route.Shared {
		r.Route = ev.route.NameBytes
	}
	h := ev.route.HTTP
	if ev.route.AwaitsOutcomes() {
		r.ReplyTo = ev.replyTo
		if h != nil && h.LongestWait() > 0 && r.ReplyTo.IsSet() {
			r.Until = ev.brokerTime + h.LongestWait().Milliseconds()
		}
	}
	return r
}

// outcome applies the outcome that an executor reported for a claim, or answers the executor's
// question.
func (t *Judge) outcome(j *Judging, ev *event, read *wire.OutcomeEnvelope) error {
	route := ev.route
	o := dedup.Outcome{Kind: read.Kind, Token: read.Token, Value: ev.rec.Value, StartID: read.StartID, ReceivedAt: ev.brokerTime}
	for i := range ev.headers {
		if !wire.IsReserved(ev.headers[i].Key) {
			o.Headers = append(o.Headers, dedup.Header{Key: ev.headers[i].Key, Value: ev.headers[i].Value})
		}
	}
	prior, s, err := t.applyOutcome(j.Emitter, route, &o)
	route = t.App.ClaimRoute(s.Claim.Route, route)
	ev.route = route
	switch {
	case err != nil:
		return err
	case o.Kind.Asks():
		t.answer(j, ev, read, &prior, &s)
		return nil
	case s.Repeated:
		j.countOutcome(route, o.Kind, outcomeRepeated)
		return nil
	case s.Refused != "":
		result := outcomeRefused
		if s.Conflicting {
			result = outcomeConflicting
		}
		j.countOutcome(route, o.Kind, result)
		ev.verdict, ev.reason, ev.outcomeHeaders = dedup.Invalid, wire.ReasonOutcome+s.Refused, read.Headers()
		if s.Row.Attempt > 0 {
			ev.first = &s.Row
		}
		if s.Row.HasResult {
			ev.key = &s.Claim.Key
		}
		j.deadLetter(ev)
		return nil
	}
	t.storeOutcome(j, route, &o, &prior, &s, ev.brokerTime)
	return nil
}

// storeOutcome stores what an outcome changes, and replies to the requests that waited for the outcome.
func (t *Judge) storeOutcome(j *Judging, route *app.Route, o *dedup.Outcome, prior *dedup.Row, s *dedup.OutcomeDecision, brokerTime int64) {
	t.put(j.Emitter, &change{row: &s.Row, claim: &s.Claim, replaced: prior, left: len(s.Recipients)})
	j.countOutcome(route, o.Kind, outcomeApplied)
	if o.Kind == dedup.OutcomeForget && prior.Status != dedup.Completed && !s.Claim.Forwarded() {
		t.announce(j, route, prior, &s.Claim, s.Row.Attempt, "the attempt was erased", brokerTime)
	}
	for i := range s.Recipients {
		verdict := dedup.Replayed
		if s.Recipients[i].At == s.Claim.Maker(prior.At) {
			verdict = dedup.Unique
		}
		answer := reply{
			verdict: verdict, status: o.Kind.ClaimStatus(), row: prior, claim: &s.Claim,
			to: s.Recipients[i], value: o.Value, headers: o.Headers, brokerTime: brokerTime,
		}
		if s.KeyKept {
			answer.status, answer.reason = dedup.StatusForwarded, keyKeptReason
		}
		requested := t.App.ClaimRoute(answer.to.Route, route)
		j.reply(requested, &answer)
		j.respondWithOutcome(requested, &answer)
	}
}

// applyOutcome decides on an outcome by the stored row of its claim. It omits a result that is too
// large for the changelog.
func (t *Judge) applyOutcome(e *Emitter, route *app.Route, o *dedup.Outcome) (prior dedup.Row, s dedup.OutcomeDecision, err error) {
	prior, held, err := t.rowOf(e, route, &o.Token)
	if err != nil {
		return prior, s, err
	}
	s, err = dedup.ApplyOutcome(o, prior, held, t.window(route), route.Rule, t.streamTime(route.NamespaceID))
	if err != nil {
		return prior, s, fmt.Errorf("%w: %w", kafka.ErrIllegalState, err)
	}
	if s.Refused == "" && !t.fits(&s.Row) {
		if o.Kind == dedup.OutcomeCompleted {
			s.OmitResult()
		}
		if !t.fits(&s.Row) { // the row was stored while max.message.bytes was higher
			s.Refused = t.misfit(&s.Row)
		}
	}
	return prior, s, nil
}
