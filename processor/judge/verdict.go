package judge

import (
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/processor/app"
	"oncebus/processor/wire"
)

// An ingress client submits events for senders that wait for the verdict. Such an
// event bears the address of its request. The judge produces the verdict to
// <app>-verdicts in the transaction of the judgement, so a verdict that is read is
// committed.

// conclude counts an event and, if a request waits for the verdict, produces it.
// Every verdict of an event passes here once.
func (e *Emitter) conclude(ev *event) {
	e.tally(ev.route, counterIndex(ev.verdict))
	if ev.replyTo.IsSet() {
		e.respondToEvent(ev)
	}
}

// noteWaiting notes that the claim just recorded holds the event's address.
func (ev *event) noteWaiting(c *dedup.ClaimDecision) {
	if n := len(c.Claim.Requests); n > 0 {
		last := &c.Claim.Requests[n-1]
		ev.waits = last.At == ev.from && last.ReplyTo.IsSet()
	}
}

func (e *Emitter) respondToEvent(ev *event) {
	a := wire.VerdictRecord{To: ev.replyTo, Verdict: ev.verdict, Key: ev.key, Row: ev.first, Reason: ev.reason, BrokerTime: ev.brokerTime, Forwarded: ev.passed, OutcomeFollows: ev.waits}
	// A limit or a topic that does not take it may have decided otherwise.
	if c := ev.claimed; c != nil && c.Verdict == ev.verdict {
		a.Row, a.Claim, a.Status = &c.Row, &c.Claim, c.Row.Status.String()
		if ev.verdict == dedup.Replayed {
			outcome := reply{verdict: ev.verdict, claim: &c.Claim, value: c.Claim.Result}
			a.Value, a.Headers, a.HasOutcome = c.Claim.Result, c.Claim.Headers, true
			a.Reason = outcome.omitted(ev.route)
			a.Omitted = a.Reason != ""
		}
	}
	e.produceVerdict(&a)
}

// respondWithOutcome tells the outcome to a request that waited for it.
func (e *Emitter) respondWithOutcome(route *app.Route, r *reply) {
	if !r.to.ReplyTo.IsSet() {
		return
	}
	a := wire.VerdictRecord{
		To: r.to.ReplyTo, Verdict: r.verdict, Key: &r.claim.Key, Row: r.row, Claim: r.claim, Status: r.status, Reason: r.omitted(route),
		Value: r.value, Headers: r.headers, BrokerTime: r.present, HasOutcome: true, Forwarded: r.verdict == dedup.Unique,
	}
	a.Omitted = a.Reason != ""
	e.produceVerdict(&a)
}

// produceVerdict produces a verdict. What the topic does not take goes without the result.
func (e *Emitter) produceVerdict(a *wire.VerdictRecord) {
	topic := e.rt.Topology.Verdicts
	if a.To.Partition >= e.rt.Topology.Topics[topic].Partitions {
		return // not an address of this app
	}
	r := e.NewRecord()
	stamp := e.stamp(topic, a.BrokerTime)
	r.Topic, r.Partition, r.Value, r.Timestamp = topic, a.To.Partition, a.Value, time.UnixMilli(stamp)
	r.Headers = e.headers.take(len(a.Headers) + wire.VerdictHeadersMax)[:0]
	for _, h := range a.Headers {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
	}
	if a.Row != nil {
		a.First = e.rt.PositionText(a.Row.At)
	}
	r.Headers = a.AppendHeaders(r.Headers, e.bytes.take(wire.VerdictTextBytes))
	misfit := e.misfit(r, stamp)
	switch {
	case misfit == "":
		e.produce(r)
	case a.Value != nil || a.Headers != nil:
		a.Value, a.Headers, a.Omitted, a.Reason = nil, nil, true, misfit
		e.produceVerdict(a)
	default: // somebody gave the topic a limit; the event must not wait for that
	}
}
