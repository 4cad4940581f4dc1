package dedup

import "encoding/binary"

// DecideWaiting is DecideClaim for an event that waits for the outcome of a claim that is
// decoded already, or gets the reply in_progress. It returns false for any other event.
// prior is the row of the event's digest and claim its claim, whose requests may be more
// than those in the row. Row.JoinClaim encodes the decided claim into the decided row.
//
// It costs little for each request that waits. DecideClaim decodes and encodes all.
func DecideWaiting(ev *ClaimEvent, prior *Row, claim *Claim, w Window, rule ClaimRule, streamTime int64) (ClaimDecision, bool) {
	if prior.Status != ClaimInProgress && prior.Status != Submitted || !w.Decides(prior, streamTime) || !w.Covers(prior.First, ev.Time) {
		return ClaimDecision{}, false
	}
	c, err := decideDuplicateClaim(*ev, *prior, *claim, rule)
	return c, err == nil && c.Verdict == InProgress && !c.Dispatch
}

// JoinClaim encodes a claim that DecideWaiting decided into its row.
func (r *Row) JoinClaim(c *Claim) { r.setClaim(c) }

// RequestSlack is the most bytes that a request in a claim takes more because of a later one
// with an address, a deadline or a route.
const RequestSlack = 1 + binary.MaxVarintLen64 + 1

// BytesMax is at least the bytes that the request takes in a claim.
func (r *Request) BytesMax() int { return r.bytes() + RequestSlack }
