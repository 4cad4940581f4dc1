package app

import (
	"testing"
	"time"
)

// TestLinesAreSampled: of a flood some lines are logged in each interval, and all others are
// counted.
func TestLinesAreSampled(t *testing.T) {
	t.Parallel()
	var s SampledLine
	began := time.Now()
	logged, omitted := 0, 0
	const lines = 100_000
	for n := range lines { // one each ms, a transaction each 100 ms
		now := began.Add(time.Duration(n) * time.Millisecond)
		if s.take(now) {
			logged++
		}
		if n%100 == 0 {
			omitted += s.end(now, false)
		}
	}
	if omitted += s.end(began, true); logged+omitted != lines || logged != linesMax*lines/10_000 {
		t.Errorf("%d lines logged and %d omitted, of %d", logged, omitted, lines)
	}
	if !s.take(began.Add(2*time.Hour)) || s.end(began.Add(3*time.Hour), false) != 0 {
		t.Error("a single line after a while is omitted, or counted")
	}
}
