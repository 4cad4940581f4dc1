package oracle

import (
	"math"
	"slices"
)

// If a route names the consumer group of its executor, a lease begins only when the group has committed the
// event. Progress records tell up to which time the group has committed.

// passed says that, by the time at, the consumer group had committed every event that was dispatched before the
// time to. Both times are in ms.
type passed struct{ to, at int64 }

// passedMax is how many of these times a task keeps. It skips a time that is less than a passedStep-th (an
// eighth) of the lease after the last time that it kept.
const passedMax, passedStep = 16, 8

// readExecutors reads the executors in a progress record: routes, uvarint, and for each: route, entries,
// uvarint, and for each: to and at, varint. The time at which the broker stored the record replaces at.
func (f *claimFold) readExecutors(b *fields, stored int64) {
	for n := b.unsigned(1 << 16); n > 0 && !b.bad; n-- {
		route := string(b.bytes(int(b.unsigned(1 << 31))))
		for entries := b.unsigned(passedMax + 1); entries > 0 && !b.bad; entries-- {
			to := b.signed()
			b.signed()
			if !b.bad && (f.Route == "" || route == f.Route) && to <= stored+aheadMax {
				f.pass(passed{min(to, stored), stored})
			}
		}
	}
}

// pass keeps a time of the executor as the product does. If it drops times, leases can only last longer.
func (f *claimFold) pass(p passed) {
	kept := f.known.passed
	if n := len(kept); n > 0 {
		last := kept[n-1]
		if last.at > p.at {
			kept = nil // broker time was set back
		} else if p.to <= last.to || p.at-last.at < f.Lease/passedStep {
			return
		}
	}
	readTo := f.readTo()
	for len(kept) > 1 && kept[1].at+f.Lease < readTo {
		kept = kept[1:]
	}
	kept = append(slices.Clone(kept), p)
	if len(kept) > passedMax {
		drop := 1
		for i := 2; i < len(kept)-1; i++ {
			if kept[i+1].at-kept[i-1].at < kept[drop+1].at-kept[drop-1].at {
				drop = i
			}
		}
		kept = slices.Delete(kept, drop, drop+1)
	}
	f.known.passed = kept
}

// readTo returns the time before which every stored outcome was read; math.MinInt64 if that time is not known.
func (f *claimFold) readTo() int64 {
	to, known := int64(math.MaxInt64), false
	for topic, read := range f.known.read {
		if f.Outcomes != "" && topic != f.OutcomesNumber {
			continue // of another route
		}
		if len(read) < f.known.partitions[topic] {
			return math.MinInt64 // a partition has not been read
		}
		known, to = true, min(to, f.known.counted[topic])
		for _, at := range read {
			to = min(to, at)
		}
	}
	if !known {
		return math.MinInt64
	}
	return to
}

// executorHad reports whether the executor has had an event for the length of a lease: the executor's group had
// committed everything that was dispatched up to began, and at least one lease has passed from that commit to
// readTo, the time up to which outcomes were read.
func (f *claimFold) executorHad(began, stepped, readTo int64) bool {
	for i := len(f.known.passed) - 1; i >= 0; i-- {
		if p := f.known.passed[i]; max(p.at, stepped)+f.Lease < readTo {
			return began < p.to
		}
	}
	return false
}
