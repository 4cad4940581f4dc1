package judge

import (
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/wire"
)

// An event without a key has no claim, so no stored row could lead the outcome to its sender. If the sender
// waits for the outcome, the event carries the address of the sender's request instead: the executor copies the
// address into the outcome, and the router sends the outcome to that request. The task stores nothing about
// this. So if the request is gone, the outcome is lost.

// awaitsUnclaimed reports whether a request waits for the outcome of an event without a key.
func (ev *event) awaitsUnclaimed() bool {
	h := ev.route.HTTP
	return ev.verdict == dedup.MissingKey && ev.route.Mode == rules.ClaimMode && h != nil && h.Answer != nil && ev.replyTo.IsSet()
}

// answerUnclaimed sends the outcome of an event without a claim to the request that waits for it.
// unclaimed is false for an outcome that names no request. reason says why the outcome cannot be sent.
// The event's own route is not known, so the outcome counts for the first route of the topic.
func (r *Router) answerUnclaimed(e *Emitter, rec *kgo.Record) (route *app.Route, reason string, unclaimed bool) {
	to, kind, reason, unclaimed := app.ReadUnclaimed(rec)
	if !unclaimed {
		return nil, "", false
	}
	route = r.App.Outcomes[rec.Topic][0]
	if reason != "" {
		return route, reason, true
	}
	a := wire.VerdictRecord{To: to, Verdict: dedup.MissingKey, Status: kind.ClaimStatus(), Value: rec.Value, BrokerTime: r.App.Clock.Now(), HasOutcome: true, Forwarded: true}
	for i := range rec.Headers {
		if h := &rec.Headers[i]; !wire.IsReserved(h.Key) {
			a.Headers = append(a.Headers, dedup.Header{Key: h.Key, Value: h.Value})
		}
	}
	e.countOutcome(route, kind, outcomeApplied)
	e.produceVerdict(&a)
	return route, "", true
}
