package app

import (
	"cmp"
	"context"
	"log/slog"
	"time"
)

// SampledLine bounds how often a log line is written that records cause. A flood of such records would
// otherwise fill the disk: one line for each of 100,000 collisions took 29 MB. The zero value is ready to use,
// by one goroutine at a time.
type SampledLine struct {
	// Max is how many lines may be logged in an interval; 0 means linesMax.
	Max             int
	began           time.Time // when the interval began
	logged, omitted int       // lines in the interval
}

// linesMax is how many lines may be logged in a linesInterval. Metrics count all.
const (
	linesMax      = 10
	linesInterval = 10 * time.Second
)

// Take reports whether the log may have one more line. When the interval has no room left, Take does not read
// the clock; LogOmitted ends the interval.
func (l *SampledLine) Take() bool {
	if l.omitted > 0 {
		l.omitted++
		return false
	}
	return l.take(time.Now())
}

func (l *SampledLine) take(now time.Time) bool {
	if now.Sub(l.began) >= linesInterval && l.omitted == 0 {
		*l = SampledLine{Max: l.Max, began: now}
	}
	if l.logged >= cmp.Or(l.Max, linesMax) {
		l.omitted++
		return false
	}
	l.logged++
	return true
}

// LogOmitted logs how many lines were omitted, if the interval is over or all is true. text is the beginning of
// the omitted lines.
func (l *SampledLine) LogOmitted(log *slog.Logger, level slog.Level, text string, all bool) {
	if l.omitted == 0 {
		return
	}
	if n := l.end(time.Now(), all); n > 0 {
		log.Log(context.Background(), level, "lines omitted", "line", text, "omitted", n)
	}
}

// end ends the interval if it is over, or early. It returns how many lines were omitted in it.
func (l *SampledLine) end(now time.Time, early bool) (omitted int) {
	if l.omitted == 0 || !early && now.Sub(l.began) < linesInterval {
		return 0
	}
	omitted = l.omitted
	*l = SampledLine{Max: l.Max, began: now}
	return omitted
}
