package dedup

import "encoding/binary"

// DecideWaiting is DecideClaim for an event that either waits for the outcome of a claim or gets the reply
// in_progress. It returns false for any other event. prior is the row of the event's digest; claim is that
// row's claim, already decoded, and may already have further requests that are not encoded into the row yet.
// Row.JoinClaim encodes the decided claim into the decided row.
//
// DecideWaiting exists to save time: DecideClaim decodes and encodes all requests of the claim for each request
// that is added.
func DecideWaiting(ev *ClaimEvent, prior *Row, claim *Claim, w Window, rule ClaimRule, streamTime int64) (ClaimDecision, bool) {
	if prior.Status != ClaimInProgress && prior.Status != Submitted || !w.Decides(prior, streamTime) || !w.Covers(prior.First, ev.Time) {
		return ClaimDecision{}, false
	}
	c, err := decideDuplicateClaim(*ev, *prior, *claim, rule)
	return c, err == nil && c.Verdict == InProgress && !c.Dispatch
}

// JoinClaim encodes a claim that DecideWaiting decided into its row.
func (r *Row) JoinClaim(c *Claim) { r.setClaim(c) }

// RequestSlack is the most bytes by which a request in an encoded claim grows when a later request brings an
// address, a deadline or a route: the encoding then has these fields for every request.
const RequestSlack = 1 + binary.MaxVarintLen64 + 1

// BytesMax is an upper bound of the bytes that the request takes in a claim.
func (r *Request) BytesMax() int { return r.bytes() + RequestSlack }
