package judge

import (
	"cmp"
	"fmt"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/processor/app"
	"oncebus/processor/wire"
)

// reply is the reply to one request.
type reply struct {
	verdict    dedup.Verdict
	status     string
	row        *dedup.Row
	claim      *dedup.Claim
	to         dedup.Request
	value      []byte
	headers    []dedup.Header
	brokerTime int64 // ms
}

// reply produces a reply: key as in the request, value and foreign headers as in the
// outcome. If the replies topic would refuse them, or has, it produces the reply without
// them. If the topic has refused that too, the reply becomes a dead letter.
func (j *Judging) reply(route *app.Route, a *reply) {
	r := j.NewRecord()
	r.Topic, r.Key, r.Value = route.Claim.Replies, a.to.Key, a.value
	timestamp := j.timestamp(r.Topic, a.brokerTime)
	r.Timestamp = time.UnixMilli(timestamp)
	if r.Key == nil {
		r.Partition = wire.PartitionByDigest(&a.row.Digest)
	}
	own := j.replyHeaders(route, a)
	r.Headers = j.headers.take(len(a.headers) + len(own) + 1)[:0]
	for _, h := range a.headers {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
	}
	r.Headers = append(r.Headers, own...)
	omitted := a.omitted(route)
	reason, forms := j.refused(a.to.At, r.Topic)
	if forms > 1 {
		j.deadLetterReply(route, a, reason)
		return
	}
	if misfit := cmp.Or(j.misfit(r, timestamp), reason); misfit != "" {
		omitted, r.Value, r.Headers = misfit, nil, own
		if r.Key == nil {
			r.Key = j.rt.PositionText(a.to.At)
		}
		if misfit := j.misfit(r, timestamp); misfit != "" {
			j.deadLetterReply(route, a, misfit) // the record key alone is too long
			return
		}
	}
	if omitted != "" {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: wire.HeaderReason, Value: []byte(omitted)})
	}
	j.produce(r, a.to.At)
}

// deadLetterReply emits a reply that its topic refused, as a dead letter of the event that
// it replies to.
func (j *Judging) deadLetterReply(route *app.Route, a *reply, reason string) {
	headers := j.headers.take(len(a.headers))[:0]
	for _, h := range a.headers {
		headers = append(headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
	}
	j.deadLetter(&event{
		original: original{rec: &kgo.Record{Key: a.to.Key, Value: a.value}, headers: headers, timestamp: a.brokerTime, from: a.to.At},
		route:    route, verdict: a.verdict, key: &a.claim.Key, first: a.row, brokerTime: a.brokerTime, reason: "reply " + reason,
	})
}

// omitted returns why a duplicate does not get the result; "" if it does.
func (a *reply) omitted(route *app.Route) string {
	switch {
	case a.claim.Omitted == 0 || a.verdict != dedup.Replayed || a.value != nil:
		return ""
	case a.claim.Omitted > route.Claim.ResultBytes:
		return fmt.Sprintf("the result of %d bytes was not kept, result_limit is %d", a.claim.Omitted, route.Claim.ResultBytes)
	}
	return fmt.Sprintf("the result of %d bytes was not kept, its row would have been too large for the changelog", a.claim.Omitted)
}

func (j *Judging) replyHeaders(route *app.Route, a *reply) []kgo.RecordHeader {
	own := j.headers.take(replyHeadersMax)[:0]
	own = append(own,
		kgo.RecordHeader{Key: wire.HeaderRoute, Value: route.NameBytes},
		kgo.RecordHeader{Key: wire.HeaderVerdict, Value: wire.VerdictText(a.verdict)},
		kgo.RecordHeader{Key: wire.HeaderClaimStatus, Value: []byte(a.status)},
		kgo.RecordHeader{Key: wire.HeaderKey, Value: []byte(wire.KeyText(&a.claim.Key))},
		kgo.RecordHeader{Key: wire.HeaderAttempt, Value: strconv.AppendUint(nil, uint64(a.row.Attempt), 10)},
		kgo.RecordHeader{Key: wire.HeaderSource, Value: j.rt.PositionText(a.to.At)},
		kgo.RecordHeader{Key: wire.HeaderFirst, Value: j.rt.PositionText(a.row.At)},
		kgo.RecordHeader{Key: wire.HeaderFirstTime, Value: strconv.AppendInt(nil, a.row.First, 10)})
	if a.to.ID != nil {
		own = append(own, kgo.RecordHeader{Key: wire.HeaderRequestID, Value: a.to.ID})
	}
	if a.claim.Original != nil {
		own = append(own, kgo.RecordHeader{Key: wire.HeaderFirstRequest, Value: a.claim.Original})
	}
	return own
}

// replyHeadersMax is the highest number of oncebus headers on a reply.
const replyHeadersMax = 11
