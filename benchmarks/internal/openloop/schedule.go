//go:build unix

package openloop

import "time"

const (
	// Tick is the distance of two batches. A producer that serves requests
	// would send each event by itself, which at 100,000 a second this
	// generator could not time.
	Tick = time.Millisecond
	// Cooldown continues at the same rate, without duplicates, behind the measured
	// part: the last measured event meets the same traffic as the others,
	// and by the order of events every duplicate has been judged when all of the
	// Cooldown has arrived.
	Cooldown = time.Second
	// duplicateDistance is how many events after the first its duplicate is due. It ends
	// on 50, so that with at most 50 % of duplicates no duplicate is taken of a duplicate.
	duplicateDistance = 950
	// DuplicatesMax is the most of Schedule.Duplicates.
	DuplicatesMax = 50 // percent
)

// Schedule says when every event is due, in advance: no response of the system,
// and no delay of the generator, moves it. Events are numbered from 0.
type Schedule struct {
	Rate       int           // events a second
	Warmup     time.Duration // not measured
	Measured   time.Duration
	Duplicates int // percent
}

// Due returns when event n is to be produced, from the start of the schedule:
// at the rate, rounded down to the Tick.
func (s Schedule) Due(n int) time.Duration {
	return (time.Duration(n) * time.Second / time.Duration(s.Rate)).Truncate(Tick)
}

// Events returns how many events there are.
func (s Schedule) Events() int { return s.until(s.Warmup + s.Measured + Cooldown) }

// until returns how many events are due before d.
func (s Schedule) until(d time.Duration) int {
	return int((d*time.Duration(s.Rate) + time.Second - 1) / time.Second)
}

// Counts reports whether event n is in the measured part.
func (s Schedule) Counts(n int) bool {
	return n >= s.until(s.Warmup) && n < s.until(s.Warmup+s.Measured)
}

// First returns the event that n is a duplicate of, which is n itself unless it is
// a duplicate.
func (s Schedule) First(n int) int {
	if n%100 < s.Duplicates && n >= duplicateDistance && n < s.until(s.Warmup+s.Measured) {
		return n - duplicateDistance
	}
	return n
}
