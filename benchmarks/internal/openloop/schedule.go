//go:build unix

package openloop

import "time"

const (
	// Tick is the time between two batches of events. A real producer would send each event separately, but at
	// 100,000 events a second the generator cannot sleep between single events.
	Tick = time.Millisecond
	// Cooldown is traffic at the same rate, but without duplicates, after the measured part, so that the last
	// measured event meets the same traffic as the others. Because of the order of events, all duplicates have been
	// judged once the events of the Cooldown have arrived.
	Cooldown = time.Second
	// duplicateDistance is how many events after the first event its duplicate is due. Its last two digits are 50, so
	// that with at most 50 % of duplicates no duplicate repeats another duplicate.
	duplicateDistance = 950
	// DuplicatesMax is the highest value of Schedule.Duplicates, in percent.
	DuplicatesMax = 50 // percent
)

// Schedule says when every event is due. It is fixed in advance: neither responses of the system nor delays of the
// generator change it. Events are numbered from 0.
type Schedule struct {
	Rate       int           // events a second
	Warmup     time.Duration // not measured
	Measured   time.Duration
	Duplicates int // percent
}

// Due returns when event n is due, counted from the start of the schedule. The events come at an even rate; the times
// are rounded down to the Tick.
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
