package dedup

// Verdict is the decision on one event.
type Verdict uint8

// Verdicts.
const (
	Unique      Verdict = iota // first event of its key: emitted
	Duplicate                  // same key within the window
	AfterWindow                // same key after the window: emitted, counted separately
	Late                       // too old to judge
	MissingKey                 // no source yields a key
	Invalid                    // malformed, or from the far future
	Limited                    // a new key over the route's limit: not checked
	Collision                  // key of another event: the details differ
	InProgress                 // claim mode: a duplicate before the outcome
	Replayed                   // claim mode: a duplicate that gets the recorded outcome
	Bypassed                   // forwarded unchecked while local state could not be used
)

// Verdicts lists every verdict, for metrics.
var Verdicts = [...]Verdict{Unique, Duplicate, AfterWindow, Late, MissingKey, Invalid, Limited, Collision, InProgress, Replayed, Bypassed}

var verdictNames = [...]string{"unique", "duplicate", "after_window", "late", "missing_key", "invalid", "limited", "collision", "in_progress", "replayed", "bypassed"}

// String returns the verdict as in headers and metric labels.
func (v Verdict) String() string { return verdictNames[v] }

// IsDuplicate reports whether the key of an event with this verdict had come before, within
// its window.
func (v Verdict) IsDuplicate() bool { return v == Duplicate || v == InProgress || v == Replayed }

// HasClaim reports whether a verdict on an event of claim mode is about a claim, or about a
// bypass. All other events get their reply with the verdict, because no outcome follows.
func (v Verdict) HasClaim() bool {
	switch v {
	case Unique, Duplicate, AfterWindow, Collision, InProgress, Replayed, Bypassed:
		return true
	case Late, MissingKey, Invalid, Limited:
	}
	return false
}

// Event is an admitted event with a key, as Decide needs it.
type Event struct {
	Digest      Digest
	Time        int64 // event time, Unix milliseconds
	At          Position
	NamespaceID uint8
	Fingerprint uint64 // 0 where the route names no details

	// Linked reports that the task keeps the rows of a key's earlier windows, and links them.
	Linked bool
	// Shift is the order's own timestamp minus Time, in ms; 0 without adjacent
	// buckets.
	Shift int64
	// Over reports that a row of an adjacent key is of the event's order and its
	// window is over. Attempts is the highest attempt of such rows. Prior sets both.
	Over     bool
	Attempts uint32
}

// Decide returns the verdict on an event that Admit admitted. prior is the row of
// its digest, if found. streamTime is the namespace's before the event. With Unique
// and AfterWindow it returns the row to write; with Duplicate, Collision and Late
// prior. A row that AfterWindow replaces and links to is stored again, see AsEarlier.
//
// An event before the window of prior is Late. If GoesBelow reports true of it, DecideBelow
// decides on it.
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

// collides reports whether the details of event and row differ.
func (ev *Event) collides(r *Row) bool { return !r.Agrees(ev.Fingerprint) }

// Agrees reports whether the details of a row are those of a fingerprint. The lowest byte
// names the list of details, and a row with another list agrees with every event.
func (r *Row) Agrees(fingerprint uint64) bool {
	return fingerprint == r.Fingerprint || uint8(fingerprint) != uint8(r.Fingerprint)
}
