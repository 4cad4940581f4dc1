//go:build unix

package main

import (
	"errors"
	"fmt"
	"time"

	"oncebus/benchmarks/internal/openloop"
)

// ledger records which events of a schedule have arrived, and their latency from the due time, even if the generator
// was late. A stall of one second therefore delays all events of one second, and each counts with its wait. If
// latency were counted from the time of sending, only the few events in flight would count (coordinated omission).
type ledger struct {
	schedule openloop.Schedule
	// dedups says that the contender drops duplicates. Otherwise it emits them, too.
	dedups  bool
	arrived []bool // events of the schedule, followed by the primers
	missing int    // expected events that have not arrived
	priming int    // primers that have not arrived
	extra   int    // arrivals of events that had already arrived or must not arrive
	foreign int    // arrivals of events that were never sent
	last    time.Duration
	latency openloop.Histogram // of the first events (no duplicates) in the measured part
}

// newLedger returns the ledger of a schedule and of its primers, which are events that are sent before the schedule
// as a warm-up.
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
	// Duplicates do not count, even if the contender emits them, so that all contenders are measured on the same
	// events.
	if l.schedule.Counts(n) && l.schedule.First(n) == n {
		l.latency.Record(at - l.schedule.Due(n))
	}
}

// complete reports whether every expected event has arrived.
func (l *ledger) complete() bool { return l.missing == 0 }

// verdict returns an error unless each expected event has arrived exactly once, and no other event has arrived.
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

// drain returns the time from the last due time until the last arrival. For a contender that keeps up this is about
// one latency; a longer time means a backlog.
func (l *ledger) drain() time.Duration {
	return l.last - l.schedule.Due(l.schedule.Events()-1)
}
