package judge

import (
	"cmp"
	"fmt"

	"oncebus/dedup"
	"oncebus/processor/kafka"
)

// The row of a claim contains all requests that wait for its outcome. If it were written for each new
// request, 256 duplicates of a key would write 256 rows of up to 256 requests each. So the requests of
// one transaction first join the claim in memory; the row is written once, at the end of the
// transaction or before another event needs it.

// joining is a claim in memory, which requests of the open transaction can join.
type joining struct {
	row    dedup.Row // as stored, without the requests that joined
	claim  dedup.Claim
	joined bool // a request joined, so the stored row is out of date
	bytes  int  // upper bound for the encoded claim in the row to write
}

// joins has the claims of the open transaction that requests can join.
type joins struct {
	of    map[dedup.Digest]*joining
	order []*joining // in the order in which they were added; some are already written
	// requests is the number of requests in all these claims. Most of the claims' memory is used by them.
	requests int
}

// joinsMax bounds the requests in joins. If joins is full, the row of a further claim is written again for each
// of its requests.
const joinsMax = waitingMax

// joiningOf returns the claim in memory that decides an event; nil if no request can join it.
func (t *Judge) joiningOf(found *candidate) (*joining, error) {
	row := &found.prior
	if !found.hasPrior || row.Status != dedup.ClaimInProgress && row.Status != dedup.Submitted {
		return nil, nil
	}
	if open := t.joins.of[row.Digest]; open != nil {
		return open, nil
	}
	if t.joins.requests >= cmp.Or(t.JoinsMax, joinsMax) {
		return nil, nil
	}
	claim, err := dedup.DecodeClaim(row.Result)
	if err != nil {
		return nil, fmt.Errorf("%w: claim of key %v: %w", kafka.ErrIllegalState, row.Digest, err)
	}
	open := &joining{row: *row, claim: claim, bytes: len(row.Result) + dedup.RequestSlack*(1+len(claim.Requests))}
	if t.joins.of == nil {
		t.joins.of = map[dedup.Digest]*joining{}
	}
	t.joins.of[row.Digest] = open
	t.joins.order = append(t.joins.order, open)
	t.joins.requests += len(claim.Requests)
	return open, nil
}

// decideWaiting decides on an event that waits for the outcome of a claim in memory, or that gets in_progress.
// For any other event it writes the row of the claim, reads the row again and returns nil: the caller then
// decides by that row.
func (t *Judge) decideWaiting(j *Judging, ev *event, claimed *dedup.ClaimEvent, found *candidate) (*joining, error) {
	open, err := t.joiningOf(found)
	if open == nil || err != nil {
		return nil, err
	}
	c := &j.current.claim
	var waits bool
	*c, waits = dedup.DecideWaiting(claimed, &open.row, &open.claim, found.window, ev.route.Rule, found.streamTime)
	if waits && (!c.Write || t.fitsBytes(open.bytes+newest(c).BytesMax()+startBytes)) {
		return open, nil
	}
	return nil, t.writeFound(j.Emitter, found)
}

// writeFound writes the claim that decides an event, if requests joined it, and reads its row again.
func (t *Judge) writeFound(e *Emitter, found *candidate) (err error) {
	if t.joins.of[found.prior.Digest] != nil {
		found.prior, found.hasPrior, err = t.row(e, found.prior.Digest)
	}
	return err
}

// newest returns the request of the event that the decision c is about.
func newest(c *dedup.ClaimDecision) *dedup.Request {
	return &c.Claim.Requests[len(c.Claim.Requests)-1]
}

// join lets the request of an event join a claim in memory. left is how many requests left the claim.
func (t *Judge) join(open *joining, c *dedup.ClaimDecision, left int) {
	t.joins.requests += len(c.Claim.Requests) - len(open.claim.Requests)
	open.claim, open.joined = c.Claim, true
	open.bytes += newest(c).BytesMax()
	if t.Waiting != nil {
		t.Waiting.Note(&open.row, &open.claim)
	}
	t.OpenCounts.AddWaiting(&open.row, 1-left)
}

// row returns the stored row of a digest, with all requests that joined its claim.
func (t *State) row(e *Emitter, digest dedup.Digest) (row dedup.Row, found bool, err error) {
	t.writeJoined(e, digest)
	return t.Store.Get(digest)
}

// writeJoined writes the row of a claim in memory, if requests joined it, and removes the claim from
// memory.
func (t *State) writeJoined(e *Emitter, digest dedup.Digest) {
	open := t.joins.of[digest]
	if open == nil {
		return
	}
	delete(t.joins.of, digest)
	t.joins.requests -= len(open.claim.Requests)
	if open.joined {
		row := open.row
		row.JoinClaim(&open.claim)
		t.put(e, &change{row: &row, claim: &open.claim, replaced: &open.row}) // join counted the requests
	}
}

// writeAllJoined writes all claims in memory, in the order in which they were added.
func (t *State) writeAllJoined(e *Emitter) {
	for _, open := range t.joins.order {
		t.writeJoined(e, open.row.Digest)
	}
	t.discardJoins()
}

// discardJoins drops the claims in memory.
func (t *State) discardJoins() {
	clear(t.joins.order)
	t.joins = joins{of: t.joins.of, order: t.joins.order[:0]}
	clear(t.joins.of)
}
