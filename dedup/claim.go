package dedup

import (
	"fmt"
	"math"
)

// Step is something that moves a claim from one status to another.
type Step uint8

// Steps.
const (
	StepClaim    Step = iota // an event claims a key that nobody holds
	StepExpire               // a copy claims a key whose lease is over
	StepSubmit               // outcome submitted: pinned
	StepComplete             // outcome completed: the result stands
	StepFree                 // outcome failed or rejected: may run again
	StepForget               // outcome forget: erased
	steps
)

var stepNames = [steps]string{"claim", "reclaim", "submit", "complete", "free", "forget"}

// String returns the step's name.
func (s Step) String() string { return stepNames[s] }

// claimMoves are the legal moves of a claim's life; what is not listed is
// refused:
//
//	          claim                submit             complete
//	freed ------------> in progress ------> submitted ---------> completed
//	  ^                 |  ^ | reclaim          |                  ^ |
//	  |                 |  \_/                  |                  | |
//	  |                 \_______________________|___ complete _____/ |
//	  \____ free, forget _______________________/_____ forget ______/
//
// A key without a row counts as freed.
var claimMoves = map[Status]map[Step]Status{
	Freed:           {StepClaim: ClaimInProgress},
	ClaimInProgress: {StepExpire: ClaimInProgress, StepSubmit: Submitted, StepComplete: Completed, StepFree: Freed, StepForget: Freed},
	Submitted:       {StepSubmit: Submitted, StepComplete: Completed, StepFree: Freed, StepForget: Freed},
	Completed:       {StepForget: Freed},
}

// move returns the status after a step, false if the step is not legal.
func (s Status) move(step Step) (Status, bool) {
	next, ok := claimMoves[s][step]
	return next, ok
}

// ClaimRule is what a route says of claims.
type ClaimRule struct {
	// Lease is how long, in ms of the broker's clock, a claim in progress keeps
	// others from running the event. It runs from when the event was handed
	// out, and anew from when a task begins to judge.
	Lease int64
	// Wait holds the reply to a copy back until the outcome is there, for at
	// most so many requesters of a claim; 0 answers every copy at once.
	Wait int
	// ResultBytes is the longest result, headers included, that is kept.
	ResultBytes int
}

// ClaimEvent is what DecideClaim needs to know of an event beyond Decide.
type ClaimEvent struct {
	Event
	Key        [32]byte // the dedup key
	ReceivedAt int64    // when it came to its task's partition; broker-observed, Unix milliseconds
	// Now is the broker's present in which it is judged. An event may have
	// waited, and nobody works on it before.
	DispatchedAt int64
	// Up is the broker's present at which the task began to judge. Outcomes
	// that were told while nobody judged may come in behind a copy.
	TaskStartedAt int64
	Request       Request // who is to get the outcome
}

// A Claimed is the judgement on an event of claim mode.
type ClaimDecision struct {
	Verdict Verdict
	// Row is the row to write where Write says so, else the row that stands.
	Row   Row
	Write bool
	// Run says that the event goes to the executor, as Row.Attempt.
	Run bool
	// Reclaimed says that it runs because a lease is over.
	LeaseExpired bool
	// Added is how many requests an event that runs added, its own or none;
	// Carried is how many AfterWindow took over from the claim before.
	Added, Carried int
	// Reply says that the copy is answered now.
	Reply bool
	// Claim is Row's, decoded; the one that stood before AfterWindow replaced it
	// is gone.
	Claim Claim
}

// DecideClaim judges an event of claim mode that Admit let through. prior and
// held are the row that the store has; streamTime is the namespace's.
//
// A claim that was never answered keeps its requesters when the key is claimed
// anew: the new attempt's outcome is theirs too.
func DecideClaim(ev ClaimEvent, prior Row, held bool, w Window, rule ClaimRule, streamTime int64) (ClaimDecision, error) {
	verdict := Unique
	if ev.Over {
		verdict = AfterWindow
	}
	var standing Claim
	if held && w.Stands(&prior, streamTime) {
		var err error
		if standing, err = DecodeClaim(prior.Result); err != nil {
			return ClaimDecision{}, fmt.Errorf("claim of key %v: %w", prior.Digest, err)
		}
		switch {
		case w.Covers(prior.First, ev.Time):
			return decideDuplicateClaim(ev, prior, standing, rule)
		case ev.Time < prior.First:
			return ClaimDecision{Verdict: Late, Row: prior, Claim: standing}, nil
		}
		verdict = AfterWindow
	}
	row := Row{
		Digest: ev.Digest, First: ev.Time, At: ev.At, Fingerprint: ev.Fingerprint, NamespaceID: ev.NamespaceID,
		Shift: ev.Shift, Status: ClaimInProgress, Attempt: ev.Attempts + 1,
	}
	if held && w.Held(prior.First, streamTime) {
		row.Attempt = max(row.Attempt, prior.Attempt+1) // an old executor's token must not fit
	}
	claim := Claim{Key: ev.Key, Since: max(ev.ReceivedAt, ev.DispatchedAt), Original: ev.Request.ID}
	if verdict == AfterWindow && prior.Status != Completed {
		claim.Requests = standing.Requests
	}
	carried := len(claim.Requests)
	claim.Requests = append(claim.Requests, ev.Request)
	return write(ClaimDecision{Verdict: verdict, Run: true, Added: 1, Carried: carried, Row: row, Claim: claim}), nil
}

