package judge

import (
	"cmp"
	"fmt"
	"time"

	"oncebus/dedup"
	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/wire"
)

// announceTakeover announces that a duplicate took over a claim whose lease had ended. The former executor may
// still run. Without the announcement it would learn of the takeover at its next renewal, which may be a long
// time away.
func (t *Judge) announceTakeover(j *Judging, ev *event, found *candidate, attempt uint32) error {
	former, err := dedup.DecodeClaim(found.prior.Result)
	if err != nil {
		return fmt.Errorf("%w: claim of key %v: %w", kafka.ErrIllegalState, found.prior.Digest, err)
	}
	route := t.App.ClaimRoute(former.Route, ev.route)
	t.announce(j, route, &found.prior, &former, attempt, fmt.Sprintf("attempt %d took over: the lease was over", attempt), ev.brokerTime)
	return nil
}

// announce produces the answer "superseded" for an attempt in progress, without a question, if its
// route has an answers topic. If the topic rejects the announcement, we leave it out: the executor's
// next renewal gets the same answer.
func (t *Judge) announce(j *Judging, route *app.Route, prior *dedup.Row, claim *dedup.Claim, attempt uint32, reason string, brokerTime int64) {
	if route.Claim.Answers == "" {
		return
	}
	token := dedup.TokenOf(prior, t.ID.Partition)
	if claim.AppToken {
		token.App = t.App.TokenApp
	}
	r := j.NewRecord()
	timestamp := j.timestamp(route.Claim.Answers, brokerTime)
	// A compacted topic needs a record key. The announcement gets a key of its own: with the key of a
	// question, compaction would remove the answer to that question.
	r.Topic, r.Key, r.Timestamp = route.Claim.Answers, token.Append(nil), time.UnixMilli(timestamp)
	s := wire.Supersession{Route: route.NameBytes, Token: &token, Key: &claim.Key, Attempt: attempt, Reason: reason}
	r.Headers = s.AppendHeaders(j.headers.take(wire.QuestionHeadersMax)[:0])
	refusal, _ := j.refused(prior.At, r.Topic)
	if misfit := cmp.Or(j.misfit(r, timestamp), refusal); misfit != "" {
		if t.mayLog(lineUnannounced) {
			t.Log.Warn("superseded attempt not announced: its executor learns it from its next renewal", "route", route.Name,
				"key", wire.KeyText(&claim.Key), "attempt", prior.Attempt, "reason", misfit)
		}
		return
	}
	j.produce(r, prior.At)
}
