package judge

import (
	"fmt"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/wire"
)

// Reasons of replies to requests that waited for an outcome.
const (
	leaseOverReason  = "the lease ended without an outcome: the next event under the key is dispatched again"
	windowOverReason = "no outcome came within two windows and the grace: the claim is forgotten"
)

// answersMax bounds the claims that one progress record answers. The next one answers the
// rest.
const answersMax = 1024

// answerEvicted answers the requests of claims that a stream time evicts. Their rows are
// evicted after the transaction, so it is the last one that can.
func (t *State) answerEvicted(e *Emitter, route *app.Route, streamTime int64) error {
	if t.Waiting == nil {
		return nil
	}
	for _, digest := range t.Waiting.Before(route.NamespaceID, route.Span.Horizon(streamTime)) {
		if err := t.answerWaiting(e, route, digest, windowOverReason, nil); err != nil {
			return err
		}
	}
	return nil
}

// answerLeases answers the requests of claims whose leases have ended, at a broker time in
// ms. The claims stay: the next event under a key takes over.
func (t *State) answerLeases(e *Emitter, now int64) error {
	seen := [256]bool{}
	for _, route := range t.App.Routes {
		if route.Mode != rules.ClaimMode || seen[route.NamespaceID] || t.Waiting == nil {
			continue
		}
		seen[route.NamespaceID] = true
		evidence := t.evidence(route)
		end, known := evidence.LeasesBefore(&route.Rule)
		if !known {
			continue
		}
		at := dedup.ClaimEvent{ReceivedAt: now, DispatchedAt: t.joinedAt, TaskStartedAt: t.StartedAt, Evidence: evidence}
		over := t.Waiting.LeasedBefore(route.NamespaceID, end)
		for _, digest := range over[:min(len(over), answersMax)] {
			if err := t.answerWaiting(e, route, digest, leaseOverReason, &at); err != nil {
				return err
			}
		}
	}
	return nil
}

// answerWaiting answers the requests of a claim without an outcome, and removes them from
// its row. With at it does so only if the lease is over then.
func (t *State) answerWaiting(e *Emitter, route *app.Route, digest dedup.Digest, reason string, at *dedup.ClaimEvent) error {
	prior, found, err := t.Store.Get(digest)
	if err != nil {
		return err
	}
	claim := dedup.Claim{}
	if found {
		if claim, err = dedup.DecodeClaim(prior.Result); err != nil {
			return fmt.Errorf("%w: claim of key %v: %w", kafka.ErrIllegalState, digest, err)
		}
	}
	row := prior
	switch {
	case len(claim.Requests) == 0:
		row.Digest = digest
		t.Waiting.Note(&row, &claim) // the entry is out of date
		return nil
	case at != nil && !at.LeaseIsOver(&claim, route.Rule):
		return nil
	}
	counter := unansweredWindow
	if at != nil {
		counter = unansweredLease
	}
	left := t.replyWithoutOutcome(e, route, &row, &claim, reason, counter)
	t.put(e, &change{row: &row, claim: &claim, replaced: &prior, left: left})
	return nil
}

// replyWithoutOutcome removes the requests from a claim and its row, and replies to each. It
// returns their number.
func (t *State) replyWithoutOutcome(e *Emitter, route *app.Route, row *dedup.Row, claim *dedup.Claim, reason string, counter counterIndex) int {
	requests := row.DropRequests(claim)
	t.Log.Warn("requests answered without an outcome", "route", route.Name, "key", wire.KeyText(&claim.Key), "attempt", row.Attempt, "requests", len(requests), "reason", reason)
	for _, request := range requests {
		requested := t.App.ClaimRoute(request.Route, t.App.ClaimRoute(claim.Route, route))
		a := reply{verdict: dedup.InProgress, status: row.Status.String(), row: row, claim: claim, reason: reason, to: request, brokerTime: t.joinedAt}
		e.reply(requested, &a)
		e.respondWithout(&a)
		e.count(requested, counter)
	}
	return len(requests)
}
