package app

import (
	"bytes"
	"fmt"
	"maps"
	"math"
	"slices"

	"oncebus/dedup"
	"oncebus/dedup/rules"
)

// Waiting has the claims of a task with requests that wait for an outcome, so that those
// requests are answered when no outcome can be expected. It is in memory only: a restore
// builds it from the rows. An entry may be of a row that has no such requests any more.
type Waiting struct {
	claimed [256]bool // namespace ids of routes in claim mode
	claims  map[dedup.Digest]waitingClaim
	// before has the entries as they were before the open transaction; nil for none.
	before map[dedup.Digest]*waitingClaim
	// firstMin and sinceMin are at most the least first and since of the entries of a
	// namespace id.
	firstMin, sinceMin [256]int64
}

type waitingClaim struct {
	namespaceID uint8
	first       int64 // first seen time of the row, ms
	since       int64 // when its lease began, ms; math.MaxInt64 if it has none
}

// NewWaiting returns an index without claims.
func NewWaiting(rt *App) *Waiting {
	w := &Waiting{claims: map[dedup.Digest]waitingClaim{}, before: map[dedup.Digest]*waitingClaim{}}
	for _, r := range rt.Routes {
		w.claimed[r.NamespaceID] = w.claimed[r.NamespaceID] || r.Mode == rules.ClaimMode
	}
	for id := range w.firstMin {
		w.firstMin[id], w.sinceMin[id] = math.MaxInt64, math.MaxInt64
	}
	return w
}

// Read notes a committed row. The error wraps dedup.ErrRow.
func (w *Waiting) Read(row *dedup.Row) error {
	if !w.claimed[row.NamespaceID] || row.Result == nil {
		delete(w.claims, row.Digest)
		return nil
	}
	claim, err := dedup.DecodeClaim(row.Result)
	if err != nil {
		return fmt.Errorf("claim of key %v: %w", row.Digest, err)
	}
	w.set(row, &claim)
	return nil
}

// Note notes a row of the open transaction with its claim.
func (w *Waiting) Note(row *dedup.Row, claim *dedup.Claim) {
	if _, noted := w.before[row.Digest]; !noted {
		w.before[row.Digest] = nil
		if c, ok := w.claims[row.Digest]; ok {
			w.before[row.Digest] = &c
		}
	}
	w.set(row, claim)
}

func (w *Waiting) set(row *dedup.Row, claim *dedup.Claim) {
	if len(claim.Requests) == 0 || row.Status != dedup.ClaimInProgress && row.Status != dedup.Submitted {
		delete(w.claims, row.Digest)
		return
	}
	c := waitingClaim{namespaceID: row.NamespaceID, first: row.First, since: math.MaxInt64}
	if row.Status == dedup.ClaimInProgress && claim.StartID == nil {
		c.since = claim.Since
	}
	w.claims[row.Digest] = c
	w.firstMin[c.namespaceID] = min(w.firstMin[c.namespaceID], c.first)
	w.sinceMin[c.namespaceID] = min(w.sinceMin[c.namespaceID], c.since)
}

// Evict drops the claims of each namespace id that were first seen before a time, in ms.
// Their requests were answered in the transaction that moved stream time there.
func (w *Waiting) Evict(before *[256]int64) {
	maps.DeleteFunc(w.claims, func(_ dedup.Digest, c waitingClaim) bool { return c.first < before[c.namespaceID] })
}

// Commit keeps what the open transaction noted.
func (w *Waiting) Commit() { clear(w.before) }

// Discard drops what the open transaction noted.
func (w *Waiting) Discard() {
	for digest, c := range w.before {
		if c == nil {
			delete(w.claims, digest)
			continue
		}
		w.claims[digest] = *c
		w.firstMin[c.namespaceID] = min(w.firstMin[c.namespaceID], c.first)
		w.sinceMin[c.namespaceID] = min(w.sinceMin[c.namespaceID], c.since)
	}
	clear(w.before)
}

// Before returns the claims of a namespace id whose rows were first seen before a time, in
// ms, in the order of their digests.
func (w *Waiting) Before(namespaceID uint8, first int64) []dedup.Digest {
	if w.firstMin[namespaceID] >= first {
		return nil
	}
	return w.find(namespaceID, &w.firstMin[namespaceID], func(c *waitingClaim) int64 { return c.first }, first)
}

// LeasedBefore returns the claims of a namespace id whose leases began before a time, in
// ms, in the order of their digests.
func (w *Waiting) LeasedBefore(namespaceID uint8, since int64) []dedup.Digest {
	if w.sinceMin[namespaceID] >= since {
		return nil
	}
	return w.find(namespaceID, &w.sinceMin[namespaceID], func(c *waitingClaim) int64 { return c.since }, since)
}

// HasLeases reports whether leases of a namespace id may end under requests that wait. It may
// be wrong until LeasedBefore is asked.
func (w *Waiting) HasLeases(namespaceID uint8) bool { return w.sinceMin[namespaceID] != math.MaxInt64 }

// find returns the claims whose time is before a limit, and sets least to the least time.
func (w *Waiting) find(namespaceID uint8, least *int64, timeOf func(*waitingClaim) int64, limit int64) (found []dedup.Digest) {
	*least = math.MaxInt64
	for digest, c := range w.claims {
		if c.namespaceID != namespaceID {
			continue
		}
		at := timeOf(&c)
		*least = min(*least, at)
		if at < limit {
			found = append(found, digest)
		}
	}
	slices.SortFunc(found, func(a, b dedup.Digest) int { return bytes.Compare(a[:], b[:]) })
	return found
}
