package judge

import (
	"oncebus/dedup"
	"oncebus/processor/app"
	"oncebus/processor/wire"
)

// Traced is an event whose sender samples its trace, with everything that the event's span shows.
type Traced struct {
	Trace      [16]byte // trace id of the sender's span
	Span       [8]byte
	Route      *app.Route
	Verdict    dedup.Verdict
	Digest     dedup.Digest   // digest of the key in its namespace; zero without a key
	Key        *[32]byte      // the dedup key; nil without one
	From       dedup.Position // of the event
	First      dedup.Position // position of the first event of the key; From if this event is the first
	BrokerTime int64          // when the event was appended, ms
}

// trace adds an event to Traced if its sender samples the trace.
func (e *Emitter) trace(ev *event) {
	for i := range ev.headers {
		if ev.headers[i].Key != wire.HeaderTraceparent {
			continue
		}
		trace, span, sampled, _ := wire.ParseTraceparent(ev.headers[i].Value)
		if !sampled {
			return
		}
		t := Traced{Trace: trace, Span: span, Route: ev.route, Verdict: ev.verdict, Digest: ev.digest, From: ev.from, First: ev.from, BrokerTime: ev.brokerTime}
		if key := ev.dedupKey(); key != nil {
			own := *key
			t.Key = &own
		}
		if ev.first != nil && ev.verdict != dedup.Unique && ev.verdict != dedup.AfterWindow {
			t.First = ev.first.At
		}
		e.Traced = append(e.Traced, t)
		return
	}
}
