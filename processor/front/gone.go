package front

import (
	"sync"

	"oncebus/dedup"
)

// goneMax bounds the number of requests in goneRequests, to some 2 MiB.
const goneMax = 16_384

// goneRequests has the requests whose HTTP clients stopped waiting for an outcome: the client disconnected, or
// its timeout was over. Such a request still occupies a place in its claim until the outcome arrives or the
// request's deadline is over. Therefore the next request for the key takes over its place. goneRequests is in
// memory only: after a restart of the ingress, the deadline frees the places.
type goneRequests struct {
	mu    sync.Mutex
	byKey map[dedup.Digest][]dedup.Address // oldest first, never empty
	total int
}

// add adds a request for a key.
func (g *goneRequests) add(key dedup.Digest, request dedup.Address) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.total >= goneMax {
		for other, requests := range g.byKey { // any key may be dropped, because the deadline of each request frees its place, too
			g.total -= len(requests)
			delete(g.byKey, other)
			break
		}
	}
	if g.byKey == nil {
		g.byKey = map[dedup.Digest][]dedup.Address{}
	}
	g.byKey[key] = append(g.byKey[key], request)
	g.total++
}

// take removes and returns the oldest request for a key; zero for none.
func (g *goneRequests) take(key dedup.Digest) dedup.Address {
	g.mu.Lock()
	defer g.mu.Unlock()
	requests := g.byKey[key]
	if len(requests) == 0 {
		return dedup.Address{}
	}
	g.total--
	if len(requests) == 1 {
		delete(g.byKey, key)
	} else {
		g.byKey[key] = requests[1:]
	}
	return requests[0]
}
