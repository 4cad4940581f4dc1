package oracle

// A LedgerInput is an input record that was judged, with what the rule of its route derives from it.
type LedgerInput struct {
	At    Position
	Task  Position // topic and partition of the task that judges its key
	Route int32
	// Digests are the digests under which the row of the event may be stored, beginning with the digest of its
	// key. An event has several digests with adjacent buckets, or if its route forwards collisions. An event
	// without a key has no digest.
	Digests [][16]byte
	Missing bool // no key source yields a key; if false, a record without a key is malformed
	Time    int64
	Content uint64 // hash of key, value, headers and timestamp
}

// Input processes the next input record.
func (l *Ledger) Input(in *LedgerInput) {
	l.routes[in.Route].Inputs++
	if len(in.Digests) > 0 && !l.follows(in.Digests[0]) {
		return
	}
	open := &openInput{At: in.At, Task: in.Task, Route: in.Route, Digests: in.Digests, Time: in.Time, Keyed: len(in.Digests) > 0, Missing: in.Missing, Content: in.Content}
	if l.isFirst(open) {
		return
	}
	f := l.fateOf(in.At, in.Digests)
	f.in = open
	open.caused = l.isCaused(open, l.reachOf(open))
	if l.decide(f) {
		return
	}
	for _, d := range open.Digests {
		l.waiting[d] = append(l.waiting[d], open)
		l.open++
	}
}

// isFirst reports whether a row that was already read names this event as the first event of its key.
func (l *Ledger) isFirst(in *openInput) bool {
	for _, d := range in.Digests {
		for _, row := range l.rows[d] {
			if row.NeedsIn && row.At == in.At {
				l.takeInput(row, in)
				l.meetOut(d, row)
				l.closeRows(d)
				return true
			}
		}
	}
	return false
}

// isDuplicate records that the ledger knows a first event of which the input may be a duplicate.
func (l *Ledger) isDuplicate(in *openInput) {
	in.caused = true
	if f := l.fates[in.At]; f != nil {
		l.decide(f)
	}
}

// dropInputs removes the inputs of a key whose fate is now known.
func (l *Ledger) dropInputs(d digest) {
	inputs := l.waiting[d]
	if len(inputs) == 0 {
		return
	}
	left := inputs[:0]
	for _, in := range inputs {
		if in.done {
			l.open--
		} else {
			left = append(left, in)
		}
	}
	if l.waiting[d] = left; len(left) == 0 {
		delete(l.waiting, d)
	}
}

// decide closes an event whose fate is complete: the ledger knows everything on which the verdict depends, and
// has read the record about the event, if the route emits such a record.
func (l *Ledger) decide(f *fate) bool {
	in := f.in
	if in == nil {
		return false
	}
	route, counts := &l.cfg.Routes[in.Route], &l.routes[in.Route]
	switch {
	case f.Emitted && !l.justified(f):
		return false
	case f.Emitted:
		switch {
		case f.Verdict == "duplicate" && !f.Dead:
			counts.Duplicates++
		case f.Dead:
			counts.DeadLetters++
		default:
			counts.Forwarded++
		}
	case in.caused && route.Duplicates == Drop && !l.mayBeOther(in, route):
		counts.Duplicates++
	case !in.Keyed && in.Missing && route.MissingKey == Drop:
		counts.Dropped++
	default:
		return false
	}
	l.close(f)
	return true
}

// mayBeOther reports whether an event that has a first event in its window may still turn out to be no
// duplicate. It may have been late, or may have collided; or the first event may be outside of the shorter of
// two windows, or outside of the window of a route that rejects such events. In these cases the event's own row
// decides, if it is read later; otherwise the decision is made at the end of the range.
func (l *Ledger) mayBeOther(in *openInput, route *LedgerRoute) bool {
	s := l.spaceOf(in)
	return route.Fingerprint || l.isBehind(in) || (s.shortest < s.longest || route.RejectsAfterWindow) && !l.isCaused(in, s.shortest)
}

func (l *Ledger) close(f *fate) {
	f.in.done = true
	l.dropFate(f.in.At)
	for _, d := range f.in.Digests {
		l.dropInputs(d)
	}
}

// justified reports whether the records that were read so far justify the verdict in the record about an event.
func (l *Ledger) justified(f *fate) bool {
	in, route := f.in, &l.cfg.Routes[f.in.Route]
	switch f.Verdict {
	case "duplicate", "collision":
		return in.caused
	case "missing_key":
		return in.Missing
	case "late":
		l.unproved = append(l.unproved, in)
		return true
	case "limited":
		return route.Limited
	case "bypassed":
		return route.FailOpen
	case "invalid":
		return !in.Keyed || refusedByTopic(f.Reason) || isAhead(f.Reason, in.Time, route.Skew)
	}
	return false
}
