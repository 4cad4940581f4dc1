package dedup

import "cmp"

// orderTime is the order's own timestamp, by which it and its neighbours are
// told apart.
func (ev *Event) orderTime() int64 { return ev.Time + ev.Shift }

// IsBeside tells whether a row of a neighbouring key is of the event's own
// order: its details agree, and the two are less than a step, in ms of the
// orders' own timestamps, apart.
func (ev *Event) IsAdjacent(r *Row, step int64) bool {
	at := r.First + r.Shift
	return max(at-ev.orderTime(), ev.orderTime()-at) < step && !ev.collides(r)
}

// Prior returns the row that an event is judged against, false if there is
// none, and notes in the event what neighbours say of it otherwise. own is the
// row of its own key, beside are those of the neighbouring keys.
//
// Of the rows that stand, are of the event's own order (its own key's, where
// the details agree, and neighbours by IsBeside) and whose window is not over,
// the one first seen earliest decides: what once was a copy of it stays one,
// whoever claims the event's own key later. Without such a row its own key
// decides alone: a neighbour with other details is another order.
func (ev *Event) Prior(own Row, held bool, beside []Row, step int64, w Window, streamTime int64) (Row, bool) {
	prior := own
	decided := held && w.Stands(&own, streamTime) && !w.Over(own.First, ev.Time) && !ev.collides(&own)
	for i := range beside {
		r := &beside[i]
		if !w.Held(r.First, streamTime) || !ev.IsAdjacent(r, step) {
			continue
		}
		ev.Attempts = max(ev.Attempts, r.Attempt)
		switch {
		case r.Status == Freed:
		case w.Over(r.First, ev.Time):
			ev.Over = true
		case !decided || r.before(&prior):
			prior, held, decided = *r, true, true
		}
	}
	return prior, held
}

// before tells which of two rows was first seen earlier. Of the same
// millisecond the place decides, so that it is the same one every time.
func (r *Row) before(other *Row) bool {
	return cmp.Or(cmp.Compare(r.First, other.First), cmp.Compare(r.At.Topic, other.At.Topic),
		cmp.Compare(r.At.Partition, other.At.Partition), cmp.Compare(r.At.Offset, other.At.Offset)) < 0
}
