package processor

import (
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/wire"
)

// router is the first stage: it derives dedup keys and sends every record to
// the partition its key belongs to. It keeps no state, so its transaction is
// just offsets in and records out; it is needed all the same (G8): a router
// that repeated records would repeat keyless ones and re-open expired windows.
type router struct {
	rt      *runtime
	metrics *metrics
	deriver *rules.Deriver
	samples uint
}

// process routes the records of one partition into the open transaction.
func (r *router) process(e *emitter, records []*kgo.Record) {
	for _, rec := range records {
		r.samples++
		if r.samples%sampleEvery != 0 {
			r.route(e, rec)
			continue
		}
		began := time.Now()
		r.route(e, rec)
		r.metrics.keyDerivationSeconds.Observe(time.Since(began).Seconds())
	}
}

func (r *router) route(e *emitter, rec *kgo.Record) {
	if r.rt.outcomes[rec.Topic] != nil {
		r.outcome(e, rec)
		return
	}
	in := wire.InputOf(rec)
	derived := r.deriver.Derive(&in)
	from := r.rt.positionOf(rec)
	route := r.rt.routes[derived.Route.Index]
	if derived.Finding != rules.Keyed {
		ev := event{
			original: original{rec: rec, headers: rec.Headers, timestamp: in.Timestamp, from: from},
			route:    route, present: r.rt.clock.now(), ask: route.asked(rec),
		}
		e.turnAway(&ev, &derived)
		return
	}
	env := wire.Envelope{
		Route: route.nameBytes, Digest: derived.Digest, Key: derived.Key,
		EventTime: derived.Time, Timestamp: in.Timestamp, From: from, Details: wire.DetailsOf(&derived),
		ReplyTo: route.asked(rec),
	}
	if misfit := r.send(e, rec, &env, r.rt.hasher.partition(&derived.Routing)); misfit != "" {
		ev := event{
			original: original{rec: rec, headers: rec.Headers, timestamp: in.Timestamp, from: from},
			route:    route, key: &derived.Key, verdict: dedup.Invalid, present: r.rt.clock.now(), reason: misfit, ask: env.ReplyTo,
		}
		e.byPolicy(&ev, rules.DeadLetter)
	}
}

// send sends a record in its envelope to a partition of the repartition topic,
// or says why that would not take it.
func (r *router) send(e *emitter, rec *kgo.Record, env *wire.Envelope, partition int32) (misfit string) {
	out := &e.records.take(1)[0]
	out.Topic, out.Key, out.Value = r.rt.topology.repartition, rec.Key, rec.Value
	out.Partition = partition
	// A foreign header of our prefix ends here: the task trusts what it reads.
	headers := e.headers.take(len(rec.Headers) + 1)[:0]
	value := e.bytes.take(env.Size())
	headers = append(headers, kgo.RecordHeader{Key: wire.EnvelopeHeader, Value: env.Append(value[:0])})
	for i := range rec.Headers {
		if !wire.IsOurs(rec.Headers[i].Key) {
			headers = append(headers, rec.Headers[i])
		}
	}
	out.Headers = headers
	if n := wire.RecordBytes(out); n > int(r.rt.limit(out.Topic).maxBytes) {
		return fmt.Sprintf("too large for topic %s: %d bytes with headers, max.message.bytes is %d", out.Topic, n, r.rt.limit(out.Topic).maxBytes)
	}
	e.produce(out)
	return ""
}

// outcome sends an outcome to the task that holds its claim: the token says
// which. One that cannot be read is no event; it goes to the dead-letter topic
// and counts as an outcome refused.
func (r *router) outcome(e *emitter, rec *kgo.Record) {
	route, read, reason := r.rt.readOutcome(rec)
	if reason == "" {
		env := wire.Envelope{Route: route.nameBytes, Timestamp: rec.Timestamp.UnixMilli(), From: r.rt.positionOf(rec), Outcome: &read}
		reason = r.send(e, rec, &env, read.Token.Partition)
	}
	if reason == "" {
		return
	}
	e.tally(route, tallyUnreadable)
	e.deadLetter(&event{
		original: original{rec: rec, headers: rec.Headers, timestamp: rec.Timestamp.UnixMilli(), from: r.rt.positionOf(rec)},
		route:    route, verdict: dedup.Invalid, present: r.rt.clock.now(), reason: "outcome refused: " + reason, said: wire.OutcomeHeaders(rec),
	})
}

// readOutcome returns the route of an outcome's claim and what it says, or the
// reason why it says nothing; the route is then one of its topic's.
func (rt *runtime) readOutcome(rec *kgo.Record) (route *routeInfo, read wire.OutcomeEnvelope, reason string) {
	routes := rt.outcomes[rec.Topic]
	headers := wire.Headers(rec.Headers)
	kind, ok := headers.Header(wire.HeaderOutcome)
	if !ok {
		return routes[0], read, "header " + wire.HeaderOutcome + " is missing"
	}
	if read.Kind, ok = dedup.ParseOutcomeKind(kind); !ok {
		return routes[0], read, fmt.Sprintf("header %s: %.40q is none of %v", wire.HeaderOutcome, kind, dedup.OutcomeKinds)
	}
	text, ok := headers.Header(wire.HeaderClaimToken)
	if !ok {
		return routes[0], read, "header " + wire.HeaderClaimToken + " is missing: it is the one that came with the event"
	}
	var err error
	if read.Token, err = dedup.ParseToken(text); err != nil {
		return routes[0], read, fmt.Sprintf("header %s: %v", wire.HeaderClaimToken, err)
	}
	for _, route := range routes {
		if route.class != read.Token.NamespaceID {
			continue
		}
		if partitions := rt.topology.topics[rt.topology.repartition].partitions; read.Token.Partition >= partitions {
			return route, read, fmt.Sprintf("header %s: names partition %d of %d: it is another app's", wire.HeaderClaimToken, read.Token.Partition, partitions)
		}
		if read.Token.Attempt == 0 && read.Kind != dedup.OutcomeForget {
			return route, read, fmt.Sprintf("header %s: names no attempt, which only forget may", wire.HeaderClaimToken)
		}
		return route, read, ""
	}
	return routes[0], read, fmt.Sprintf("header %s: its route takes no outcomes from topic %s", wire.HeaderClaimToken, rec.Topic)
}
