package judge

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/wire"
)

// claim judges an event of claim mode. The first claims the key and is
// dispatched; a duplicate gets a reply, or waits for the outcome.
func (t *Judge) claim(j *Judging, ev *event, against *candidate) error {
	route, rule := ev.route, ev.route.Rule
	if rule.Wait > 0 && !t.mayWait(route) {
		rule.Wait = 0
	}
	c, err := dedup.DecideClaim(t.claimEvent(ev, &against.event), against.prior, against.held, route.Span, rule, against.streamTime)
	if err != nil {
		return fmt.Errorf("%w: %w", kafka.ErrIllegalState, err)
	}
	ev.verdict, ev.claimed = c.Verdict, &c
	switch {
	case c.Verdict == dedup.Late:
		t.applyLatePolicy(j, ev, against.event.Time, against.streamTime)
		return nil // the policy concludes it
	case c.Verdict == dedup.Collision:
		t.applyCollisionPolicy(j, ev, &c.Row)
		t.reply(j, route, &reply{
			verdict: dedup.Collision, status: c.Row.Status.String(), row: &c.Row, claim: &c.Claim, to: ev.requester(), present: ev.brokerTime,
		})
		return nil
	case c.Dispatch:
		replaced := against.replaces(&route.Span)
		if replaced == nil && t.overLimit(route) {
			t.applyLimitPolicy(j, ev)
			return nil
		}
		t.dispatch(j, ev, &c, replaced)
	case c.Write && t.fits(&c.Row):
		t.putRow(j, &c.Row) // the duplicate waits
		t.OpenCounts.AddWaiting(&c.Row, 1)
		ev.noteWaiting(&c)
	default:
		t.replyToDuplicate(j, ev, &c, c.Verdict)
	}
	j.conclude(ev)
	return nil
}

// claimEvent is what the rules of claims need to know of an event.
func (t *Judge) claimEvent(ev *event, decided *dedup.Event) dedup.ClaimEvent {
	return dedup.ClaimEvent{Event: *decided, Key: *ev.key, ReceivedAt: ev.brokerTime, DispatchedAt: t.joinedAt, TaskStartedAt: t.StartedAt, Request: ev.requester()}
}

// replyToDuplicate answers an event at once, with what stands.
func (t *Judge) replyToDuplicate(j *Judging, ev *event, c *dedup.ClaimDecision, verdict dedup.Verdict) {
	t.reply(j, ev.route, &reply{
		verdict: verdict, status: c.Row.Status.String(), row: &c.Row, claim: &c.Claim,
		to: ev.requester(), value: c.Claim.Result, headers: c.Claim.Headers, present: ev.brokerTime,
	})
}

// dispatch sends an event to the executor and records its claim, in the place of the
// row it replaces, if any. If the row has no room for the request, the claim is
// stored without it, and the reply is in progress.
func (t *Judge) dispatch(j *Judging, ev *event, c *dedup.ClaimDecision, replaced *dedup.Row) {
	route := ev.route
	if !t.fits(&c.Row) {
		c.DropRequest()
	}
	if !t.fits(&c.Row) {
		ev.verdict, ev.reason = dedup.Invalid, t.misfit(&c.Row)
		j.deadLetter(ev)
		return
	}
	ev.claim = &c.Row
	ev.token = dedup.TokenOf(&c.Row, t.ID.Partition)
	own := ev.key
	if c.LeaseExpired {
		ev.key = &c.Claim.Key // by which an executor knows the attempts of one order, neighbour or not
	}
	out := j.emit(ev, route.Output)
	ev.key = own // by which its sender knows it
	if !out {
		return
	}
	if c.Added == 0 {
		t.replyToDuplicate(j, ev, c, dedup.InProgress)
	}
	t.putRow(j, &c.Row)
	ev.noteWaiting(c)
	if c.LeaseExpired {
		t.OpenCounts.AddWaiting(&c.Row, c.Added)
		j.tally(route, tallyReclaimed)
		t.Log.Warn("lease expired without an outcome, claim taken over: executor died, or lease too short",
			"route", route.Name, "key", wire.KeyText(&c.Claim.Key), "attempt", c.Row.Attempt, "lease", route.Claim.Lease)
	} else {
		t.OpenCounts.ReplaceClaim(c, replaced)
	}
	if c.Verdict == dedup.AfterWindow {
		t.Log.Info("a copy after its window runs again", "route", route.Name, "key", wire.KeyText(ev.key), "attempt", c.Row.Attempt)
	}
}

