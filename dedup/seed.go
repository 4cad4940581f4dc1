package dedup

import (
	"fmt"
	"math"
)

// SeedTopic is the topic number in the position of a row that a seed made. No topic of the app has this
// number. The offset of such a position is the number of the seed in its file.
const SeedTopic = math.MaxUint16

// Seeded reports whether the row was made from a seed. Then another system emitted the first event of the key,
// before the app knew the key.
func (r *Row) Seeded() bool { return r.At.Topic == SeedTopic }

// SeedFate says what the app did with a seed. A seed is a key from another system, with the time at which that
// system saw the key first.
type SeedFate uint8

// Fates of a seed. The numbers are part of the encoding of seed counts.
const (
	SeedTaken       SeedFate = iota // the row of the seed is stored: events in its window are duplicates
	SeedKnown                       // another row already decides on the key
	SeedOutOfWindow                 // the seed is so old that its row would decide no event
	SeedTooLate                     // the app emitted an event of the key before the seed came
	SeedInFuture                    // the seed was first seen after broker time plus skew
	SeedFates       = 5
)

var seedFateNames = [SeedFates]string{"taken", "known", "out_of_window", "too_late", "in_future"}

// String returns the fate as it is written in reports.
func (f SeedFate) String() string { return seedFateNames[f] }

// DecideSeed decides on a seed as if it were an event that another system has emitted. prior is the row that
// decides on the seed's key, if found. With SeedTaken, DecideSeed returns the row to store. A seed does not
// move stream time, so its row may be ahead of stream time.
//
// A seed from the far future is refused, because its row would stay stored for a long time, and the changelog
// could not drop the rows behind it. If prior was made by an event of the app that is later than the seed, the
// app has already emitted that event although another system knew the key: the fate is SeedTooLate.
func DecideSeed(ev Event, prior Row, found bool, w Window, streamTime, brokerTime int64) (SeedFate, Row) {
	switch {
	case ev.Time > saturate(brokerTime, w.Skew):
		return SeedInFuture, Row{}
	case !w.Retains(ev.Time, streamTime):
		return SeedOutOfWindow, Row{}
	}
	verdict, row := Decide(ev, prior, found, w, streamTime)
	switch {
	case verdict == AfterWindow && ev.Time > streamTime:
		// The row prior must stay: the events on which it decides are not late yet, because a seed does not
		// move stream time.
		return SeedKnown, Row{}
	case verdict == Unique || verdict == AfterWindow:
		return SeedTaken, row
	case (verdict == Duplicate || verdict == Collision) && !prior.Seeded() && prior.First > ev.Time:
		return SeedTooLate, Row{}
	}
	return SeedKnown, Row{}
}

// SeedClaim returns the claim of a row in a form that another app can take over: without tokens and requests,
// which name places and times of the app that made them. That is only possible if no outcome of the claim can
// still arrive: the claim is completed, or its event was forwarded without a token, or the claim was made by
// LineClaim.
func (r *Row) SeedClaim() (Claim, error) {
	claim, err := DecodeClaim(r.Result)
	if err != nil {
		return claim, err
	}
	withoutToken := claim.Since == 0 && (r.Status == ClaimInProgress || r.Status == Submitted)
	if r.Status != Completed && !withoutToken || r.Attempt == 0 || !r.HasResult {
		return claim, fmt.Errorf("%w: a claim that is %v, in attempt %d: only a completed one, or one without a token, can be a seed", ErrRow, r.Status, r.Attempt)
	}
	return Claim{Key: claim.Key, Original: claim.Original, Bypassed: claim.Bypassed, Result: claim.Result, Headers: claim.Headers, Omitted: claim.Omitted, OmittedDigest: claim.OmittedDigest, AppToken: claim.AppToken}, nil
}

// LineClaim gives the row the claim that a line of another system's table describes, with the line's status. If
// the status is submitted, the claim is marked like the claim of an event that was forwarded without a token,
// because no outcome of it can arrive.
func (r *Row) LineClaim(status Status, claim *Claim) {
	r.Status, r.Attempt = status, 1
	if status == Submitted {
		claim.setForwarded()
	}
	r.setClaim(claim)
}

// SetSeedClaim copies the claim of the row from into the row of a seed. The lease of a claim in progress begins
// now, in broker time. fits reports whether a row can be stored; if the row is too long, its result is omitted.
func (r *Row) SetSeedClaim(from *Row, now int64, fits func(*Row) bool) error {
	claim, err := from.SeedClaim()
	if err != nil {
		return err
	}
	r.Status, r.Attempt = from.Status, from.Attempt
	if r.Status == ClaimInProgress {
		claim.Since = now
	}
	r.setClaim(&claim)
	if !fits(r) && claim.Omitted == 0 {
		claim.omitResult()
		r.setClaim(&claim)
	}
	return nil
}
