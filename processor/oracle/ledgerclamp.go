package oracle

import (
	"cmp"
	"math"
	"slices"
)

// A route with on_future: clamp sets the time of an event from the far future back. Only the row of the event
// has the new time, which counts; its input record and its output have the event's own time. A duplicate of
// such an event has no row, so for the new time of the duplicate the ledger knows only a range.

const (
	// advanceStep is the least distance between the entries of Ledger.advanced, in ms.
	advanceStep = 60_000
	// disorderMax is how much earlier, in ms of broker time, an event may have been judged than an event with a
	// lower offset in the same partition: it allows for the difference between the clocks of two brokers, and
	// for the length of a transaction.
	disorderMax = 300_000
)

// An advance is the first seen time of an event in an input partition, with the offset of the event. It proves
// a lower bound of broker time: when that event was judged, broker time was at least first minus the skew.
type advance struct{ offset, first int64 }

func byOffset(a advance, offset int64) int { return cmp.Compare(a.offset, offset) }

// advance records the lower bound of broker time that the row of an event proves.
func (l *Ledger) advance(row *LedgerRow) {
	if !l.spaces[row.Space].clamp || row.Freed || row.At.Topic == seedTopic {
		return
	}
	of := Position{Topic: row.At.Topic, Partition: row.At.Partition}
	list := l.advanced[of]
	i, _ := slices.BinarySearchFunc(list, row.At.Offset, byOffset)
	if i > 0 && row.First < add(list[i-1].first, advanceStep) {
		return
	}
	end := i
	for end < len(list) && list[end].first < add(row.First, advanceStep) {
		end++
	}
	l.advanced[of] = slices.Replace(list, i, end, advance{row.At.Offset, row.First})
}

// leastTime returns the earliest time to which an event may have been set back.
func (l *Ledger) leastTime(in *openInput) int64 {
	list := l.advanced[Position{Topic: in.At.Topic, Partition: in.At.Partition}]
	i, _ := slices.BinarySearchFunc(list, in.At.Offset, byOffset)
	if i == 0 {
		return math.MinInt64
	}
	skews := l.spaceOf(in).skew - l.cfg.Routes[in.Route].Skew
	return min(in.Time, add(list[i-1].first, -disorderMax-skews))
}

// decideSetBack decides on an event which, with its own time, no row explains. A row may explain the event if
// the time of the event was set back.
func (l *Ledger) decideSetBack(f *fate) bool {
	in := f.in
	if in.caused || in.done || !in.Keyed || !l.cfg.Routes[in.Route].Clamp {
		return false
	}
	least, reach := l.leastTime(in), l.reachOf(in)
	in.caused = slices.ContainsFunc(l.rowsOf(in.Digests), func(r formerRow) bool {
		return add(r.first, reach) >= least && add(r.first, -reach) <= in.Time
	})
	return in.caused && l.decide(f)
}

// matchSetBack matches rows for which no event was read with outputs whose time differs from the row's: the
// output has the event's own time, which is later than the time in the row. The latest row belongs to the
// latest output.
func (l *Ledger) matchSetBack() {
	for d, rows := range l.rows {
		outs := slices.Clone(l.outs[d])
		rows = slices.DeleteFunc(slices.Clone(rows), func(r *openRow) bool { return r.HasOwn || !l.spaces[r.Space].clamp })
		if len(outs) == 0 || len(rows) == 0 {
			continue
		}
		slices.SortFunc(rows, func(a, b *openRow) int { return cmp.Compare(b.First, a.First) })
		slices.SortFunc(outs, func(a, b *openOut) int { return cmp.Compare(b.latest(d), a.latest(d)) })
		for _, row := range rows {
			for _, out := range outs {
				if l.meetSetBack(d, row, out) {
					break
				}
			}
		}
		l.closeRows(d)
	}
}

// latest returns the latest event time that a record of an output has with this key.
func (o *openOut) latest(d digest) int64 {
	time := int64(math.MinInt64)
	for _, k := range o.Keys {
		if k.Digest == d {
			time = max(time, k.Time)
		}
	}
	return time
}

// meetSetBack matches a row with an output, if the row may have the output's event with its time set back.
func (l *Ledger) meetSetBack(d digest, row *openRow, out *openOut) bool {
	own := out.latest(d)
	if out.done || own <= row.First || row.HasPrint && row.Content != out.Content {
		return false
	}
	row.Own, row.HasOwn = own, true
	route, ok := l.meets(d, row, out)
	if row.HasOwn = ok; ok {
		l.takeOut(row, out, route)
	}
	return ok
}