// fits tells whether the changelog takes a row of a claim. One that it does not
// take would fail the transaction, again and again, so no other is recorded.
func (t *Judge) fits(row *dedup.Row) bool {
	return len(row.Result) <= dedup.MaxResultBytes && t.rowBytes(row) <= int(t.App.Limit(t.Changelog).MaxBytes)
}

// rowBytes is what a row takes of the changelog's max.message.bytes: the encoded
// claim, and the rest at its longest. So a row that fits does so too once it has
// lost requests, has another status or attempt, or notes an omitted result.
func (t *Judge) rowBytes(row *dedup.Row) int {
	return wire.RecordOverhead + len(row.Digest) + rowBytesMax + len(row.Result)
}

// rowBytesMax is more than the longest row without its claim, by what the note
// of an omitted result takes.
const rowBytesMax = 64

// misfit says that a row does not fit.
func (t *Judge) misfit(row *dedup.Row) string {
	return fmt.Sprintf("too large for topic %s: the claim takes %d bytes, max.message.bytes is %d", t.Changelog, t.rowBytes(row), t.App.Limit(t.Changelog).MaxBytes)
}

// requester is who sent the event, to be answered.
func (ev *event) requester() dedup.Request {
	r := dedup.Request{At: ev.from}
	if ev.Request != "" {
		r.ID = []byte(ev.Request)
	}
	if len(ev.rec.Key) <= dedup.RequestBytesMax {
		r.Key = ev.rec.Key
	}
	if ev.route.Claim.Wait {
		r.ReplyTo = ev.replyTo
	}
	return r
}

// outcome applies the outcome of a claim.
func (t *Judge) outcome(j *Judging, ev *event, read *wire.OutcomeEnvelope) error {
	route := ev.route
	o := dedup.Outcome{Kind: read.Kind, Token: read.Token, Value: ev.rec.Value}
	for i := range ev.headers {
		if !wire.IsReserved(ev.headers[i].Key) {
			o.Headers = append(o.Headers, dedup.Header{Key: ev.headers[i].Key, Value: ev.headers[i].Value})
		}
	}
	prior, s, err := t.applyOutcome(route, &o)
	switch {
	case err != nil:
		return err
	case s.Repeated:
		j.tallyOutcome(route, o.Kind, outcomeRepeated)
		return nil
	case s.Refused != "":
		j.tallyOutcome(route, o.Kind, outcomeRefused)
		ev.verdict, ev.reason, ev.outcomeHeaders = dedup.Invalid, "outcome refused: "+s.Refused, read.Headers()
		if s.Row.Attempt > 0 {
			ev.first = &s.Row
		}
		if s.Row.HasResult {
			ev.key = &s.Claim.Key
		}
		j.deadLetter(ev)
		return nil
	}
	t.putRow(j, &s.Row)
	j.tallyOutcome(route, o.Kind, outcomeApplied)
	t.OpenCounts.ReplaceRow(&s.Row, &prior)
	t.OpenCounts.AddWaiting(&prior, -len(s.Recipients))
	for i := range s.Recipients {
		verdict := dedup.Replayed
		if s.Recipients[i].At == prior.At {
			verdict = dedup.Unique
		}
		answer := reply{
			verdict: verdict, status: o.Kind.ClaimStatus(), row: &prior, claim: &s.Claim,
			to: s.Recipients[i], value: o.Value, headers: o.Headers, present: ev.brokerTime,
		}
		t.reply(j, route, &answer)
		j.respondWithOutcome(route, &answer)
	}
	return nil
}

// applyOutcome judges an outcome against the row of its claim. A result that the
// changelog has no room for is omitted.
func (t *Judge) applyOutcome(route *app.Route, o *dedup.Outcome) (prior dedup.Row, s dedup.OutcomeDecision, err error) {
	prior, held, err := t.Store.Get(o.Token.Digest)
	if err != nil {
		return prior, s, err
	}
	s, err = dedup.ApplyOutcome(o, prior, held, route.Span, route.Rule, t.streamTime(route.NamespaceID))
	if err != nil {
		return prior, s, fmt.Errorf("%w: %w", kafka.ErrIllegalState, err)
	}
	if s.Refused == "" && !t.fits(&s.Row) {
		s.OmitResult()
		if !t.fits(&s.Row) { // the topic took longer rows once
			s.Refused = t.misfit(&s.Row)
		}
	}
	return prior, s, nil
}

