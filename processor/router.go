package processor

import (
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
)

// recordHeaders gives dedup a record's headers without copying them.
type recordHeaders []kgo.RecordHeader

// Header returns the first header of that name.
func (h *recordHeaders) Header(name string) ([]byte, bool) {
	for i := range *h {
		if (*h)[i].Key == name {
			return (*h)[i].Value, true
		}
	}
	return nil, false
}

func inputOf(rec *kgo.Record) dedup.Input {
	return dedup.Input{
		Topic: rec.Topic, Key: rec.Key, Value: rec.Value,
		Headers:   (*recordHeaders)(&rec.Headers),
		Timestamp: rec.Timestamp.UnixMilli(),
	}
}

// router is the first stage: it derives dedup keys and sends every record to
// the partition its key belongs to. It keeps no state, so its transaction is
// just offsets in and records out; it is needed all the same (G8): a router
// that repeated records would repeat keyless ones and re-open expired windows.
type router struct {
	rt      *runtime
	metrics *metrics
	deriver *dedup.Deriver
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
		r.metrics.keySeconds.Observe(time.Since(began).Seconds())
	}
}

func (r *router) route(e *emitter, rec *kgo.Record) {
	in := inputOf(rec)
	derived := r.deriver.Derive(&in)
	from := dedup.Position{Topic: r.rt.topicNumbers[rec.Topic], Partition: rec.Partition, Offset: rec.Offset}
	route := r.rt.routes[derived.Route.Index]
	if derived.Finding != dedup.Keyed {
		ev := event{
			original: original{rec: rec, headers: rec.Headers, timestamp: in.Timestamp, from: from},
			route:    route, present: r.rt.clock.now(),
		}
		e.turnAway(&ev, &derived)
		return
	}
	env := envelope{
		route: route.nameBytes, digest: derived.Digest, key: derived.Key,
		eventTime: derived.Time, timestamp: in.Timestamp, from: from,
	}
	out := &e.records.take(1)[0]
	out.Topic, out.Key, out.Value = r.rt.topology.repartition, rec.Key, rec.Value
	out.Partition = r.rt.hasher.partition(&derived.Routing)
	// A foreign header of our prefix ends here: the task trusts what it reads.
	headers := e.headers.take(len(rec.Headers) + 1)[:0]
	value := e.bytes.take(envelopeMaxBytes + len(route.nameBytes))
	headers = append(headers, kgo.RecordHeader{Key: envelopeHeader, Value: env.append(value[:0])})
	for i := range rec.Headers {
		if !isOurs(rec.Headers[i].Key) {
			headers = append(headers, rec.Headers[i])
		}
	}
	out.Headers = headers
	if n := recordBytes(out); n > int(r.rt.limit(out.Topic).maxBytes) {
		ev := event{
			original: original{rec: rec, headers: rec.Headers, timestamp: in.Timestamp, from: from},
			route:    route, key: &derived.Key, verdict: dedup.Invalid, present: r.rt.clock.now(),
			reason: fmt.Sprintf("too large for topic %s: %d bytes with headers, max.message.bytes is %d", out.Topic, n, r.rt.limit(out.Topic).maxBytes),
		}
		e.byPolicy(&ev, dedup.DeadLetter)
		return
	}
	e.produce(out)
}
