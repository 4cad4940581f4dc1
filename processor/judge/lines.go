package judge

// A lineKind is a line of the log that an event causes. A task logs a sample of them.
type lineKind uint8

const (
	lineCollision lineKind = iota
	lineLeaseExpired
	lineAfterWindow
	lineUnanswered
	lineUnannounced
	lineKinds
)

// lineTexts are the beginnings of the lines.
var lineTexts = [lineKinds]string{"collision", "lease expired", "duplicate after its window", "requests answered without an outcome", "superseded attempt not announced"}

// mayLog reports whether the log may have one more line of a kind.
func (t *State) mayLog(kind lineKind) bool { return t.lines[kind].Take() }

// LogOmitted logs how many lines were omitted, of intervals that are over or, when the task
// closes, of all.
func (t *State) LogOmitted(all bool) {
	for kind := range t.lines {
		t.lines[kind].LogOmitted(t.Log, lineTexts[kind], all)
	}
}
