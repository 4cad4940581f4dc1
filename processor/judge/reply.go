package judge

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/processor/app"
	"oncebus/processor/wire"
)

// reply is the reply to one request of claim mode. It is produced to the route's replies topic.
type reply struct {
	verdict    dedup.Verdict
	status     string     // "" for none
	key        *[32]byte  // nil for a missing key
	row        *dedup.Row // row of the first event; without a claim, a row made from the event itself
	claim      *dedup.Claim
	reason     string // why the event has no claim, or why the reply has no result
	after      int64  // as in event: offset after a batch that could not be decompressed; else 0
	to         dedup.Request
	value      []byte
	headers    []dedup.Header
	brokerTime int64 // ms
}

// reply produces a reply. Its record key is the key of the request; its value and foreign headers come from the
// outcome. If the replies topic would reject these, or has rejected them, the reply has no value and no foreign
// headers. If the topic has rejected that form too, the reply becomes a dead letter.
func (e *Emitter) reply(route *app.Route, a *reply) {
	r := e.NewRecord()
	r.Topic, r.Key, r.Value = route.Claim.Replies, a.to.Key, a.value
	timestamp := e.timestamp(r.Topic, a.brokerTime)
	r.Timestamp = time.UnixMilli(timestamp)
	if r.Key == nil {
		r.Partition = wire.PartitionByDigest(&a.row.Digest)
	}
	a.reason = cmp.Or(a.reason, a.omitted(route))
	own := e.replyHeaders(route, a)
	r.Headers = e.headers.take(len(a.headers) + len(own))[:0]
	for _, h := range a.headers {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
	}
	r.Headers = append(r.Headers, own...)
	reason, forms := e.refused(a.to.At, r.Topic)
	if forms > 1 {
		e.deadLetterReply(route, a, reason)
		return
	}
	if misfit := cmp.Or(e.misfit(r, timestamp), reason); misfit != "" {
		short := *a
		short.reason = misfit
		if a.reason != "" {
			short.reason = a.reason + "; not carried whole: " + misfit
		}
		r.Value, r.Headers = nil, e.replyHeaders(route, &short)
		if r.Key == nil {
			r.Key = e.rt.PositionText(a.to.At)
		}
		if misfit := e.misfit(r, timestamp); misfit != "" {
			e.deadLetterReply(route, a, misfit) // the record key alone is too long
			return
		}
	}
	e.produce(r, a.to.At)
}

// replyWithoutClaim replies to the sender of an event of claim mode that has no claim. It needs no
// stored row, so the router uses it too.
func (e *Emitter) replyWithoutClaim(ev *event) {
	a := reply{
		verdict: ev.verdict, key: ev.dedupKey(), row: &dedup.Row{Digest: ev.digest, First: ev.timestamp, At: ev.from},
		reason: ev.reason, after: ev.after, to: ev.requester(), brokerTime: ev.brokerTime,
	}
	if ev.dedupKey() == nil {
		binary.BigEndian.PutUint32(a.row.Digest[:], uint32(placeByKey(ev)))
	}
	if c := ev.claimed; c != nil && c.Verdict == ev.verdict { // the event is late: it is before this claim's window
		a.row, a.claim, a.status = &c.Row, &c.Claim, c.Status()
	}
	switch {
	case ev.verdict == dedup.Bypassed:
		a.status = ev.verdict.String()
	case ev.emitted:
		a.status = dedup.StatusForwarded
	}
	e.reply(ev.route, &a)
}

// deadLetterReply emits a reply that its topic rejected, as a dead letter of the event that the reply
// is for.
func (e *Emitter) deadLetterReply(route *app.Route, a *reply, reason string) {
	headers := e.headers.take(len(a.headers))[:0]
	for _, h := range a.headers {
		headers = append(headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
	}
	e.deadLetter(&event{
		original: original{rec: &kgo.Record{Value: a.value}, recordKey: a.to.Key, headers: headers, timestamp: a.brokerTime, from: a.to.At},
		route:    route, verdict: a.verdict, key: a.dedupKey(), first: a.row, brokerTime: a.brokerTime, reason: wire.ReasonReply + reason,
	})
}

// dedupKey returns the key of the claim or, without a claim, of the event; nil for a missing key.
func (a *reply) dedupKey() *[32]byte {
	if a.claim != nil {
		return &a.claim.Key
	}
	return a.key
}

// omitted returns why a duplicate does not get the result; "" if it gets the result.
func (a *reply) omitted(route *app.Route) string {
	switch {
	case a.claim == nil || a.claim.Omitted == 0 || a.verdict != dedup.Replayed || a.value != nil:
		return ""
	case a.claim.Omitted > route.Claim.ResultBytes:
		return fmt.Sprintf("the result of %d bytes was not kept, result_limit is %d", a.claim.Omitted, route.Claim.ResultBytes)
	}
	return fmt.Sprintf("the result of %d bytes was not kept, its row would have been too large for the changelog", a.claim.Omitted)
}

// replyHeaders returns the oncebus headers of a reply.
func (e *Emitter) replyHeaders(route *app.Route, a *reply) []kgo.RecordHeader {
	own := e.headers.take(replyHeadersMax)[:0]
	own = append(own,
		kgo.RecordHeader{Key: wire.HeaderRoute, Value: route.NameBytes},
		kgo.RecordHeader{Key: wire.HeaderVerdict, Value: wire.VerdictText(a.verdict)},
		kgo.RecordHeader{Key: wire.HeaderAttempt, Value: strconv.AppendUint(nil, uint64(a.row.Attempt), 10)},
		kgo.RecordHeader{Key: wire.HeaderSource, Value: e.rt.PositionText(a.to.At)},
		kgo.RecordHeader{Key: wire.HeaderFirst, Value: e.rt.PositionText(a.row.At)},
		kgo.RecordHeader{Key: wire.HeaderFirstTime, Value: strconv.AppendInt(nil, a.row.First, 10)})
	if a.status != "" {
		own = append(own, kgo.RecordHeader{Key: wire.HeaderClaimStatus, Value: []byte(a.status)})
	}
	if key := a.dedupKey(); key != nil {
		own = append(own, kgo.RecordHeader{Key: wire.HeaderKey, Value: []byte(wire.KeyText(key))})
	}
	if a.reason != "" {
		own = append(own, kgo.RecordHeader{Key: wire.HeaderReason, Value: []byte(a.reason)})
	}
	if a.after > 0 {
		last := a.to.At
		last.Offset = a.after - 1
		own = append(own, kgo.RecordHeader{Key: wire.HeaderBatchLast, Value: e.rt.PositionText(last)})
	}
	if a.to.ID != nil {
		own = append(own, kgo.RecordHeader{Key: wire.HeaderRequestID, Value: a.to.ID})
	}
	if a.claim != nil && a.claim.Original != nil {
		own = append(own, kgo.RecordHeader{Key: wire.HeaderFirstRequest, Value: a.claim.Original})
	}
	return own
}

// replyHeadersMax is the highest number of oncebus headers on a reply.
const replyHeadersMax = 12
