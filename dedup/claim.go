package dedup

import (
	"encoding/binary"
	"fmt"
	"math"
)

// StatusForwarded is the claim status of an event that a worker forwarded without a claim, so that no outcome
// of the event can arrive.
const StatusForwarded = "forwarded"

// Step is a change of a claim's status.
type Step uint8

// Steps.
const (
	StepClaim    Step = iota // an event claims a free key
	StepExpire               // a duplicate takes over a claim whose lease expired
	StepSubmit               // outcome submitted: the key is never dispatched again
	StepComplete             // outcome completed: the result is recorded
	StepFree                 // outcome failed or rejected: the key is free
	StepForget               // outcome forget: the record is erased
	StepStart                // an executor asks before it runs: the lease no longer ends the claim
	StepRenew                // an executor still runs: the lease begins again
	steps
)

var stepNames = [steps]string{"claim", "expire", "submit", "complete", "free", "forget", "start", "renew"}

// String returns the step's name.
func (s Step) String() string { return stepNames[s] }

// claimMoves has the legal steps of each status; every other step is illegal:
//
//	          claim                submit             complete
//	freed ------------> in progress ------> submitted ---------> completed
//	  ^                 |  ^ | expire, start,   |                  ^ |
//	  |                 |  \_/ renew            |                  | |
//	  |                 \_______________________|___ complete _____/ |
//	  \____ free, forget _______________________/_____ forget ______/
//
// A key without a row counts as freed.
var claimMoves = map[Status]map[Step]Status{
	Freed:           {StepClaim: ClaimInProgress},
	ClaimInProgress: {StepExpire: ClaimInProgress, StepStart: ClaimInProgress, StepRenew: ClaimInProgress, StepSubmit: Submitted, StepComplete: Completed, StepFree: Freed, StepForget: Freed},
	Submitted:       {StepSubmit: Submitted, StepComplete: Completed, StepFree: Freed, StepForget: Freed},
	Completed:       {StepForget: Freed},
}

// move returns the status after a step; false if the step is illegal.
func (s Status) move(step Step) (Status, bool) {
	next, ok := claimMoves[s][step]
	return next, ok
}

// ClaimRule has the settings of a route that DecideClaim and ApplyOutcome need.
type ClaimRule struct {
	// Lease is how long a claim in progress prevents the dispatch of a duplicate, in ms of broker time. The
	// lease starts at the dispatch of the event. If HasGroup is set, it starts when the executor's consumer
	// group has committed the offset of the event.
	Lease int64
	// HasGroup reports that the route names the consumer group of its executor.
	HasGroup bool
	// Wait is how many duplicates of one claim may wait for the outcome. Every further duplicate gets its
	// reply at once.
	Wait int
	// ResultBytes is the longest result that is recorded, in bytes, headers included.
	ResultBytes int
}

// ClaimEvent is an event of claim mode with everything that DecideClaim needs to know about the event. All
// times are broker time, in Unix milliseconds.
type ClaimEvent struct {
	Event
	Key        [32]byte // the dedup key
	ReceivedAt int64    // when the broker received its repartition record
	// DispatchedAt is when the task dispatches the event. If the task has a backlog, this is long after
	// ReceivedAt. No executor can have the event before it is dispatched.
	DispatchedAt int64
	// TaskStartedAt is when the task started. leaseBegan needs it: while no task ran, an executor may have
	// produced an outcome that the repartition topic has only after a duplicate.
	TaskStartedAt int64
	Evidence      LeaseEvidence
	Request       Request // the request of the sender, to which the outcome is sent
	// Replaces is the address of an earlier request for the same key, whose client no longer waits; zero for
	// none. If that request waits, the event's request takes its place.
	Replaces Address
	// Full reports that the namespace already has as many waiting requests as are allowed. The event's request
	// may still take the place of another request.
	Full     bool
	AppToken bool // the token of the attempt that this event may start names the app
}