// Leave takes the request of an event that runs out of the claim again, where
// the row is too long with it.
func (c *ClaimDecision) DropRequest() {
	c.Claim.Requests = c.Claim.Requests[:len(c.Claim.Requests)-c.Added]
	c.Added = 0
	c.Row.setClaim(&c.Claim)
}

// RememberClaim returns what to record of an event of claim mode that went to
// the executor without a claim, while nobody could look: Row where Write says
// so. Run says that Row is the event's own, and not that of a claim before it.
//
// Its executor has no token, so its outcome will never be known: the key counts
// as submitted, and its copies do not run. Where a claim stood before, its
// attempt goes on and its outcome is told, but a failure frees the key no more.
func DecideForwardedClaim(ev ClaimEvent, prior Row, held bool, w Window, streamTime int64) (ClaimDecision, error) {
	c, err := DecideClaim(ev, prior, held, w, ClaimRule{Lease: math.MaxInt64}, streamTime)
	switch {
	case err != nil:
		return ClaimDecision{}, err
	case c.Run:
		c.Claim.Requests, c.Added = c.Claim.Requests[:c.Carried], 0 // its own sender was answered
	case c.Verdict == InProgress && !c.Claim.Bypassed:
		c.Claim.Bypassed = true
	default:
		return c, nil
	}
	c.Row.Status, _ = c.Row.Status.move(StepSubmit)
	return write(c), nil
}

// decideCopy judges a copy within the window.
func decideDuplicateClaim(ev ClaimEvent, prior Row, standing Claim, rule ClaimRule) (ClaimDecision, error) {
	if ev.collides(&prior) {
		return ClaimDecision{Verdict: Collision, Row: prior, Claim: standing}, nil
	}
	switch prior.Status {
	case Completed:
		return ClaimDecision{Verdict: Replayed, Row: prior, Claim: standing, Reply: true}, nil
	case ClaimInProgress:
		if ev.ReceivedAt-max(standing.Since, ev.TaskStartedAt) > rule.Lease {
			prior.Attempt++
			standing.Since = max(ev.ReceivedAt, ev.DispatchedAt)
			added := 0
			// Should executors fail for ever, somebody goes unanswered in the end.
			if ev.Request.joins(standing.Requests, requestsMax) {
				standing.Requests, added = append(standing.Requests, ev.Request), 1
			}
			return write(ClaimDecision{Verdict: Unique, Run: true, LeaseExpired: true, Added: added, Row: prior, Claim: standing}), nil
		}
	case Submitted:
	default:
		return ClaimDecision{}, fmt.Errorf("%w: status %d under a claim", ErrRow, prior.Status)
	}
	// The first in line is the one that claimed.
	if rule.Wait > 0 && ev.Request.joins(standing.Requests, rule.Wait+1) {
		standing.Requests = append(standing.Requests, ev.Request)
		return write(ClaimDecision{Verdict: InProgress, Row: prior, Claim: standing}), nil
	}
	return ClaimDecision{Verdict: InProgress, Row: prior, Claim: standing, Reply: true}, nil
}

// requestsMax and requestsBytesMax bound the requests of a claim, however many
// may wait: they are part of one row of the changelog.
const requestsMax, requestsBytesMax = 2 * WaitingMax, 256 << 10

// joins tells whether a request may join those of a claim, at most so many.
func (r *Request) joins(requests []Request, most int) bool {
	size := r.bytes()
	for i := range requests {
		size += requests[i].bytes()
	}
	return len(requests) < most && size <= requestsBytesMax
}

// bytes is at least what the request takes in a claim.
func (r *Request) bytes() int {
	n := 32 + len(r.Key) + len(r.ID) // positions and lengths
	if r.ReplyTo.IsSet() {
		n += 1 + AddressBytesMax
	}
	return n
}

// write encodes the claim into the row.
func write(c ClaimDecision) ClaimDecision {
	c.Write = true
	c.Row.setClaim(&c.Claim)
	return c
}

