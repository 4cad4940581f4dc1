package judge

import "time"

// A lineKind is a line of the log that an event causes.
type lineKind uint8

const (
	lineCollision lineKind = iota
	lineLeaseExpired
	lineAfterWindow
	lineKinds
)

// lineTexts are the beginnings of the lines.
var lineTexts = [lineKinds]string{"collision", "lease expired", "duplicate after its window"}

// linesMax is how many lines of one kind a task logs in a linesInterval. A flood of such
// events would fill the disk: 100,000 collisions took 29 MB. Metrics and output have them all.
const (
	linesMax      = 10
	linesInterval = 10 * time.Second
)

// lineSample counts the lines of one kind since an interval began.
type lineSample struct {
	began           time.Time
	logged, omitted int
}

// take reports whether the log may have one more line.
func (s *lineSample) take(now time.Time) bool {
	if now.Sub(s.began) >= linesInterval && s.omitted == 0 {
		*s = lineSample{began: now}
	}
	if s.logged == linesMax {
		s.omitted++
		return false
	}
	s.logged++
	return true
}

// end ends an interval that is over, or any. It returns how many lines were omitted in it.
func (s *lineSample) end(now time.Time, early bool) (omitted int) {
	if s.omitted == 0 || !early && now.Sub(s.began) < linesInterval {
		return 0
	}
	omitted = s.omitted
	*s = lineSample{began: now}
	return omitted
}

// mayLog reports whether the log may have one more line of a kind.
func (t *State) mayLog(kind lineKind) bool { return t.lines[kind].take(time.Now()) }

// LogOmitted logs how many lines were omitted, of intervals that are over or, when the task
// closes, of all.
func (t *State) LogOmitted(all bool) {
	for kind := range t.lines {
		if t.lines[kind].omitted == 0 {
			continue
		}
		if n := t.lines[kind].end(time.Now(), all); n > 0 {
			t.Log.Warn("lines omitted", "line", lineTexts[kind], "omitted", n)
		}
	}
}
