//go:build unix

package openloop

import "time"

const (
	// Tick is the time between two batches. A producer that serves requests would
	// send each event by itself, which this generator cannot time at 100,000 a
	// second.
	Tick = time.Millisecond
	// Cooldown continues at the same rate, without duplicates, after the measured
	// part. The last measured event meets the same traffic as the others. By the
	// order of events every duplicate is judged when the Cooldown has arrived.
	Cooldown = time.Second
	// duplicateDistance is how many events after the first its duplicate is due. Its
	// last digits are 50, so that with at most 50 % of duplicates no duplicate
	// repeats a duplicate.
	duplicateDistance = 950
	// DuplicatesMax is the maximum of Schedule.Duplicates.
	DuplicatesMax = 50 // percent
)

// Schedule has the due time of every event, fixed in advance: responses of the system
// and delays of the generator do not change it. Events are numbered from 0.
type Schedule struct {
	Rate       int           // events a second
	Warmup     time.Duration // not measured
	Measured   time.Duration
	Duplicates int // percent
}

// Due returns when event n is due, from the start of the schedule: at the rate,
// rounded down to the Tick.
func (s Schedule) Due(n int) time.Duration {
	return (time.Duration(n) * time.Second / time.Duration(s.Rate)).Truncate(Tick)
}

// Events returns the number of events.
func (s Schedule) Events() int { return s.until(s.Warmup + s.Measured + Cooldown) }

// until returns the number of events due before d.
func (s Schedule) until(d time.Duration) int {
	return int((d*time.Duration(s.Rate) + time.Second - 1) / time.Second)
}

// Counts reports whether event n is in the measured part.
func (s Schedule) Counts(n int) bool {
	return n >= s.until(s.Warmup) && n < s.until(s.Warmup+s.Measured)
}

// First returns the event that n duplicates, or n if it is not a duplicate.
func (s Schedule) First(n int) int {
	if n%100 < s.Duplicates && n >= duplicateDistance && n < s.until(s.Warmup+s.Measured) {
		return n - duplicateDistance
	}
	return n
}
