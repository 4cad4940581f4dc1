package oracle

// While a task cannot use its local state, it forwards the events of a claim route with on_state_failure:
// fail_open without making claims; outcomes have to wait. Later the task stores the events that it has
// forwarded as keys for which no outcome can arrive, and does not emit them again.

// A bypassedRange is a range of input offsets whose events were forwarded unchecked. Whether these events were
// late was decided by the stream time and the sources in the checkpoint.
type bypassedRange struct {
	offsetRange
	last    int64
	seen    bool
	sources *sourceTimes
}

// bypasses reads the bypassed ranges of each partition from its checkpoints.
func (c *Claims) bypasses(changelog []Record) map[int32][]bypassedRange {
	all, chains := map[int32][]bypassedRange{}, map[int32]chain{}
	for i := range changelog {
		r := &changelog[i]
		number, ok := numberOf(r.Key)
		at := chains[r.Partition]
		if !ok || at.add(number, r.Value) != nil {
			continue // the function leases reports this error
		}
		chains[r.Partition] = at
		cp := &at.newest
		for id, to := range cp.bypassed {
			if c.Route != "" && id != c.NamespaceID {
				continue
			}
			from, before := cp.next, all[r.Partition]
			if len(before) > 0 {
				from = max(from, before[len(before)-1].to)
			}
			if from < to {
				all[r.Partition] = append(before, bypassedRange{offsetRange{from, to}, cp.times[id], cp.seen[id], cp.sourcesOf(id)})
			}
		}
	}
	return all
}

// bypassOf returns the bypassed range that has an input offset; nil for an event that was judged.
func (f *claimFold) bypassOf(offset int64) *bypassedRange {
	for i := range f.bypassed {
		if b := &f.bypassed[i]; b.from <= offset && offset < b.to {
			return b
		}
	}
	return nil
}

// forwarded adds the record that a task must have emitted for an event while it could not use its local state.
// Then it stores the event, as the task did later.
func (f *claimFold) forwarded(r *Record, e *envelope, b *bypassedRange) {
	key, null := string(r.Key), content(nil, nil)
	switch {
	case e.time > r.Timestamp+f.Skew:
		f.dead(r, "invalid")
		f.reply(key, "invalid", "", 0, null)
		return
	case f.tooOld(e, b.last, b.seen, b.sources):
		f.counts["late"]++
		f.dead(r, "late")
		f.reply(key, "late", "", 0, null)
		return
	}
	f.counts["bypassed"]++
	f.emit("dispatch %s: bypassed, attempt , %s", r.Key, content(r.Value, r.Headers))
	f.reply(key, "bypassed", "bypassed", 0, null)
	if f.tooOld(e, f.last, f.seen, f.sources) {
		return // the event is late by now
	}
	f.storeForwarded(e)
	f.moveTime(e, r.Timestamp)
}

// storeForwarded stores an event that was forwarded unchecked.
func (f *claimFold) storeForwarded(e *envelope) {
	d, _ := f.keyOf(e)
	k, attempt := f.keys[d], uint64(1)
	if f.isRetained(k) {
		attempt = k.attempt + 1
		switch {
		case k.status == "freed":
		case e.time < k.first-f.Window || k.status == "completed" && f.covers(k, e.time):
			return
		case f.covers(k, e.time):
			k.status, k.bypassed = "submitted", true
			return
		default:
			f.keepFormer(d, k)
		}
	}
	fresh := &claim{status: "submitted", attempt: attempt, first: e.time, at: e.from, details: e.fingerprint, bypassed: true, ended: true}
	f.keys[d] = fresh
}

// shown returns the claim status that a reply shows: forwarded if no outcome can arrive.
func (k *claim) shown() string {
	if k.status == "submitted" && k.ended {
		return "forwarded"
	}
	return k.status
}
