package dedup

import "cmp"

// orderTime is the timestamp that the order itself contains, in ms. Two orders whose buckets are adjacent are
// told apart by it.
func (ev *Event) orderTime() int64 { return ev.Time + ev.Shift }

// IsAdjacent reports whether a row of an adjacent key belongs to the same order as the event: the details
// agree, and the timestamps in the two orders are less than step ms apart.
func (ev *Event) IsAdjacent(r *Row, step int64) bool {
	at := r.First + r.Shift
	return max(at-ev.orderTime(), ev.orderTime()-at) < step && !ev.collides(r)
}

// Prior returns the row with which Decide compares an event, or false if there is none, and sets ev.Over and
// ev.Attempts. own is the row of the event's key; adjacent are the rows of the adjacent keys.
//
// The candidates are own and those adjacent rows that belong to the same order (IsAdjacent), are retained and
// were not freed. Of the candidates with an equal fingerprint and an open window, Prior returns the row that
// was seen first; if there is no such candidate, it returns own. Therefore a duplicate of an adjacent row stays
// a duplicate even if another event has since made a row under the event's own key.
func (ev *Event) Prior(own Row, found bool, adjacent []Row, step int64, w Window, streamTime int64) (Row, bool) {
	prior := own
	decided := found && w.Decides(&own, streamTime) && !w.Over(own.First, ev.Time) && !ev.collides(&own)
	for i := range adjacent {
		r := &adjacent[i]
		if !w.Retains(r.First, streamTime) || !ev.IsAdjacent(r, step) {
			continue
		}
		ev.Attempts = max(ev.Attempts, r.Attempt)
		switch {
		case r.Status == Freed:
		case w.Over(r.First, ev.Time):
			ev.Over = true
		case !decided || r.before(&prior):
			prior, found, decided = *r, true, true
		}
	}
	return prior, found
}

// before reports whether r was first seen before other. If both were first seen in the same millisecond, the
// lower position counts as first, so that every task orders the two rows in the same way.
func (r *Row) before(other *Row) bool {
	return cmp.Or(cmp.Compare(r.First, other.First), cmp.Compare(r.At.Topic, other.At.Topic),
		cmp.Compare(r.At.Partition, other.At.Partition), cmp.Compare(r.At.Offset, other.At.Offset)) < 0
}
