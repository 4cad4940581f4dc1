package oracle

import (
	"cmp"
	"slices"
)

// A LedgerReport tells what a ledger has checked.
type LedgerReport struct {
	Routes     []RouteCounts
	Rows, Outs int64 // first events according to the changelog, and records that were emitted as first events
	Keys       int   // number of keys in memory at the end
	// The ledger followed one of OneIn keys, and matched the rows and outputs of one of OneInMatched keys. 1
	// means all keys.
	OneIn, OneInMatched int64
	Carried             int // number of records that wait for their counterpart in the next range
	Replies             int64
	RepliesUnknown      int64 // replies whose outcome was before the range, or was one of two different outcomes
	Counts              map[string]int64
}

// Close ends the range. A record without its counterpart is a finding, unless the counterpart can follow in the
// next range. After Close, the ledger can begin the next range.
func (l *Ledger) Close() LedgerReport {
	l.closeInputs()
	l.matchSetBack()
	l.closeRowsLeft()
	l.closeOuts()
	l.closeReplies()
	return l.Report()
}

// Report returns what was checked so far.
func (l *Ledger) Report() LedgerReport {
	r := LedgerReport{
		Routes: slices.Clone(l.routes), Rows: l.rowCount, Outs: l.outCount, Keys: len(l.keys), OneIn: 1 << l.sample, OneInMatched: 1 << l.joined,
		Replies: l.compared, RepliesUnknown: l.notCompared, Counts: l.counts,
	}
	r.Carried = l.openRows() + len(l.fates)
	return r
}

// openRows returns how many rows wait for their event or for their output.
func (l *Ledger) openRows() (n int) {
	for _, rows := range l.rows {
		n += len(rows)
	}
	return n
}

// closeInputs decides, at the end of the range, on the events that no row names, and on the records about
// events.
func (l *Ledger) closeInputs() {
	clear(l.waiting)
	for at, f := range l.fates {
		switch {
		case f.in == nil && l.reach.InRange(at) && !l.reach.Judged(at):
			continue // its event follows in the next range
		case f.in == nil:
			l.closeRecord(at, f)
		case l.decideSetBack(f):
		default:
			l.closeInput(f)
		}
		delete(l.fates, at)
	}
	for _, in := range l.unproved {
		switch {
		case slices.ContainsFunc(l.rowsOf(in.Digests), func(r formerRow) bool { return r.at == hashOf(in.At, l.cfg.Routes[in.Route].NamespaceID) }):
			l.find("K1", in.Route, l.text(in.At), "has two fates: it was judged late, and its event was stored as the first of its key")
		case !l.isLate(in):
			l.find("K2", in.Route, l.text(in.At), "was judged late, with event time %d, but neither stream time nor its own source nor a later event of its key makes it so", in.Time)
		}
	}
	l.unproved = nil
}

// isLate reports whether an event may be late: by the stream time at the end of the range, by the time that its
// own source has reached, or by the newest event of its key.
func (l *Ledger) isLate(in *openInput) bool {
	return l.isBehind(in) || slices.ContainsFunc(in.Digests, func(d digest) bool {
		k, ok := l.keys[d]
		return ok && in.Time < add(k.first, -l.spaceOf(in).shortest)
	})
}

// isBehind reports whether an event is late because of its time alone, by the stream times at the end of the
// range.
func (l *Ledger) isBehind(in *openInput) bool {
	route := &l.cfg.Routes[in.Route]
	span, shortest := add(route.Window, route.Grace), l.spaces[route.NamespaceID].span
	time, running := l.reach.StreamTime(in.Task, route.NamespaceID)
	front, follows := l.reach.Reached(in.Task, route.NamespaceID, in.At)
	before, changed := l.reach.LateBefore(in.Task, route.NamespaceID)
	return running && in.Time < add(time, -span) || follows && in.Time < add(front, -shortest) || changed && in.Time < before
}

// closeInput decides on an event that was judged and has no row.
func (l *Ledger) closeInput(f *fate) {
	in, route, counts := f.in, &l.cfg.Routes[f.in.Route], &l.routes[f.in.Route]
	jumped := slices.ContainsFunc(in.Digests, func(d digest) bool { return l.jumped[d] })
	where := l.text(in.At)
	switch {
	case in.done:
	case f.Emitted:
		l.find("K2", f.Route, f.Where, "says %s of %s, which nothing that was read justifies: %s", f.Verdict, where, cmp.Or(f.Reason, "without a reason"))
	case in.caused && route.Duplicates == Drop:
		counts.Duplicates++
	case route.Late == Drop && l.isLate(in):
		counts.Dropped++
	case jumped:
	case in.caused:
		l.find("K2", in.Route, where, "is a duplicate, and no topic has it")
	case !in.Keyed:
		l.find("K2", in.Route, where, "has no key, and no topic has it: lost")
	default:
		l.find("K2", in.Route, where, "was judged, and it has no output, no first event within its window and no dead letter: lost; digest %x, event time %d", in.Digests[0], in.Time)
	}
}

