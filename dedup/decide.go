package dedup

// Verdict is the decision on one event.
type Verdict uint8

// Verdicts.
const (
	Unique      Verdict = iota // first event of its key: emitted
	Duplicate                  // the key came before, within the window
	AfterWindow                // the key came before, but its window is over: emitted, counted separately
	Late                       // too old to judge
	MissingKey                 // no key source of the route yields a key
	Invalid                    // malformed, or from the far future
	Limited                    // a new key over the route's limit: the event is not checked
	Collision                  // the key belongs to another event, because the details differ
	InProgress                 // claim mode: a duplicate that comes before the outcome
	Replayed                   // claim mode: a duplicate that gets the recorded outcome
	Bypassed                   // forwarded unchecked while the local state could not be used
)

// Verdicts lists every verdict, for metrics.
var Verdicts = [...]Verdict{Unique, Duplicate, AfterWindow, Late, MissingKey, Invalid, Limited, Collision, InProgress, Replayed, Bypassed}

var verdictNames = [...]string{"unique", "duplicate", "after_window", "late", "missing_key", "invalid", "limited", "collision", "in_progress", "replayed", "bypassed"}

// String returns the verdict as it is written in headers and metric labels.
func (v Verdict) String() string { return verdictNames[v] }

// IsDuplicate reports whether an event with this verdict repeats a key within the window of its row.
func (v Verdict) IsDuplicate() bool { return v == Duplicate || v == InProgress || v == Replayed }

// HasClaim reports whether a verdict on an event of claim mode is about a claim, or about an event that was
// forwarded unchecked. After every other verdict no outcome follows, so the reply to the sender has the verdict
// itself.
func (v Verdict) HasClaim() bool {
	switch v {
	case Unique, Duplicate, AfterWindow, Collision, InProgress, Replayed, Bypassed:
		return true
	case Late, MissingKey, Invalid, Limited:
	}
	return false
}

// Event is an event that Window.Admit admitted, with its key, as Decide needs it.
type Event struct {
	Digest      Digest
	Time        int64 // event time, Unix milliseconds
	At          Position
	NamespaceID uint8
	Fingerprint uint64 // digest of the details; 0 if the route names none

	// Linked reports that the task keeps the rows of a key's earlier windows and links these rows to each other
	// (see EarlierDigest).
	Linked bool
	// Shift is the timestamp that the order itself contains, minus Time, in ms; 0 on a route without adjacent
	// buckets.
	Shift int64
	// Over reports that a row of an adjacent key belongs to the event's order, but its window is over.
	// Attempts is the highest attempt of the rows of that order. Event.Prior sets both.
	Over     bool
	Attempts uint32
}

// Decide returns the verdict on an event that Admit admitted. prior is the row of the event's digest, if
// found. streamTime is the stream time of the namespace before the event. Decide also returns a row: with
// Unique and AfterWindow the row to write, with Duplicate, Collision and Late the row prior. If AfterWindow
// replaces a row and the new row links to it, the caller stores the replaced row again, see AsEarlier.
//
// Decide returns Late for an event before the window of prior. The caller therefore calls GoesBelow first; if
// GoesBelow reports true, the caller calls DecideBelow instead of Decide, because rows of earlier windows of
// the key may decide.
func Decide(ev Event, prior Row, found bool, w Window, streamTime int64) (Verdict, Row) {
	verdict := Unique
	if ev.Over {
		verdict = AfterWindow
	}
	if found && w.Decides(&prior, streamTime) {
		switch {
		case w.Covers(prior.First, ev.Time):
			if ev.collides(&prior) {
				return Collision, prior
			}
			return Duplicate, prior
		case ev.Time < prior.First:
			return Late, prior
		}
		verdict = AfterWindow
	}
	link, before := ev.link(&prior, found, w, streamTime)
	return verdict, Row{
		Digest:      ev.Digest,
		First:       ev.Time,
		At:          ev.At,
		Fingerprint: ev.Fingerprint,
		NamespaceID: ev.NamespaceID,
		Shift:       ev.Shift,
		Status:      Seen,
		Link:        link,
		Before:      before,
	}
}

// collides reports whether the details of the event differ from the details of the row.
func (ev *Event) collides(r *Row) bool { return !r.Agrees(ev.Fingerprint) }

// Agrees reports whether the details of a row equal the details of which fingerprint is the digest. The lowest
// byte of a fingerprint identifies the route's list of details. A row that was made with another list cannot be
// compared, so it agrees with every event.
func (r *Row) Agrees(fingerprint uint64) bool {
	return fingerprint == r.Fingerprint || uint8(fingerprint) != uint8(r.Fingerprint)
}
