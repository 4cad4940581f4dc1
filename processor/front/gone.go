package front

import (
	"sync"

	"oncebus/dedup"
)

// goneMax bounds the requests in goneRequests, some 2 MiB.
const goneMax = 16_384

// goneRequests are requests whose clients stopped to wait for an outcome: they
// disconnected, or their timeout was over. In its claim such a request still uses a place,
// until the outcome arrives or its deadline is over. So the next request for the key takes
// that place. They are in memory only: an ingress that restarts leaves it to the deadline.
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
		for other, requests := range g.byKey { // any one: each has a deadline too
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
