package front

import (
	"math/rand/v2"
	"sync"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/wire"
)

// waiter is a request that waits for the verdict on its event, or for the answer to its question.
type waiter struct {
	// answers has a capacity of two: the verdict and the outcome.
	answers  chan wire.Answer
	key      string // the event's dedup key as text; "" for a missing key
	token    string // the token of a start or renewal, which has no key; "" for an event
	adjacent bool   // whether the first event may be in an adjacent bucket
	// waits is true once the verdict has announced that an outcome follows; only deliver uses the field.
	waits bool
}

func newWaiter(d *rules.Derived) *waiter {
	q := &waiter{answers: make(chan wire.Answer, 2)}
	if d.Finding == rules.Keyed {
		q.key, q.adjacent = wire.KeyText(&d.Key), d.HasAdjacent || d.Route.ForwardsCollisions()
	}
	return q
}

// deliver sends an answer to the request, unless the answer is for another key: any producer of a raw topic
// that knows the address can forge an answer. The answer to a start or renewal has the token of its attempt
// instead of a key. After the verdict on its own event, a request may get a further answer whose key is the key
// of the first event in an adjacent bucket. That answer is the outcome, or in_progress if another request took
// over the place of this request.
func (q *waiter) deliver(a *wire.Answer) {
	if a.Token != q.token || q.token == "" && a.Key != q.key && !(q.adjacent && q.waits && (a.HasOutcome || a.Verdict == dedup.InProgress)) {
		return
	}
	q.waits = q.waits || a.OutcomeFollows
	select {
	case q.answers <- *a:
	default: // a verdict that was repeated
	}
}

// waiters has the waiting requests by id. The ids are random, so that only programs that can read the produced
// records know the ids.
type waiters struct {
	mu      sync.Mutex
	random  *rand.ChaCha8 // cryptographically strong, seeded by the system
	waiting map[uint64]*waiter
}

// newWaiters returns an empty set of requests.
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

// get returns the request with an id; nil if it does not wait any more.
func (a *waiters) get(id uint64) *waiter {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.waiting[id]
}
