package judge

// fenceSteps is how many fences a namespace sets while stream time moves by one retention. It is below
// package wire's limit on fences, so the fences of a single namespace are not merged.
const fenceSteps = 12

// setFences brings the floor and the fences of the open checkpoint up to date.
//
// It uses the stream times of the committed checkpoint and needs no margin of broker time. The skew of a route
// bounds how far one event moves stream time, and the store evicts rows by the same times, so no rebuild needs
// an evicted row. The fence is exact, because it leaves out the rows of the open transaction, and all rows below
// the store's position are committed.
func (t *State) setFences() {
	horizons := t.App.Horizons(&t.Committed)
	if t.floorMayMove() {
		t.Open.RaiseFloor(&horizons)
	}
	if t.fenceDue(&horizons) {
		t.Open.AddFence(t.Store.Position(), &t.Committed, &horizons)
	}
}

// fenceDue reports whether a namespace has rows whose times are later than all fences by at least one
// step (retention / fenceSteps).
func (t *State) fenceDue(horizons *[256]int64) bool {
	before, has := t.Open.FencedTimes()
	for _, r := range t.App.Routes {
		latest, ok := t.Committed.Latest(r.NamespaceID)
		if !ok || latest < horizons[r.NamespaceID] {
			continue
		}
		// Latest never decreases, so the difference of any two times fits.
		if !has[r.NamespaceID] || uint64(latest)-uint64(before[r.NamespaceID]) >= uint64(max(1, r.Span.Retention()/fenceSteps)) {
			return true
		}
	}
	return false
}

// TrimTo returns the changelog offset below which no record is needed. It is never above the newest
// whole checkpoint, which the partial checkpoints need.
func (t *State) TrimTo() int64 { return min(t.Committed.Floor, t.written.wholeAt) }
