package judge

import (
	"oncebus/dedup"
	"oncebus/processor/app"
)

// tooLargeReason is the reason of replies to requests of a claim whose row the changelog
// would refuse now.
const tooLargeReason = "the changelog's max.message.bytes was lowered: the claim cannot keep its requests"

// keepFormer stores a claim whose key another event has claimed, under a digest of its own.
// It returns how many requests no longer wait under the key; nil is no claim.
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

// rowOf returns the row that an outcome with this token is of: that of its key, or that of
// a former claim.
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
