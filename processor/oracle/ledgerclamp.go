package oracle

import (
	"cmp"
	"math"
	"slices"
)

// A route with on_future: clamp sets an event from the far future back. Only its row has the time that counts: its raw record
// and its output have its own. A duplicate of it has no row, so a ledger only knows between which times that was set back.

const (
	// advanceStep is how far apart the entries of Ledger.advanced are, in ms.
	advanceStep = 60_000
	// disorderMax is how much earlier than a record before it in its partition an event may be judged, by the broker's time: as
	// far as the clocks of two brokers differ, and a transaction lasts.
	disorderMax = 300_000
)

// An advance is a first seen time of an input's partition, and the offset of its event. Broker time had come to it, less the skew.
type advance struct{ offset, first int64 }

func byOffset(a advance, offset int64) int { return cmp.Compare(a.offset, offset) }

// advance notes how far broker time had come when an event was judged.
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

// decideSetBack decides an event that no row explains by its own time, as the duplicate of one that may explain it set back.
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

// matchSetBack matches the rows of which no event was read with the outputs that have another time: that of their events,
// which was later. The latest row has the latest output.
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

// latest returns the latest event time that a record of an output has with a key.
func (o *openOut) latest(d digest) int64 {
	time := int64(math.MinInt64)
	for _, k := range o.Keys {
		if k.Digest == d {
			time = max(time, k.Time)
		}
	}
	return time
}

// meetSetBack matches a row with an output whose event it may have set back.
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
