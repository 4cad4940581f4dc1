//go:build unix

package main

import (
	"errors"
	"fmt"
	"time"

	"oncebus/benchmarks/internal/openloop"
)

// ledger records which events of a schedule arrived, and their latency from the due
// time, whether or not the generator was ready then. So a stall of a second delays a
// second's worth of events, and each counts with its wait. A latency from the time of
// sending would count only the few events in flight (coordinated omission).
type ledger struct {
	schedule openloop.Schedule
	// dedups: the contender drops duplicates; else it emits them too.
	dedups  bool
	arrived []bool // events of the schedule, followed by the primers
	missing int    // expected events that have not arrived
	priming int    // primers that have not arrived
	extra   int    // arrivals beyond the expected
	foreign int    // arrivals of events that were never sent
	last    time.Duration
	latency openloop.Histogram // of the measured firsts
}

// newLedger returns the ledger of a schedule and of primers, events that are
// sent before it as a warm-up.
func newLedger(s openloop.Schedule, dedups bool, primers int) *ledger {
	l := &ledger{schedule: s, dedups: dedups, arrived: make([]bool, s.Events()+primers), priming: primers}
	for n := range s.Events() {
		if l.expected(n) {
			l.missing++
		}
	}
	return l
}

// primed reports whether all primers have arrived.
func (l *ledger) primed() bool { return l.priming == 0 }

// expected reports whether event n must arrive.
func (l *ledger) expected(n int) bool { return !l.dedups || l.schedule.First(n) == n }

// arrive records that event n was received at a time counted from the start
// of the schedule.
func (l *ledger) arrive(n int, at time.Duration) {
	switch {
	case n < 0 || n >= len(l.arrived):
		l.foreign++
		return
	case l.arrived[n] || !l.expected(n):
		l.extra++
		return
	}
	l.arrived[n] = true
	if n >= l.schedule.Events() {
		l.priming--
		return
	}
	l.missing--
	l.last = max(l.last, at)
	// Duplicates that a contender without deduplication emits do not count: all
	// contenders are measured on the same events.
	if l.schedule.Counts(n) && l.schedule.First(n) == n {
		l.latency.Record(at - l.schedule.Due(n))
	}
}

// complete reports whether every expected event has arrived.
func (l *ledger) complete() bool { return l.missing == 0 }

// verdict returns an error unless each expected event arrived exactly once and no
// other.
func (l *ledger) verdict() error {
	var errs []error
	if l.priming > 0 {
		errs = append(errs, fmt.Errorf("%d of %d primers have not arrived", l.priming, len(l.arrived)-l.schedule.Events()))
	}
	if l.missing > 0 {
		errs = append(errs, fmt.Errorf("%d of %d events have not arrived, the first of them number %d", l.missing, l.schedule.Events(), l.firstMissing()))
	}
	if l.extra > 0 {
		errs = append(errs, fmt.Errorf("%d arrivals are duplicates, or events that had arrived before", l.extra))
	}
	if l.foreign > 0 {
		errs = append(errs, fmt.Errorf("%d arrivals were never sent", l.foreign))
	}
	return errors.Join(errs...)
}

func (l *ledger) firstMissing() int {
	for n, arrived := range l.arrived {
		if !arrived && l.expected(n) {
			return n
		}
	}
	return -1
}

// drain returns the time from the last due time until the last arrival. A contender
// that keeps up needs one latency; another has a backlog.
func (l *ledger) drain() time.Duration {
	return l.last - l.schedule.Due(l.schedule.Events()-1)
}
