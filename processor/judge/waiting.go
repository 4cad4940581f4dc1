package judge

import (
	"fmt"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/wire"
)

// Reasons in the replies to requests that waited for an outcome.
const (
	leaseOverReason  = "the lease ended without an outcome: the next event under the key is dispatched again"
	windowOverReason = "no outcome came within two windows and the grace: the claim is forgotten"
)

// answersMax bounds the claims that a task answers on one progress record. The next progress record
// answers the rest.
const answersMax = 1024

// unanswered counts the requests that are answered without an outcome for the same reason. One log line covers
// all of them, because a route may have very many.
type unanswered struct {
	reason         string
	counter        counterIndex
	keys, requests int
	key            string // first of these keys
	attempt        uint32
}

func (u *unanswered) log(t *State, route *app.Route) {
	if u.keys > 0 && t.mayLog(lineUnanswered) {
		t.Log.Warn("requests answered without an outcome", "route", route.Name, "requests", u.requests, "keys", u.keys, "first_key", u.key, "attempt", u.attempt, "reason", u.reason)
	}
}

// answerEvicted answers the requests of claims that a new stream time evicts. It must do so in this
// transaction: the rows are evicted after its commit.
func (t *State) answerEvicted(e *Emitter, route *app.Route, streamTime int64) error {
	if t.Waiting == nil {
		return nil
	}
	u := unanswered{reason: windowOverReason, counter: unansweredWindow}
	for _, digest := range t.Waiting.Before(route.NamespaceID, t.window(route).Horizon(streamTime)) {
		if err := t.answerWaiting(e, route, digest, &u, nil); err != nil {
			return err
		}
	}
	u.log(t, route)
	return nil
}

// AnswerShortened answers the requests of claims that a shorter window evicts. It does so in the first
// transaction under a newer route set.
func (t *State) AnswerShortened(e *Emitter) error {
	if t.Open.Set == t.Committed.Set || t.Waiting == nil {
		return nil
	}
	for _, route := range t.App.Routes {
		if streamTime := t.streamTime(route.NamespaceID); route.Mode == rules.ClaimMode && streamTime != dedup.NoStreamTime {
			if err := t.answerEvicted(e, route, streamTime); err != nil {
				return err
			}
		}
	}
	return nil
}

// answerLeases answers the requests of claims whose leases have ended by broker time now, in ms. It keeps the
// claims: the next event of such a key takes the claim over.
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
		u := unanswered{reason: leaseOverReason, counter: unansweredLease}
		for _, digest := range t.Waiting.LeasedBefore(route.NamespaceID, end, answersMax) {
			if err := t.answerWaiting(e, route, digest, &u, &at); err != nil {
				return err
			}
		}
		u.log(t, route)
	}
	return nil
}

// answerWaiting answers the requests of a claim without an outcome, and removes them from its row. If
// at is given, it does so only if the lease is over at that time.
func (t *State) answerWaiting(e *Emitter, route *app.Route, digest dedup.Digest, u *unanswered, at *dedup.ClaimEvent) error {
	prior, found, err := t.row(e, digest)
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
		t.Waiting.Note(&row, &claim) // the entry in Waiting was out of date
		return nil
	case at != nil && !at.LeaseIsOver(&claim, route.Rule):
		return nil
	}
	left := t.replyWithoutOutcome(e, route, &row, &claim, u)
	t.put(e, &change{row: &row, claim: &claim, replaced: &prior, left: left})
	return nil
}

// replyWithoutOutcome removes the requests from a claim and its row, and replies to each of them. It
// returns their number.
func (t *State) replyWithoutOutcome(e *Emitter, route *app.Route, row *dedup.Row, claim *dedup.Claim, u *unanswered) int {
	requests := row.DropRequests(claim)
	if u.keys == 0 {
		u.key, u.attempt = wire.KeyText(&claim.Key), row.Attempt
	}
	u.keys++
	u.requests += len(requests)
	for _, request := range requests {
		requested := t.App.ClaimRoute(request.Route, t.App.ClaimRoute(claim.Route, route))
		a := reply{verdict: dedup.InProgress, status: row.Status.String(), row: row, claim: claim, reason: u.reason, to: request, brokerTime: t.joinedAt}
		e.reply(requested, &a)
		e.respondWithout(&a)
		e.count(requested, u.counter)
	}
	return len(requests)
}
