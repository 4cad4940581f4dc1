package judge

import (
	"cmp"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/processor/wire"
)

// answer stores what a start or renewal changes, and answers it: by a verdict record, if an HTTP
// request asked, else on the route's answers topic. If the attempt is superseded, the question does not
// become a dead letter, because the answer tells its sender.
func (t *Judge) answer(j *Judging, ev *event, read *wire.OutcomeEnvelope, prior *dedup.Row, s *dedup.OutcomeDecision) {
	result := outcomeApplied
	switch {
	case s.Refused != "":
		result = outcomeSuperseded
	case s.Repeated:
		result = outcomeRepeated
	default:
		t.put(j.Emitter, &change{row: &s.Row, claim: &s.Claim, replaced: prior})
		if s.Claim.StartID == nil {
			t.leaseBegan(s.Claim.Since, ev.brokerTime) // the lease begins again
		}
	}
	j.countOutcome(ev.route, read.Kind, result)
	a := wire.QuestionAnswer{
		To: ev.replyTo, Route: ev.route.NameBytes, Outcome: read, Attempt: s.Row.Attempt, Reason: s.Refused,
	}
	if s.Row.HasResult {
		a.Key, a.StartedBy = &s.Claim.Key, s.Claim.StartID
	}
	switch {
	case ev.replyTo.IsSet():
		j.respondToQuestion(ev, &a)
	case ev.route.Claim.Answers != "":
		j.produceAnswer(ev, &a)
	}
}

// produceAnswer produces an answer to the answers topic, with the record key and the foreign headers of
// the question. If the topic would reject the answer, or has rejected it, the answer becomes a dead
// letter.
func (j *Judging) produceAnswer(ev *event, a *wire.QuestionAnswer) {
	r := j.NewRecord()
	timestamp := j.timestamp(ev.route.Claim.Answers, ev.brokerTime)
	r.Topic, r.Key, r.Timestamp = ev.route.Claim.Answers, ev.recordKey, time.UnixMilli(timestamp)
	if r.Key == nil {
		r.Partition = wire.PartitionByDigest(&a.Outcome.Token.Digest)
	}
	r.Headers = j.headers.take(len(ev.headers) + wire.QuestionHeadersMax)[:0]
	for i := range ev.headers {
		if !wire.IsReserved(ev.headers[i].Key) {
			r.Headers = append(r.Headers, kgo.RecordHeader{Key: ev.headers[i].Key, Value: ev.headers[i].Value})
		}
	}
	r.Headers = a.AppendHeaders(r.Headers)
	reason, _ := j.refused(ev.from, r.Topic)
	if misfit := cmp.Or(j.misfit(r, timestamp), reason); misfit != "" {
		ev.verdict, ev.reason, ev.key = dedup.Invalid, wire.ReasonAnswer+misfit, a.Key
		ev.outcomeHeaders = append(a.Outcome.Headers(), kgo.RecordHeader{Key: wire.HeaderAnswer, Value: []byte(a.Text())})
		j.deadLetter(ev)
		return
	}
	j.produce(r, ev.from)
}

// respondToQuestion produces an answer for the HTTP request that asked.
func (e *Emitter) respondToQuestion(ev *event, a *wire.QuestionAnswer) {
	e.Awaited = true
	topic := e.rt.Topology.Verdicts
	if a.To.Partition >= e.rt.Topology.Topics[topic].Partitions {
		return // the address is forged or of another app
	}
	r := e.NewRecord()
	timestamp := e.timestamp(topic, ev.brokerTime)
	r.Topic, r.Partition, r.Timestamp = topic, a.To.Partition, time.UnixMilli(timestamp)
	r.Headers = a.AppendHeaders(e.headers.take(wire.QuestionHeadersMax)[:0])
	if e.misfit(r, timestamp) == "" { // else an operator set too low a limit, and the request asks again
		e.produce(r, dedup.Position{})
	}
}
