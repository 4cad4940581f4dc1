package dedup

import (
	"bytes"
	"fmt"
)

// Asks reports whether the sender of the outcome gets an answer, granted or superseded:
// an executor asks before it runs (start), or while it runs (renew).
func (k OutcomeKind) Asks() bool { return k == OutcomeStart || k == OutcomeRenew }

// StartIDMax is the longest start id in bytes.
const StartIDMax = 128

// decideQuestion decides on a start or a renewal with the token of the current attempt.
// Refused says why the attempt is superseded.
//
// A start is granted to one start id only, and again to the same one: the answer may be
// lost. From then on no duplicate takes the claim over, because after any time the work may
// have been done, and only its executor can know. The grant ends with the attempt: by an
// outcome, or with the window.
//
// A renewal lets the lease begin again. A started claim has none, so its renewal only
// confirms that the attempt is current.
func (s *OutcomeDecision) decideQuestion(o *Outcome) {
	claim := &s.Claim
	_, legal := s.Row.Status.move(outcomeSteps[o.Kind])
	switch started := claim.StartID != nil; {
	case !legal:
		s.Refused = fmt.Sprintf("%v is too late: the key is %v", o.Kind, s.Row.Status)
	case started && !bytes.Equal(claim.StartID, o.StartID):
		s.Refused = fmt.Sprintf("attempt %d was started with another start id", s.Row.Attempt)
	case started:
		s.Repeated = true
	default:
		if o.Kind == OutcomeStart {
			claim.StartID = o.StartID
		}
		// A time far ahead is of a broker whose clock was set back since.
		if o.ReceivedAt > claim.Since || claim.Since > o.ReceivedAt+clocksApartMax {
			claim.Since = o.ReceivedAt
		}
		s.Row.setClaim(claim)
	}
}
