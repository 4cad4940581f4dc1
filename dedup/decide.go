package dedup

// Verdict is the judgement on one event.
type Verdict uint8

// Verdicts.
const (
	Unique      Verdict = iota // first sighting: emitted
	Duplicate                  // a copy inside the window
	AfterWindow                // a copy after its window: emitted, counted apart
	Late                       // too old to be judged
	MissingKey                 // no source yields a key
	Invalid                    // malformed, or from the far future
	Limited                    // a new key beyond the route's limit: not checked
	Collision                  // the key of another event: the details differ
	InProgress                 // claim mode: a copy while there is no outcome
	Replayed                   // claim mode: a copy that gets the recorded outcome
	Bypassed                   // emitted while the state that knows copies could not be used
)

// Verdicts lists every verdict, for metrics.
var Verdicts = [...]Verdict{Unique, Duplicate, AfterWindow, Late, MissingKey, Invalid, Limited, Collision, InProgress, Replayed, Bypassed}

var verdictNames = [...]string{"unique", "duplicate", "after_window", "late", "missing_key", "invalid", "limited", "collision", "in_progress", "replayed", "bypassed"}

// String returns the verdict as it stands in headers and metric labels.
func (v Verdict) String() string { return verdictNames[v] }

// Event is what Decide needs to know of a keyed, admitted record.
type Event struct {
	Digest      Digest
	Time        int64 // event time, Unix milliseconds
	At          Position
	NamespaceID uint8
	Fingerprint uint64 // 0 where the route names no details

	// Shift is the order's own timestamp minus Time, in ms; 0 without
	// neighbours.
	Shift int64
	// Over says that a neighbouring key has held the event's original, whose
	// window is over, Attempts how often its original was claimed under such
	// keys. Both are Prior's.
	Over     bool
	Attempts uint32
}

// Decide judges an event that Admit let through against the row held for its
// digest, if there is one. streamTime is the namespace's stream time before the
// event. For Unique and AfterWindow it returns the row to write; for Duplicate,
// Collision and Late the row that stands, unchanged.
func Decide(ev Event, prior Row, held bool, w Window, streamTime int64) (Verdict, Row) {
	verdict := Unique
	if ev.Over {
		verdict = AfterWindow
	}
	if held && w.Stands(&prior, streamTime) {
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
	return verdict, Row{
		Digest:      ev.Digest,
		First:       ev.Time,
		At:          ev.At,
		Fingerprint: ev.Fingerprint,
		NamespaceID: ev.NamespaceID,
		Shift:       ev.Shift,
		Status:      Seen,
	}
}

// collides tells whether event and row have one key and different details. A
// row from before the route named these details agrees with all.
func (ev *Event) collides(r *Row) bool {
	return ev.Fingerprint != r.Fingerprint && uint8(ev.Fingerprint) == uint8(r.Fingerprint)
}
