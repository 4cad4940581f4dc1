package front

import (
	"testing"

	"oncebus/dedup"
)

// TestGoneRequests: a request is taken once, the oldest of its key first, and their number
// has a bound.
func TestGoneRequests(t *testing.T) {
	var g goneRequests
	one, two := dedup.Digest{1}, dedup.Digest{2}
	for n := range uint64(3) {
		g.add(one, dedup.Address{Ingress: 1, Request: n})
	}
	g.add(two, dedup.Address{Ingress: 1, Request: 9})
	for n := range uint64(3) {
		if got := g.take(one); got.Request != n || !got.IsSet() {
			t.Errorf("request %d is %+v", n, got)
		}
	}
	if got := g.take(one); got.IsSet() {
		t.Errorf("taken twice: %+v", got)
	}
	if got := g.take(two); got.Request != 9 || g.total != 0 || len(g.byKey) != 0 {
		t.Errorf("another key's is %+v, %d remain", got, g.total)
	}
	for n := range uint64(3 * goneMax) {
		g.add(dedup.Digest{byte(n), byte(n >> 8)}, dedup.Address{Ingress: 1, Request: n})
		if g.total > goneMax {
			t.Fatalf("%d requests", g.total)
		}
	}
}
