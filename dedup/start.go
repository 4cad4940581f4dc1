package dedup

import (
	"bytes"
	"fmt"
)

// Asks reports whether the sender of the outcome gets an answer, granted or superseded: an executor asks
// before it runs (start) or while it runs (renew).
func (k OutcomeKind) Asks() bool { return k == OutcomeStart || k == OutcomeRenew }

// StartIDMax is the longest start id in bytes.
const StartIDMax = 128

// decideQuestion decides on a start or a renewal whose token names the current attempt. Refused says why the
// attempt is superseded.
//
// A start is granted to one start id only. The same start id gets the grant again, because the answer may have
// been lost. After the grant no duplicate takes the claim over, however long the executor is silent, because
// the executor may have done the work, and nobody else can know whether it did. The grant ends with the
// attempt: by an outcome, or at the end of the window.
//
// A renewal restarts the lease. A claim whose start was granted has no lease any more, so a renewal of it only
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
		// If claim.Since is far ahead, it was written while the clock of a broker was ahead; that clock was set
		// back since.
		if o.ReceivedAt > claim.Since || claim.Since > o.ReceivedAt+clocksApartMax {
			claim.Since = o.ReceivedAt
		}
		s.Row.setClaim(claim)
	}
}