// closeRecord decides on a record about an event that was not read, or that had another fate.
func (l *Ledger) closeRecord(at Position, f *fate) {
	inRange := l.reach.InRange(at)
	switch {
	case l.cfg.HasRepartition && at.Topic == l.cfg.Repartition, f.Batch, f.Verdict == "bypassed":
	case !inRange && l.edge:
	case l.sample > 0 && len(f.Digests) == 0:
	case inRange && l.wasBeforeItsKey(at, f):
	case f.Verdict == "invalid" && (refusedByTopic(f.Reason) || isAheadAny(f.Reason)):
	case !inRange:
		l.find("K1", f.Route, f.Where, "says %s of %s, an event that was accounted for before this range", f.Verdict, l.text(at))
	default:
		l.find("K1", f.Route, f.Where, "says %s of %s, which does not exist or has another fate", f.Verdict, l.text(at))
	}
}

// rowsOf returns all rows of some keys, the newest and the former ones.
func (l *Ledger) rowsOf(digests []digest) (rows []formerRow) {
	for _, d := range digests {
		rows = append(rows, l.former[d]...)
		if k, known := l.keys[d]; known {
			rows = append(rows, formerRow{k.first, k.at})
		}
	}
	return rows
}

// wasBeforeItsKey reports whether a late event came before the window of a later event with its key. Until the
// record about the event was read, the event looked like a duplicate of an earlier event, and its route drops
// duplicates.
func (l *Ledger) wasBeforeItsKey(at Position, f *fate) bool {
	time, later, ok := beforeItsKey(f.Reason)
	if !ok || f.Verdict != "late" || f.Route < 0 || l.cfg.Routes[f.Route].Duplicates != Drop {
		return false
	}
	space := l.cfg.Routes[f.Route].NamespaceID
	rows := l.rowsOf(f.Digests)
	if time >= add(later, -l.spaces[space].shortest) || !slices.ContainsFunc(rows, func(r formerRow) bool { return r.first == later }) ||
		slices.ContainsFunc(rows, func(r formerRow) bool { return r.at == hashOf(at, space) }) {
		return false
	}
	counts := &l.routes[f.Route]
	if counts.Duplicates--; f.Dead {
		counts.DeadLetters++
	} else {
		counts.Forwarded++
	}
	return true
}

// closeRowsLeft finds the first events for which no output was read.
func (l *Ledger) closeRowsLeft() {
	for _, task := range l.tasks {
		l.decideRepeats(task)
	}
	for d, rows := range l.rows {
		for _, row := range rows {
			in := l.reach.Judged(row.At)
			if row.NeedsIn && in {
				row.NeedsIn = false // the event was read with another key, which is a finding, or it no longer exists
			}
			switch {
			case !row.NeedsOut:
			case row.Soft, l.passed[row.At]:
				row.NeedsOut = false
			case row.Certain && row.Attempt > 0 && l.sample > 0:
				l.notCompared++ // the row may belong to a former claim whose key is not followed
				row.NeedsOut = false
			case row.Certain:
				l.find("K2", l.routeOf(row.Space), row.Where, "%s was judged unique and stored, and the output has no record of it: lost; digest %x, event time %d", l.text(row.At), d, row.First)
				row.NeedsOut = false
			}
		}
		l.closeRows(d)
	}
	for at := range l.passed {
		if l.reach.Judged(at) {
			delete(l.passed, at)
		}
	}
}

// routeOf returns the route of a namespace; -1 if the namespace has several routes.
func (l *Ledger) routeOf(space uint8) int32 {
	found := int32(-1)
	for i := range l.cfg.Routes {
		if l.cfg.Routes[i].NamespaceID == space {
			if found >= 0 {
				return -1
			}
			found = int32(i)
		}
	}
	return found
}

// closeOuts finds the records of outputs that no row explains.
func (l *Ledger) closeOuts() {
	for _, outs := range l.outs {
		for _, out := range outs {
			if out.done {
				continue
			}
			out.done = true
			l.countOut(out, out.Route)
			if slices.ContainsFunc(out.Digests, func(d digest) bool { return !l.joins(d) }) {
				l.notCompared++ // its row may belong to a key that is not matched
				continue
			}
			d := out.Digests[0]
			second := slices.IndexFunc(out.Keys, func(key LedgerKey) bool {
				k, known := l.keys[key.Digest]
				return known && covers(k.first, key.Time, l.cfg.Routes[key.Route].Window)
			})
			switch {
			case out.Claim && l.jumped[d]:
				l.notCompared++
			case out.Claim:
				l.find("K1", out.Route, out.Where, "dispatches attempt %d of %s, which was dispatched before or never claimed; digest %x", out.Attempt, l.text(out.At), d)
			case second >= 0:
				key := out.Keys[second]
				l.find("K1", key.Route, out.Where, "one record too many: digest %x has another output within its window, event time %d; this one has %d", key.Digest, l.keys[key.Digest].first, key.Time)
			default:
				l.find("K1", out.Route, out.Where, "no event explains it: no task stored its digest %x as first seen at %d", d, out.Keys[0].Time)
			}
		}
	}
	clear(l.outs)
	l.recount()
}