// A ClaimDecision is the decision on an event of claim mode.
type ClaimDecision struct {
	Verdict Verdict
	// Row is the row to write if Write is set, otherwise the stored row.
	Row   Row
	Write bool
	// Dispatch reports that the task sends the event to the executor, as attempt Row.Attempt.
	Dispatch bool
	// LeaseExpired reports that the task dispatches the event because the lease of the previous attempt
	// expired.
	LeaseExpired bool
	// Added is 1 if the request of the dispatched event was added to the claim, otherwise 0.
	Added int
	// Former is the claim that the new claim replaces, if an outcome of the replaced claim can still arrive;
	// else nil. The caller stores the former claim in a separate row.
	Former *FormerClaim
	// Reply reports that the duplicate gets its reply now and does not wait for the outcome.
	Reply bool
	// Replaced is the request whose place the duplicate took; nil for none. The replaced request gets its
	// reply now.
	Replaced *Request
	// Claim is the decoded claim of Row.
	Claim Claim
}

// Status returns the claim status for the reply to the event.
func (c *ClaimDecision) Status() string {
	if c.Row.Status == Submitted && c.Claim.Forwarded() {
		return StatusForwarded
	}
	return c.Row.Status.String()
}

// DecideClaim decides on an event of claim mode that Admit admitted. prior is the row of the event's digest,
// if found. streamTime is the stream time of the namespace before the event. The error wraps ErrRow.
//
// A duplicate that takes over a claim with an expired lease keeps the claim's requests: their senders get the
// outcome of the new attempt. An event after the window of a claim is a different operation: it makes a new
// claim, and the earlier claim keeps its requests (see FormerClaim).
func DecideClaim(ev ClaimEvent, prior Row, found bool, w Window, rule ClaimRule, streamTime int64) (ClaimDecision, error) {
	verdict := Unique
	if ev.Over {
		verdict = AfterWindow
	}
	var former *FormerClaim
	if found && w.Decides(&prior, streamTime) {
		current, err := DecodeClaim(prior.Result)
		if err != nil {
			return ClaimDecision{}, fmt.Errorf("claim of key %v: %w", prior.Digest, err)
		}
		switch {
		case w.Covers(prior.First, ev.Time):
			c, err := decideDuplicateClaim(ev, prior, current, rule)
			if c.Write {
				c.Row.setClaim(&c.Claim)
			}
			return c, err
		case ev.Time < prior.First:
			return ClaimDecision{Verdict: Late, Row: prior, Claim: current}, nil
		}
		verdict, former = AfterWindow, formerOf(prior, current)
	}
	row := Row{
		Digest: ev.Digest, First: ev.Time, At: ev.At, Fingerprint: ev.Fingerprint, NamespaceID: ev.NamespaceID,
		Shift: ev.Shift, Status: ClaimInProgress, Attempt: ev.Attempts + 1,
	}
	if found && w.Retains(prior.First, streamTime) {
		row.Attempt = max(row.Attempt, prior.Attempt+1) // an old executor's token must not match
	}
	claim := Claim{Key: ev.Key, Since: max(ev.ReceivedAt, ev.DispatchedAt), Original: ev.Request.ID, Route: ev.Request.Route, AppToken: ev.AppToken}
	claim.Requests = []Request{ev.Request.dispatched()}
	return write(ClaimDecision{Verdict: verdict, Dispatch: true, Added: 1, Former: former, Row: row, Claim: claim}), nil
}

// DropRequest removes the request of the dispatched event from the claim, because the row with that request
// would be too long to store.
func (c *ClaimDecision) DropRequest() {
	c.Claim.Requests = c.Claim.Requests[:len(c.Claim.Requests)-c.Added]
	c.Added = 0
	c.Row.setClaim(&c.Claim)
}

