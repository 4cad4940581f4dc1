package front

import (
	"math/rand/v2"
	"sync"

	"oncebus/dedup/rules"
	"oncebus/processor/wire"
)

// A question is an event whose sender waits for the verdict.
type waiter struct {
	// answers has room for all there are: the verdict, and the outcome.
	answers chan wire.Answer
	key     string // the event's dedup key as text; "" if it has none
	near    bool   // its original may have a neighbouring key
	waits   bool   // the verdict said that the outcome follows; the reader's
}

func newWaiter(d *rules.Derived) *waiter {
	q := &waiter{answers: make(chan wire.Answer, 2)}
	if d.Finding == rules.Keyed {
		q.key, q.near = wire.KeyText(&d.Key), d.HasAdjacent
	}
	return q
}

// deliver gives the question an answer, unless that is one to another event: who
// may write to a raw topic and knows the address can have events of their own
// judged under it. The outcome that a copy waits for has the original's key.
func (q *waiter) deliver(a *wire.Answer) {
	if a.Key != q.key && !(q.near && q.waits && a.HasOutcome) {
		return
	}
	q.waits = q.waits || a.OutcomeFollows
	select {
	case q.answers <- *a:
	default: // told before
	}
}

// waiters are the questions that wait for an answer. Their numbers cannot be
// guessed: only who reads what the front wrote knows where its verdict goes.
type waiters struct {
	mu      sync.Mutex
	random  *rand.ChaCha8 // cryptographically strong, seeded by the system
	waiting map[uint64]*waiter
}

func newWaiters(seed [32]byte) *waiters {
	return &waiters{random: rand.NewChaCha8(seed), waiting: map[uint64]*waiter{}}
}

// begin opens a question and returns its number.
func (a *waiters) begin(q *waiter) uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	for {
		ask := a.random.Uint64()
		if _, taken := a.waiting[ask]; !taken && ask != 0 {
			a.waiting[ask] = q
			return ask
		}
	}
}

func (a *waiters) end(ask uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.waiting, ask)
}

// of returns the question with the number, or nil.
func (a *waiters) of(ask uint64) *waiter {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.waiting[ask]
}
