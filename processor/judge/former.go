package judge

import (
	"oncebus/dedup"
	"oncebus/processor/app"
)

// tooLargeReason is the reason in the replies to the requests of a claim whose row the changelog would
// no longer accept.
const tooLargeReason = "the changelog's max.message.bytes was lowered: the claim cannot keep its requests"

// keepFormer stores a former claim under a digest of its own, because another event has claimed the key since.
// It returns how many requests no longer wait under the key. If former is nil, there is no former claim.
func (t *Judge) keepFormer(e *Emitter, route *app.Route, former *dedup.FormerClaim) (left int) {
	if former == nil {
		return 0
	}
	row, claim := &former.Row, &former.Claim
	left = len(claim.Requests)
	if !t.fitsStarted(row) {
		u := unanswered{reason: tooLargeReason, counter: unansweredWindow}
		t.replyWithoutOutcome(e, route, row, claim, &u)
		u.log(&t.State, route)
	}
	t.put(e, &change{row: row, claim: claim, joined: len(claim.Requests)})
	return left
}

// rowOf returns the row to which an outcome with this token belongs: the row of the token's key, or the
// row of a former claim of the key.
func (t *Judge) rowOf(e *Emitter, route *app.Route, token *dedup.Token) (row dedup.Row, found bool, err error) {
	row, found, err = t.row(e, token.Digest)
	if !found || err != nil {
		return row, found, err
	}
	digest, may := token.Former(&row)
	if !may {
		return row, found, nil
	}
	former, kept, err := t.row(e, digest)
	if kept && t.window(route).Retains(former.First, t.streamTime(route.NamespaceID)) {
		return former, true, err
	}
	return row, true, err
}