// DecideForwardedClaim decides on an event of claim mode that the worker forwards unchecked. It returns the row
// to write if Write is set. Dispatch reports that Row was made for this event; otherwise Row is the row of an
// earlier claim on the key.
//
// The forwarded event has no token, so no outcome of it can arrive. Therefore the key becomes submitted: its
// duplicates are not dispatched, and their senders do not wait. If the key already had a claim, that claim
// keeps its attempt and gets its outcome. But if that outcome is failed or rejected, it no longer frees the
// key, because the executor may have processed the forwarded event.
func DecideForwardedClaim(ev ClaimEvent, prior Row, found bool, w Window, streamTime int64) (ClaimDecision, error) {
	c, err := DecideClaim(ev, prior, found, w, ClaimRule{Lease: math.MaxInt64}, streamTime)
	switch {
	case err != nil:
		return ClaimDecision{}, err
	case c.Dispatch:
		c.Claim.Requests, c.Added = nil, 0 // the sender of the event already has a reply
		c.Claim.setForwarded()
	case c.Verdict == InProgress && !c.Claim.Bypassed:
		c.Claim.Bypassed = true
	default:
		return c, nil
	}
	c.Row.Status, _ = c.Row.Status.move(StepSubmit)
	return write(c), nil
}

// decideDuplicateClaim decides on a duplicate within the window. The caller encodes the claim into the row.
func decideDuplicateClaim(ev ClaimEvent, prior Row, current Claim, rule ClaimRule) (ClaimDecision, error) {
	if ev.collides(&prior) {
		return ClaimDecision{Verdict: Collision, Row: prior, Claim: current}, nil
	}
	switch prior.Status {
	case Completed:
		return ClaimDecision{Verdict: Replayed, Row: prior, Claim: current, Reply: true}, nil
	case ClaimInProgress:
		if ev.Evidence.over(&ev, &current, &rule) {
			prior.Attempt++
			// The sender of the event that takes the claim over is answered like the sender of the first event
			// of a key, because its event, too, makes an attempt.
			taker := ev.At
			current.Taker, current.Original = &taker, ev.Request.ID
			current.Since, current.Route, current.AppToken = max(ev.ReceivedAt, ev.DispatchedAt), ev.Request.Route, ev.AppToken
			added := 0
			// A request for which the claim has no place is not stored, so its sender does not get the outcome.
			if ev.Request.joins(current.Requests, requestsMax) {
				current.Requests, added = append(current.Requests, ev.Request.dispatched()), 1
			}
			return ClaimDecision{Verdict: Unique, Write: true, Dispatch: true, LeaseExpired: true, Added: added, Row: prior, Claim: current}, nil
		}
	case Submitted:
		if current.Forwarded() {
			return ClaimDecision{Verdict: Duplicate, Row: prior, Claim: current, Reply: true}, nil
		}
	case Seen, Freed:
		return ClaimDecision{}, fmt.Errorf("%w: status %d under a claim", ErrRow, prior.Status)
	}
	if rule.Wait > 0 {
		if requests, replaced, ok := ev.placeIn(current.Requests, current.Maker(prior.At), rule); ok {
			current.Requests = requests
			return ClaimDecision{Verdict: InProgress, Write: true, Row: prior, Claim: current, Replaced: replaced}, nil
		}
	}
	return ClaimDecision{Verdict: InProgress, Row: prior, Claim: current, Reply: true}, nil
}

// clocksApartMax is how far the clocks of two brokers may differ, in ms.
const clocksApartMax = 60_000

// leaseBegan returns the broker time at which the lease of a claim began.
//
//   - Without evidence every lease begins again when the task starts: while no task ran, an executor may have
//     stored an outcome that the task has not read yet.
//   - With evidence a lease begins again only when the clock of the brokers was changed by a step.
//   - A claim that is more than clocksApartMax later than its duplicate was made while the broker's clock was
//     ahead. Its lease begins when the task starts, or at the last step of broker time.
func leaseBegan(ev *ClaimEvent, claim *Claim) int64 {
	latest := max(ev.ReceivedAt, ev.DispatchedAt) + clocksApartMax
	switch {
	case claim.Since > latest:
		return max(ev.TaskStartedAt, ev.Evidence.SteppedAt)
	case ev.Evidence.Written:
		return max(claim.Since, ev.Evidence.SteppedAt)
	default:
		return max(claim.Since, ev.TaskStartedAt)
	}
}

