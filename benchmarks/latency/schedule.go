//go:build unix

package main

import "time"

const (
	// tick is the distance of two batches. A producer that serves requests
	// would send each event by itself, which at 100,000 a second this
	// generator could not time.
	tick = time.Millisecond
	// cooldown goes on at the same rate, without copies, behind the measured
	// stretch: the last measured event meets the same traffic as the others,
	// and by the order of events every copy has been judged when all of the
	// cooldown has arrived.
	cooldown = time.Second
	// copyDistance is how many events after the first its copy is due. It ends
	// on 50, so that with at most 50 % of copies no copy is taken of a copy.
	copyDistance = 950
	copiesMax    = 50 // percent
)

// schedule says when every event is due, in advance: no answer of the system,
// and no delay of the generator, moves it. Events are numbered from 0.
type schedule struct {
	rate     int           // events a second
	warmup   time.Duration // not measured
	measured time.Duration
	copies   int // percent
}

// due returns when event n is to be produced, from the start of the schedule:
// at the rate, rounded down to the tick.
func (s schedule) due(n int) time.Duration {
	return (time.Duration(n) * time.Second / time.Duration(s.rate)).Truncate(tick)
}

// events returns how many events there are.
func (s schedule) events() int { return s.until(s.warmup + s.measured + cooldown) }

// until returns how many events are due before d.
func (s schedule) until(d time.Duration) int {
	return int((d*time.Duration(s.rate) + time.Second - 1) / time.Second)
}

// counts says whether event n is in the measured stretch.
func (s schedule) counts(n int) bool {
	return n >= s.until(s.warmup) && n < s.until(s.warmup+s.measured)
}

// first returns the event that n is a copy of, which is n itself unless it is
// a copy.
func (s schedule) first(n int) int {
	if n%100 < s.copies && n >= copyDistance && n < s.until(s.warmup+s.measured) {
		return n - copyDistance
	}
	return n
}
