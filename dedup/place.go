package dedup

import (
	"bytes"
	"slices"
)

// An HTTP client waits for the outcome until it disconnects or its timeout is over. The task does not learn of
// that, so the client's request would occupy one of the ClaimRule.Wait places of the claim until the outcome
// arrives: a client that polls would occupy all places. So a duplicate that needs a place takes the place of a
// request whose client is gone, in this order:
//
//  1. The request that the event names (Replaces). An ingress knows which of its own clients are gone and for
//     which key each of them had asked, and sets Replaces. Therefore a client that asks again takes the place
//     of its former request and does not occupy a second place. A request whose client still waits keeps its
//     place even if another request has the same request id, because a client may send one request twice at the
//     same time.
//  2. If no place is free: the first request whose deadline is over. The client of that request used another
//     ingress process, or an ingress process that has ended.
//  3. If no deadline is over: the first request with the event's own request id. That request is from the same
//     sender, which then waits with its latest request only.
//
// Only HTTP requests lose their places. A sender that uses Kafka keeps its place, because it may read its
// replies at any later time.

// placeIn gives the event's request a place among the requests of a claim. It returns the requests including
// the new request, and the replaced request, or nil if a place was free. It returns false if there is no place.
// maker is the position of the event that made the attempt, whose request uses no place.
func (ev *ClaimEvent) placeIn(requests []Request, maker Position, rule ClaimRule) (with []Request, replaced *Request, ok bool) {
	gives := func(holds func(r *Request) bool) int {
		for i := range requests {
			if r := &requests[i]; r.ReplyTo.IsSet() && r.At != maker && holds(r) {
				return i
			}
		}
		return -1
	}
	at := -1
	if ev.Replaces.IsSet() {
		at = gives(func(r *Request) bool { return r.ReplyTo.names(ev.Replaces) })
	}
	if at < 0 {
		// rule.Wait does not count the first request, which made the claim.
		if !ev.Full && ev.Request.joins(requests, rule.Wait+1) {
			return append(requests, ev.Request), nil, true
		}
		at = gives(func(r *Request) bool { return r.Until != 0 && r.Until < ev.ReceivedAt })
	}
	if at < 0 && ev.Request.ReplyTo.IsSet() && ev.Request.ID != nil {
		at = gives(func(r *Request) bool { return bytes.Equal(r.ID, ev.Request.ID) })
	}
	if at < 0 {
		return nil, nil, false
	}
	gone := requests[at]
	rest := slices.Concat(requests[:at], requests[at+1:])
	if !ev.Request.joins(rest, requestsMax) {
		return nil, nil, false
	}
	return append(rest, ev.Request), &gone, true
}

// dispatched returns the request of an event that the task dispatches. Its client already has a response, so
// the request has no deadline.
func (r Request) dispatched() Request {
	r.Until = 0
	return r
}
