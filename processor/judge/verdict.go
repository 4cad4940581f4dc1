package judge

import (
	"cmp"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/processor/app"
	"oncebus/processor/wire"
)

// An ingress client submits events for senders that wait for the verdict. Such an event carries the
// address of its request. The judge produces the verdict to the topic <app>-verdicts in the transaction
// that decides the event; consumers of that topic read committed records only, so they never see the
// verdict of an aborted transaction.

// setOutcomeFollows sets outcomeFollows if the stored claim has the event's request, with an address.
func (ev *event) setOutcomeFollows(c *dedup.ClaimDecision) {
	if n := len(c.Claim.Requests); n > 0 {
		last := &c.Claim.Requests[n-1]
		ev.outcomeFollows = last.At == ev.from && last.ReplyTo.IsSet()
	}
}

// respondToEvent produces the verdict on an event for the request that waits for it. A replayed verdict has
// the stored outcome as well.
func (e *Emitter) respondToEvent(ev *event) {
	a := wire.VerdictRecord{To: ev.replyTo, Verdict: ev.verdict, Key: ev.dedupKey(), Row: ev.first, Reason: ev.reason, BrokerTime: ev.brokerTime, Forwarded: ev.emitted, OutcomeFollows: ev.outcomeFollows}
	// If a limit or a topic's settings stopped the event, its verdict is not the verdict of the decision on the
	// claim.
	if c := ev.claimed; c != nil && c.Verdict == ev.verdict {
		a.Row, a.Claim, a.Status = &c.Row, &c.Claim, c.Status()
		if ev.verdict == dedup.Replayed {
			outcome := reply{verdict: ev.verdict, claim: &c.Claim, value: c.Claim.Result}
			a.Value, a.Headers, a.HasOutcome = c.Claim.Result, c.Claim.Headers, true
			a.Reason = outcome.omitted(ev.route)
			a.Omitted = a.Reason != ""
		}
	}
	e.produceVerdict(&a)
}

// respondWithOutcome produces the outcome of a claim for a request that waited for it.
func (e *Emitter) respondWithOutcome(route *app.Route, r *reply) {
	a := wire.VerdictRecord{
		To: r.to.ReplyTo, Verdict: r.verdict, Key: &r.claim.Key, Row: r.row, Claim: r.claim, Status: r.status,
		Value: r.value, Headers: r.headers, BrokerTime: r.brokerTime, HasOutcome: true, Forwarded: r.verdict == dedup.Unique,
	}
	omitted := r.omitted(route)
	a.Reason, a.Omitted = cmp.Or(omitted, r.reason), omitted != ""
	e.produceVerdict(&a)
}

// respondWithout produces a verdict for a request that waited for an outcome and will get none. The
// client may have stopped waiting; if it still waits, it gets this response.
func (e *Emitter) respondWithout(r *reply) {
	e.produceVerdict(&wire.VerdictRecord{
		To: r.to.ReplyTo, Verdict: r.verdict, Key: &r.claim.Key, Row: r.row, Claim: r.claim, Status: r.status, BrokerTime: r.brokerTime,
	})
}

// produceVerdict produces a verdict record if a request waits for it. If the topic would reject the
// record, it produces the verdict without the result.
func (e *Emitter) produceVerdict(a *wire.VerdictRecord) {
	if !a.To.IsSet() {
		return // the event came from a topic
	}
	topic := e.rt.Topology.Verdicts
	e.Awaited = true
	if a.To.Partition >= e.rt.Topology.Topics[topic].Partitions {
		return // the address is forged, or of another app
	}
	r := e.NewRecord()
	timestamp := e.timestamp(topic, a.BrokerTime)
	r.Topic, r.Partition, r.Value, r.Timestamp = topic, a.To.Partition, a.Value, time.UnixMilli(timestamp)
	r.Headers = e.headers.take(len(a.Headers) + wire.VerdictHeadersMax)[:0]
	for _, h := range a.Headers {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
	}
	if a.Row != nil {
		a.First = e.rt.PositionText(a.Row.At)
	}
	r.Headers = a.AppendHeaders(r.Headers, e.bytes.take(wire.VerdictTextBytes))
	misfit := e.misfit(r, timestamp)
	switch {
	case misfit == "":
		e.produce(r, dedup.Position{})
	case a.Value != nil || a.Headers != nil:
		a.Value, a.Headers, a.Omitted, a.Reason = nil, nil, true, misfit
		e.produceVerdict(a)
	default: // an operator set too low a limit for the topic, so there is no verdict record
	}
}
