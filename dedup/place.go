package dedup

import (
	"bytes"
	"slices"
)

// A client by HTTP waits for the outcome until it disconnects or its timeout is over. Its request in the
// claim does not learn of that, and would use one of the ClaimRule.Wait places until the outcome arrives: a
// client that polls would use up all of them. So a duplicate that needs a place takes the place of a request
// whose client is gone, in this order:
//
//  1. The request that the event names (Replaces). An ingress knows which of its own clients are gone and
//     which key each of them asked for. So a client that comes again takes its former place and uses no
//     second one. A request whose client still waits keeps its place even if another request has the same
//     request id, because a client may send one request twice at the same time.
//  2. If no place is free: the first request whose deadline is over. Its client used another ingress process,
//     or one that ended.
//  3. If no deadline is over: the first request with the event's own request id. It is from the same sender,
//     who then waits by its latest request.
//
// Only requests by HTTP give up their places. A sender by Kafka may read its replies at any later time.

// placeIn gives the event's request a place among the requests of a claim. It returns the requests with it,
// and the request whose place it took, nil for a free place; or false if there is no place. maker is the
// position of the event that made the attempt, whose request uses no place.
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