// requestsMax and requestsBytesMax bound the number and the bytes of a claim's requests. All requests of a
// claim are stored in one row, and a row is one record of the changelog, whose size is limited.
const requestsMax, requestsBytesMax = 2 * WaitingMax, 256 << 10

// joins reports whether a claim with these requests may store one more request: with that request, the claim
// may have at most most requests, in at most requestsBytesMax bytes.
func (r *Request) joins(requests []Request, most int) bool {
	if len(requests) >= most {
		return false
	}
	size := r.bytes()
	for i := range requests {
		size += requests[i].bytes()
	}
	return size <= requestsBytesMax
}

// bytes is an upper bound of the bytes that the encoded request takes in a claim.
func (r *Request) bytes() int {
	n := 32 + len(r.Key) + len(r.ID) + len(r.Route) // positions and lengths
	if r.ReplyTo.IsSet() {
		n += 1 + AddressBytesMax + binary.MaxVarintLen64
	}
	return n
}

// write encodes the claim into the row and sets Write.
func write(c ClaimDecision) ClaimDecision {
	c.Write = true
	c.Row.setClaim(&c.Claim)
	return c
}

// setClaim encodes a claim into its row.
func (r *Row) setClaim(c *Claim) { r.Result, r.HasResult = c.Append(nil), true }

// OutcomeKind is the kind of an executor's outcome.
type OutcomeKind uint8

// Kinds of outcomes.
const (
	OutcomeSubmitted OutcomeKind = iota // another system has the work: the key is never dispatched again
	OutcomeCompleted                    // done: the result is recorded
	OutcomeFailed                       // not done: frees the key
	OutcomeRejected                     // refused: frees the key
	OutcomeForget                       // erases the record
	OutcomeStart                        // an executor asks before the work: see Outcome.StartID
	OutcomeRenew                        // an executor asks during the work: the lease begins again
	outcomeKinds
)

var outcomeNames = [outcomeKinds]string{"submitted", "completed", "failed", "rejected", "forget", "start", "renew"}

// OutcomeKinds lists every kind, for metrics.
var OutcomeKinds = [...]OutcomeKind{OutcomeSubmitted, OutcomeCompleted, OutcomeFailed, OutcomeRejected, OutcomeForget, OutcomeStart, OutcomeRenew}

// String returns the kind as it is written in headers and metric labels.
func (k OutcomeKind) String() string {
	if k >= outcomeKinds {
		return "unknown"
	}
	return outcomeNames[k]
}

// ClaimStatus returns the claim status in the replies to this outcome.
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

var outcomeSteps = [outcomeKinds]Step{StepSubmit, StepComplete, StepFree, StepFree, StepForget, StepStart, StepRenew}

// An Outcome is a message about an attempt, from an executor or from an operator.
type Outcome struct {
	Kind    OutcomeKind
	Token   Token
	Value   []byte // nil is null
	Headers []Header
	// StartID names the executor that asks. ReceivedAt is when the broker received the outcome's repartition
	// record, in broker time. Only outcomes whose kind is a question of the executor (see Asks) have these two
	// fields.
	StartID    []byte
	ReceivedAt int64
}

// An OutcomeDecision is the decision on an outcome.
type OutcomeDecision struct {
	// Refused is the reason why the outcome has no effect; "" if the outcome was applied, now or earlier.
	Refused string
	// Repeated reports that the same outcome was applied earlier. If an executor repeats a start that was
	// granted to it, the start is granted again.
	Repeated bool
	// Conflicting reports why the outcome was refused: the same attempt was completed with a different result
	// earlier, which shows that the executor ran the attempt twice.
	Conflicting bool
	// KeyKept reports that an outcome of kind failed or rejected did not free the key, because a worker also
	// forwarded an event of the key unchecked, and the executor may have processed it.
	KeyKept bool
	// Row is the row to write. If Refused or Repeated is set, Row is the stored row, or zero if no row is
	// stored.
	Row Row
	// Claim is the decoded claim of Row. If the outcome freed the key, Claim is the claim as it was before.
	Claim Claim
	// Recipients lists the requests that get the outcome now.
	Recipients []Request
}

