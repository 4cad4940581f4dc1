package app

import (
	"bytes"
	"maps"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"oncebus/dedup"
	"oncebus/dedup/rules"
)

// waitingModel is what Waiting should know: the claims with requests, as of the last
// transaction and as of the open one.
type waitingModel struct {
	w               *Waiting
	committed, open map[dedup.Digest]waitingClaim
}

func newWaitingModel() *waitingModel {
	a := &App{Routes: []*Route{{Route: &rules.Route{Mode: rules.ClaimMode}}, {Route: &rules.Route{}, NamespaceID: 1}}}
	return &waitingModel{w: NewWaiting(a), committed: map[dedup.Digest]waitingClaim{}, open: map[dedup.Digest]waitingClaim{}}
}

// note draws a row of one of few digests and notes it.
func (m *waitingModel) note(t *rapid.T) {
	var row dedup.Row
	row.Digest[15] = rapid.Byte().Draw(t, "digest") % 20
	row.Status = rapid.SampledFrom([]dedup.Status{dedup.ClaimInProgress, dedup.Submitted, dedup.Completed}).Draw(t, "status")
	row.First = rapid.Int64Range(0, 50).Draw(t, "first")
	claim := dedup.Claim{Since: rapid.Int64Range(0, 50).Draw(t, "since")}
	if rapid.Bool().Draw(t, "waits") {
		claim.Requests = make([]dedup.Request, 1)
	}
	if rapid.IntRange(0, 3).Draw(t, "started") == 0 {
		claim.StartID = []byte("start")
	}
	m.w.Note(&row, &claim)
	if len(claim.Requests) == 0 || row.Status == dedup.Completed {
		delete(m.open, row.Digest)
		return
	}
	c := waitingClaim{first: row.First, since: math.MaxInt64}
	if row.Status == dedup.ClaimInProgress && claim.StartID == nil {
		c.since = claim.Since
	}
	m.open[row.Digest] = c
}

// before returns the claims whose time is before a limit, at most so many and the earliest.
func (m *waitingModel) before(timeOf func(waitingClaim) int64, limit int64, most int) []dedup.Digest {
	var found []timedClaim
	for digest, c := range m.open {
		if timeOf(c) < limit {
			found = append(found, timedClaim{timeOf(c), digest})
		}
	}
	slices.SortFunc(found, timedClaim.compare)
	var digests []dedup.Digest
	for _, e := range found[:min(len(found), most)] {
		digests = append(digests, e.digest)
	}
	slices.SortFunc(digests, func(a, b dedup.Digest) int { return bytes.Compare(a[:], b[:]) })
	return digests
}

// TestWaitingFindsClaims: over transactions that commit, abort and evict, it finds the claims
// whose time has come, and no other.
func TestWaitingFindsClaims(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := newWaitingModel()
		t.Repeat(map[string]func(*rapid.T){
			"note":    m.note,
			"commit":  func(*rapid.T) { m.w.Commit(); m.committed = maps.Clone(m.open) },
			"discard": func(*rapid.T) { m.w.Discard(); m.open = maps.Clone(m.committed) },
			"evict": func(t *rapid.T) { // after a commit
				m.w.Commit()
				before := [256]int64{rapid.Int64Range(0, 30).Draw(t, "before")}
				m.w.Evict(&before)
				maps.DeleteFunc(m.open, func(_ dedup.Digest, c waitingClaim) bool { return c.first < before[0] })
				m.committed = maps.Clone(m.open)
			},
			"": func(t *rapid.T) {
				limit, most := rapid.Int64Range(0, 60).Draw(t, "limit"), rapid.IntRange(1, 5).Draw(t, "most")
				if got, want := m.w.Before(0, limit), m.before(firstOf, limit, math.MaxInt); !slices.Equal(got, want) {
					t.Errorf("first seen before %d: %v, want %v", limit, got, want)
				}
				if got, want := m.w.LeasedBefore(0, limit, most), m.before(sinceOf, limit, most); !slices.Equal(got, want) {
					t.Errorf("leased before %d: %v, want %v", limit, got, want)
				}
				if got, want := m.w.HasLeases(0), len(m.before(sinceOf, math.MaxInt64, 1)) > 0; got != want {
					t.Errorf("has leases: %v, want %v", got, want)
				}
				if m.w.Before(1, limit) != nil {
					t.Error("claims of a plain route")
				}
			},
		})
	})
}

// TestWaitingForgetsWhatIsOver: claims that were answered leave nothing behind, however long
// their windows are.
func TestWaitingForgetsWhatIsOver(t *testing.T) {
	t.Parallel()
	m := newWaitingModel()
	for n := range 100_000 {
		row := dedup.Row{Digest: dedup.Digest{byte(n), byte(n >> 8), byte(n >> 16)}, Status: dedup.ClaimInProgress, First: math.MaxInt64 - 1}
		m.w.Note(&row, &dedup.Claim{Since: int64(n), Requests: make([]dedup.Request, 1)})
		m.w.Note(&row, &dedup.Claim{Since: int64(n)})
		m.w.Commit()
	}
	if n := len(m.w.byTime[0].first) + len(m.w.byTime[0].since); n > waitingStaleMax {
		t.Errorf("%d entries of 0 claims", n)
	}
}
