package dedup

import (
	"fmt"
	"math"
)

// SeedTopic is the topic number in the position of a row that a seed made. No topic of the
// app has it. The offset of such a position is the number of the seed in its file.
const SeedTopic = math.MaxUint16

// Seeded reports whether a seed made the row. Its first event was emitted elsewhere, before
// the app had the key.
func (r *Row) Seeded() bool { return r.At.Topic == SeedTopic }

// SeedFate is what became of a seed: a key of which another system says when it was first
// seen.
type SeedFate uint8

// Fates of a seed. The numbers are part of the encoding of seed counts.
const (
	SeedTaken       SeedFate = iota // its row is stored: events in its window are duplicates
	SeedKnown                       // a row decides already
	SeedOutOfWindow                 // a row so old decides no event any more
	SeedTooLate                     // an event of the key was emitted before the seed came
	SeedInFuture                    // first seen after broker time plus skew
	SeedFates       = 5
)

var seedFateNames = [SeedFates]string{"taken", "known", "out_of_window", "too_late", "in_future"}

// String returns the fate as in reports.
func (f SeedFate) String() string { return seedFateNames[f] }

// DecideSeed decides on a seed as on an event that was emitted elsewhere. prior is the row
// that decides on its key, if found. It returns the row to store with SeedTaken. A seed moves
// no stream time, so its row may be ahead of it.
//
// A seed from the far future is refused: its row would stay, and keep all later ones in the
// changelog. A row that an event made after the seed's time shows that the event was emitted
// although the key was known elsewhere.
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
		// Events that the replaced row decides are not late yet: a seed moves no stream time.
		return SeedKnown, Row{}
	case verdict == Unique || verdict == AfterWindow:
		return SeedTaken, row
	case (verdict == Duplicate || verdict == Collision) && !prior.Seeded() && prior.First > ev.Time:
		return SeedTooLate, Row{}
	}
	return SeedKnown, Row{}
}

// SeedClaim returns the claim of a row as another app can have it: without tokens and requests,
// which name places and times of the app that made them. So it is completed, or a claim of which
// no attempt of an app can tell the outcome: forwarded, or that of a line.
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

// LineClaim makes the row that of a line of another system's table, with a status of it. Of a
// submitted claim no outcome can come, as of one that was forwarded without a token.
func (r *Row) LineClaim(status Status, claim *Claim) {
	r.Status, r.Attempt = status, 1
	if status == Submitted {
		claim.setForwarded()
	}
	r.setClaim(claim)
}

// SetSeedClaim makes the row of a seed one with a claim, that of from. The lease of one in
// progress begins now, in broker time. fits reports whether a row can be stored; the result of
// one that cannot is omitted.
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
