package front

import (
	"math/rand/v2"
	"sync"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/wire"
)

// waiter is a request that waits for the verdict on its event.
type waiter struct {
	// answers has a capacity of two: the verdict and the outcome.
	answers  chan wire.Answer
	key      string // the event's dedup key as text; "" for a missing key
	token    string // of a start or renewal, which has no key; "" for an event
	adjacent bool   // its first event may be in an adjacent bucket
	waits    bool   // the verdict said that the outcome follows; only deliver reads and writes it
}

func newWaiter(d *rules.Derived) *waiter {
	q := &waiter{answers: make(chan wire.Answer, 2)}
	if d.Finding == rules.Keyed {
		q.key, q.adjacent = wire.KeyText(&d.Key), d.HasAdjacent || d.Route.ForwardsCollisions()
	}
	return q
}

// deliver sends an answer to the request unless it is for another key: any producer of
// a raw topic that knows the address can forge it. The answer to a start or renewal has
// the token of its attempt instead. After its own verdict a request may get an answer with
// the key of the first event in an adjacent bucket: the outcome, or in_progress if another
// request took its place.
func (q *waiter) deliver(a *wire.Answer) {
	if a.Token != q.token || q.token == "" && a.Key != q.key && !(q.adjacent && q.waits && (a.HasOutcome || a.Verdict == dedup.InProgress)) {
		return
	}
	q.waits = q.waits || a.OutcomeFollows
	select {
	case q.answers <- *a:
	default: // a repeated verdict
	}
}

// waiters are the waiting requests by id. The ids are random, so that only readers of
// the produced records know them.
type waiters struct {
	mu      sync.Mutex
	random  *rand.ChaCha8 // cryptographically strong, seeded by the system
	waiting map[uint64]*waiter
}

func newWaiters(seed [32]byte) *waiters {
	return &waiters{random: rand.NewChaCha8(seed), waiting: map[uint64]*waiter{}}
}

// begin adds a request and returns its id.
func (a *waiters) begin(q *waiter) uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	for {
		id := a.random.Uint64()
		if _, taken := a.waiting[id]; !taken && id != 0 {
			a.waiting[id] = q
			return id
		}
	}
}

func (a *waiters) end(id uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.waiting, id)
}

// get returns the request with an id, or nil.
func (a *waiters) get(id uint64) *waiter {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.waiting[id]
}