// reply is the answer to one request.
type reply struct {
	verdict dedup.Verdict
	status  string
	row     *dedup.Row
	claim   *dedup.Claim
	to      dedup.Request
	value   []byte
	headers []dedup.Header
	present int64 // ms
}

// reply emits a reply: key as in the request, value and foreign headers as in
// the outcome. What the replies topic does not take goes without them.
func (t *Judge) reply(j *Judging, route *app.Route, a *reply) {
	r := j.NewRecord()
	r.Topic, r.Key, r.Value = route.Claim.Replies, a.to.Key, a.value
	stamp := j.stamp(r.Topic, a.present)
	r.Timestamp = time.UnixMilli(stamp)
	if r.Key == nil {
		r.Partition = wire.PartitionByDigest(&a.row.Digest)
	}
	own := t.replyHeaders(j, route, a)
	r.Headers = j.headers.take(len(a.headers) + len(own) + 1)[:0]
	for _, h := range a.headers {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
	}
	r.Headers = append(r.Headers, own...)
	omitted := a.omitted(route)
	if misfit := j.misfit(r, stamp); misfit != "" {
		omitted, r.Value, r.Headers = misfit, nil, own
		if r.Key == nil {
			r.Key = j.rt.PositionText(a.to.At)
		}
	}
	if omitted != "" {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: wire.HeaderReason, Value: []byte(omitted)})
	}
	j.produce(r)
}

// omitted says why a copy does not get the result; "" if it does.
func (a *reply) omitted(route *app.Route) string {
	switch {
	case a.claim.Omitted == 0 || a.verdict != dedup.Replayed || a.value != nil:
		return ""
	case a.claim.Omitted > route.Claim.ResultBytes:
		return fmt.Sprintf("the result of %d bytes was not kept, result_limit is %d", a.claim.Omitted, route.Claim.ResultBytes)
	}
	return fmt.Sprintf("the result of %d bytes was not kept, its row would have been too large for the changelog", a.claim.Omitted)
}

func (t *Judge) replyHeaders(j *Judging, route *app.Route, a *reply) []kgo.RecordHeader {
	own := j.headers.take(replyHeadersMax)[:0]
	own = append(own,
		kgo.RecordHeader{Key: wire.HeaderRoute, Value: route.NameBytes},
		kgo.RecordHeader{Key: wire.HeaderVerdict, Value: wire.VerdictText(a.verdict)},
		kgo.RecordHeader{Key: wire.HeaderClaimStatus, Value: []byte(a.status)},
		kgo.RecordHeader{Key: wire.HeaderKey, Value: []byte(wire.KeyText(&a.claim.Key))},
		kgo.RecordHeader{Key: wire.HeaderAttempt, Value: strconv.AppendUint(nil, uint64(a.row.Attempt), 10)},
		kgo.RecordHeader{Key: wire.HeaderSource, Value: t.App.PositionText(a.to.At)},
		kgo.RecordHeader{Key: wire.HeaderFirst, Value: t.App.PositionText(a.row.At)},
		kgo.RecordHeader{Key: wire.HeaderFirstTime, Value: strconv.AppendInt(nil, a.row.First, 10)})
	if a.to.ID != nil {
		own = append(own, kgo.RecordHeader{Key: wire.HeaderRequestID, Value: a.to.ID})
	}
	if a.claim.Original != nil {
		own = append(own, kgo.RecordHeader{Key: wire.HeaderFirstRequest, Value: a.claim.Original})
	}
	return own
}

// replyHeadersMax is the most oncebus headers on a reply.
const replyHeadersMax = 11

// levelCritical is for what somebody has to look at now.
const levelCritical = slog.LevelError + 4

// applyCollisionPolicy handles an event that has the key of another by the
// route's policy. It is not a duplicate, so the operator must learn of it.
func (t *Judge) applyCollisionPolicy(j *Judging, ev *event, standing *dedup.Row) {
	ev.verdict, ev.first = dedup.Collision, standing
	ev.reason = "the key of another event, whose details differ: the fields of fingerprint do not agree"
	t.Log.LogAttrs(context.Background(), levelCritical, "collision: two events with one key and different details",
		slog.String("route", ev.route.Name), slog.String("key", wire.KeyText(ev.key)),
		slog.String("event", string(t.App.PositionText(ev.from))), slog.String("first", string(t.App.PositionText(standing.At))))
	j.byPolicy(ev, ev.route.Collision)
}