// ApplyOutcome applies an outcome to prior: the row of the token's digest or, if found, the row of the former
// claim to which the token belongs. A row counts as absent if its namespace is not the namespace of the token,
// because a producer that may write outcomes of one namespace has no right to write outcomes of another. The
// error wraps ErrRow.
func ApplyOutcome(o *Outcome, prior Row, found bool, w Window, rule ClaimRule, streamTime int64) (OutcomeDecision, error) {
	if !found || prior.NamespaceID != o.Token.NamespaceID || !w.Retains(prior.First, streamTime) {
		return OutcomeDecision{Refused: "no claim: the key has no row"}, nil
	}
	claim, err := DecodeClaim(prior.Result)
	if err != nil {
		return OutcomeDecision{}, fmt.Errorf("claim of key %v: %w", prior.Digest, err)
	}
	s := OutcomeDecision{Row: prior, Claim: claim}
	if !o.Token.fits(prior) {
		s.Refused = fmt.Sprintf("token is for attempt %d, current is %d", o.Token.Attempt, prior.Attempt)
		return s, nil
	}
	if claim.AppToken && o.Token.App == 0 {
		s.Refused = "token names no app, the token of this claim does: it is of another app, or of an older attempt"
		return s, nil
	}
	if o.Kind.Asks() {
		s.decideQuestion(o)
		return s, nil
	}
	step := outcomeSteps[o.Kind]
	next, legal := prior.Status.move(step)
	if !legal || next == prior.Status {
		next, _ := ClaimInProgress.move(step)
		switch {
		case step == StepComplete && next == prior.Status && !claim.completedWith(o):
			s.Conflicting = true
			s.Refused = fmt.Sprintf("attempt %d was completed with another result before: it was executed twice, and its first result stays", prior.Attempt)
		case next == prior.Status:
			s.Repeated = true
		default:
			s.Refused = fmt.Sprintf("%v is too late: the key is %v", o.Kind, prior.Status)
		}
		return s, nil
	}
	if claim.Bypassed && step == StepFree {
		s.keepKey()
		return s, nil
	}
	s.Row.Status = next
	if next == Freed {
		s.Recipients, s.Claim.Requests = claim.Requests, nil
		s.Row.Result, s.Row.HasResult = nil, false
		return s, nil
	}
	if next == Completed {
		s.Recipients, s.Claim.Requests = claim.Requests, nil
		s.Claim.setResult(o, rule.ResultBytes)
		if o.isFormer(&prior) && claim.AppToken && s.Claim.Omitted == 0 {
			s.Claim.omitResult() // no event can ask for the result of a former claim, and its digest is enough to compare
		}
	}
	s.Row.setClaim(&s.Claim)
	return s, nil
}

// keepKey applies an outcome of kind failed or rejected without freeing the key, because the executor may have
// processed the event that the worker forwarded unchecked.
func (s *OutcomeDecision) keepKey() {
	if s.Claim.Forwarded() {
		s.Repeated = true
		return
	}
	s.KeyKept, s.Recipients, s.Claim.Requests = true, s.Claim.Requests, nil
	s.Claim.setForwarded()
	s.Row.setClaim(&s.Claim)
}

// OmitResult removes the result of a completed claim, because the row with that result would be too long to
// store.
func (s *OutcomeDecision) OmitResult() {
	s.Claim.omitResult()
	s.Row.setClaim(&s.Claim)
}

// WaitingMax is the highest value of a route's max_waiting.
const WaitingMax = 256