// keep encodes a claim into its row.
func (r *Row) setClaim(c *Claim) { r.Result, r.HasResult = c.Append(nil), true }

// OutcomeKind is what an executor says of an attempt.
type OutcomeKind uint8

// Kinds of outcomes.
const (
	OutcomeSubmitted OutcomeKind = iota // the exchange has it: never run again
	OutcomeCompleted                    // done: the result is recorded
	OutcomeFailed                       // not done: may run again
	OutcomeRejected                     // refused: may run again
	OutcomeForget                       // erase the record
	outcomeKinds
)

var outcomeNames = [outcomeKinds]string{"submitted", "completed", "failed", "rejected", "forget"}

// OutcomeKinds lists every kind, for metrics.
var OutcomeKinds = [...]OutcomeKind{OutcomeSubmitted, OutcomeCompleted, OutcomeFailed, OutcomeRejected, OutcomeForget}

// String returns the kind as it stands in headers and metric labels.
func (k OutcomeKind) String() string {
	if k >= outcomeKinds {
		return "unknown"
	}
	return outcomeNames[k]
}

// ClaimStatus returns what replies say became of a claim that got the outcome.
func (k OutcomeKind) ClaimStatus() string {
	if k == OutcomeForget {
		return "erased"
	}
	return k.String()
}

// ParseOutcomeKind reads a kind from a header.
func ParseOutcomeKind(text []byte) (OutcomeKind, bool) {
	for k, name := range outcomeNames {
		if name == string(text) {
			return OutcomeKind(k), true
		}
	}
	return 0, false
}

var outcomeSteps = [outcomeKinds]Step{StepSubmit, StepComplete, StepFree, StepFree, StepForget}

// An Outcome is what an executor, or an operator, says of a claim.
type Outcome struct {
	Kind    OutcomeKind
	Token   Token
	Value   []byte // nil is null
	Headers []Header
}

// A Settled is what became of an outcome.
type OutcomeDecision struct {
	// Refused says why the outcome counts for nothing; "" if it was applied
	// or came twice.
	Refused string
	// Repeated says that the same outcome was applied before.
	Repeated bool
	// Row is to be written; of an outcome that is refused or repeated it is the
	// one that stands, zero if the key is not known.
	Row Row
	// Claim is Row's, decoded; of a key that was freed it says whose it was.
	Claim Claim
	// Answer lists who gets the outcome now.
	Answer []Request
}

// Settle judges an outcome against the row held for its digest. A row of another
// namespace than the token's is not known to it: whoever may tell outcomes of
// one namespace settles nothing in another.
func ApplyOutcome(o *Outcome, prior Row, held bool, w Window, rule ClaimRule, streamTime int64) (OutcomeDecision, error) {
	if !held || prior.NamespaceID != o.Token.NamespaceID || !w.Held(prior.First, streamTime) {
		return OutcomeDecision{Refused: "no claim: the key is not known any more"}, nil
	}
	claim, err := DecodeClaim(prior.Result)
	if err != nil {
		return OutcomeDecision{}, fmt.Errorf("claim of key %v: %w", prior.Digest, err)
	}
	s := OutcomeDecision{Row: prior, Claim: claim}
	if !o.Token.fits(prior) {
		s.Refused = fmt.Sprintf("of attempt %d, the key is at attempt %d", o.Token.Attempt, prior.Attempt)
		return s, nil
	}
	step := outcomeSteps[o.Kind]
	next, legal := prior.Status.move(step)
	if !legal || next == prior.Status {
		if next, _ := ClaimInProgress.move(step); next == prior.Status {
			s.Repeated = true
		} else {
			s.Refused = fmt.Sprintf("%v comes too late: the key is %v", o.Kind, prior.Status)
		}
		return s, nil
	}
	if claim.Bypassed && step == StepFree {
		// The copy that went out unchecked may have been carried out.
		s.Answer, s.Claim.Requests = claim.Requests, nil
		s.Row.setClaim(&s.Claim)
		return s, nil
	}
	s.Row.Status = next
	if next == Freed {
		s.Answer, s.Claim.Requests = claim.Requests, nil
		s.Row.Result, s.Row.HasResult = nil, false
		return s, nil
	}
	if next == Completed {
		s.Answer, s.Claim.Requests = claim.Requests, nil
		s.Claim.setResult(o, rule.ResultBytes)
	}
	s.Row.setClaim(&s.Claim)
	return s, nil
}

// Omit leaves the result of a completed claim out, where the row is too long
// with it.
func (s *OutcomeDecision) OmitResult() {
	s.Claim.omitResult()
	s.Row.setClaim(&s.Claim)
}

const (
	WaitingMax = 256
)
