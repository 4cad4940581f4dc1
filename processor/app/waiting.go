package app

import (
	"bytes"
	"container/heap"
	"fmt"
	"maps"
	"math"
	"slices"

	"oncebus/dedup"
	"oncebus/dedup/rules"
)

// Waiting has the claims of a task on whose outcomes requests wait, so that the task can answer these requests
// when no outcome can be expected any more. It is in memory only: a restore builds it from the rows. It may
// contain the claim of a row on which no request waits any more.
type Waiting struct {
	byTime [256]*waitingTimes // by namespace id; nil for a namespace without routes in claim mode
	claims map[dedup.Digest]waitingClaim
	// before has the former values of the entries that the open transaction has changed; nil for a new entry.
	before map[dedup.Digest]*waitingClaim
}

// waitingClaim is what Waiting knows about a claim.
type waitingClaim struct {
	namespaceID uint8
	first       int64 // first seen time of the row, in ms
	since       int64 // when its lease began, in ms; math.MaxInt64 without a lease that may end
}

// waitingTimes orders the claims of a namespace id by their first seen times and by the starts of their leases.
type waitingTimes struct{ first, since claimQueue }

// NewWaiting returns an index without claims.
func NewWaiting(rt *App) *Waiting {
	w := &Waiting{claims: map[dedup.Digest]waitingClaim{}, before: map[dedup.Digest]*waitingClaim{}}
	for _, r := range rt.Routes {
		if r.Mode == rules.ClaimMode {
			w.byTime[r.NamespaceID] = &waitingTimes{}
		}
	}
	return w
}

// Read takes a committed row. Its error wraps dedup.ErrRow.
func (w *Waiting) Read(row *dedup.Row) error {
	if w.byTime[row.NamespaceID] == nil || row.Result == nil {
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

// Note takes a row of the open transaction, with its claim.
func (w *Waiting) Note(row *dedup.Row, claim *dedup.Claim) {
	if _, noted := w.before[row.Digest]; !noted {
		w.before[row.Digest] = nil
		if c, ok := w.claims[row.Digest]; ok {
			w.before[row.Digest] = &c
		}
	}
	w.set(row, claim)
}

// set updates the entry of a row. Only a claim without an outcome for which requests wait keeps an entry.
func (w *Waiting) set(row *dedup.Row, claim *dedup.Claim) {
	if len(claim.Requests) == 0 || row.Status != dedup.ClaimInProgress && row.Status != dedup.Submitted {
		delete(w.claims, row.Digest)
		return
	}
	c := waitingClaim{namespaceID: row.NamespaceID, first: row.First, since: math.MaxInt64}
	if row.Status == dedup.ClaimInProgress && claim.StartID == nil {
		c.since = claim.Since
	}
	if known, ok := w.claims[row.Digest]; !ok || known != c {
		w.add(row.Digest, c)
	}
}

func (w *Waiting) add(digest dedup.Digest, c waitingClaim) {
	w.claims[digest] = c
	times := w.byTime[c.namespaceID]
	heap.Push(&times.first, timedClaim{c.first, digest})
	if c.since != math.MaxInt64 {
		heap.Push(&times.since, timedClaim{c.since, digest})
	}
	if n := len(times.first) + len(times.since); n > 4*len(w.claims)+waitingStaleMax {
		w.dropStale(times)
	}
}

// waitingStaleMax is how many outdated entries the queues may have, in addition to twice the number of claims.
const waitingStaleMax = 1024

// dropStale removes the outdated entries of a namespace's queues.
func (w *Waiting) dropStale(times *waitingTimes) {
	for q, timeOf := range map[*claimQueue]func(waitingClaim) int64{&times.first: firstOf, &times.since: sinceOf} {
		slices.SortFunc(*q, timedClaim.compare) // a sorted slice is a heap
		*q = slices.Clip(slices.DeleteFunc(slices.Compact(*q), func(e timedClaim) bool { return !w.has(e, timeOf) }))
	}
}

// Evict drops the claims of each namespace id that were first seen before a time, in ms. Their requests have
// been answered already, in the transaction that moved the namespace's stream time.
func (w *Waiting) Evict(before *[256]int64) {
	maps.DeleteFunc(w.claims, func(_ dedup.Digest, c waitingClaim) bool { return c.first < before[c.namespaceID] })
}

// Commit keeps the changes of the open transaction.
func (w *Waiting) Commit() { clear(w.before) }

// Discard undoes the changes of the open transaction.
func (w *Waiting) Discard() {
	for digest, c := range w.before {
		if c == nil {
			delete(w.claims, digest)
			continue
		}
		w.add(digest, *c)
	}
	clear(w.before)
}

// Before returns the claims of a namespace id whose rows were first seen before a time, in ms, sorted by
// digest.
func (w *Waiting) Before(namespaceID uint8, first int64) []dedup.Digest {
	times := w.byTime[namespaceID]
	if times == nil {
		return nil
	}
	return w.find(&times.first, firstOf, first, math.MaxInt)
}

// LeasedBefore returns the claims of a namespace id whose leases began before a time, in ms, sorted by digest.
// If there are more than most, it returns those whose leases began first.
func (w *Waiting) LeasedBefore(namespaceID uint8, since int64, most int) []dedup.Digest {
	return w.find(&w.byTime[namespaceID].since, sinceOf, since, most)
}

// HasLeases reports whether a lease of a namespace id may end while requests wait for its claim.
func (w *Waiting) HasLeases(namespaceID uint8) bool {
	q := &w.byTime[namespaceID].since
	for len(*q) > 0 && !w.has((*q)[0], sinceOf) {
		heap.Pop(q)
	}
	return len(*q) > 0
}

// find returns the claims whose time is before a limit. If there are more than most, it returns the earliest
// ones. It does not remove their entries from the queue; dropStale removes entries that are outdated.
func (w *Waiting) find(q *claimQueue, timeOf func(waitingClaim) int64, limit int64, most int) []dedup.Digest {
	var found []timedClaim
	for len(*q) > 0 && (*q)[0].at < limit && len(found) < most {
		if e := heap.Pop(q).(timedClaim); w.has(e, timeOf) {
			found = append(found, e)
		}
	}
	var digests []dedup.Digest
	for _, e := range slices.Compact(found) { // equal entries are next to each other
		heap.Push(q, e)
		digests = append(digests, e.digest)
	}
	slices.SortFunc(digests, func(a, b dedup.Digest) int { return bytes.Compare(a[:], b[:]) })
	return digests
}

// has reports whether an entry of a queue is up to date.
func (w *Waiting) has(e timedClaim, timeOf func(waitingClaim) int64) bool {
	c, ok := w.claims[e.digest]
	return ok && timeOf(c) == e.at
}

func firstOf(c waitingClaim) int64 { return c.first }
func sinceOf(c waitingClaim) int64 { return c.since }
