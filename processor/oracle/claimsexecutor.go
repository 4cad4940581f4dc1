package oracle

import (
	"math"
	"slices"
)

// Where a route names the consumer group of its executor, a lease begins when the group has
// committed the event. Progress records say up to when it had.

// passed says that every event dispatched before to was committed at at, ms.
type passed struct{ to, at int64 }

// passedMax is the most times that a task keeps; one that comes within an eighth of the
// lease after the last is not kept.
const passedMax, passedStep = 16, 8

// readExecutors reads the executors of a progress record: routes, uvarint, and for each:
// route, entries, uvarint, and for each: to and at, varint. The broker stored the record
// at a time, which replaces at.
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

// pass keeps a time of the executor, as the product does: what it drops makes a lease last
// longer.
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

// readTo is the time before which every outcome was read; the lowest if that is not known.
func (f *claimFold) readTo() int64 {
	to, known := int64(math.MaxInt64), false
	for topic, read := range f.known.read {
		if f.Outcomes != "" && topic != f.OutcomesNumber {
			continue // of another route
		}
		if len(read) < f.known.partitions[topic] {
			return math.MinInt64 // one of them is unread
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

// executorHad reports whether the executor had an event for its lease: it committed what was
// dispatched after began, at least a lease before the outcomes were read to a time.
func (f *claimFold) executorHad(began, stepped, readTo int64) bool {
	for i := len(f.known.passed) - 1; i >= 0; i-- {
		if p := f.known.passed[i]; max(p.at, stepped)+f.Lease < readTo {
			return began < p.to
		}
	}
	return false
}
