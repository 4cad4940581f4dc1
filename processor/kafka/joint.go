package kafka

import (
	"context"
	"fmt"
	"sync"

	"github.com/twmb/franz-go/pkg/kerr"
)

// Joint makes one request of the questions of many callers. While a request is sent and
// answered, further questions wait; the next request has all of them. So the restores of
// 1,000 partitions send some tens of requests in place of 1,000, and a single question does
// not wait. A request never answers a question that was asked after it was sent: the
// watermark of a restore is that from after its offset fetch (invariant 4).
type Joint[K comparable, Q, A any] struct {
	mu      sync.Mutex // never locked during a request
	waiting []*question[K, Q, A]
	sending bool
}

// Answer is the answer to one question.
type Answer[A any] struct {
	Value A
	Err   error
}

type question[K comparable, Q, A any] struct {
	key    K
	ask    Q
	answer Answer[A]
	done   chan struct{} // closed: answer is set
}

// Ask returns the answer to a question about key. send sends one request, in which each key
// has one question. Another caller's send may answer it.
func (j *Joint[K, Q, A]) Ask(ctx context.Context, key K, ask Q, send func(map[K]Q) map[K]Answer[A]) (A, error) {
	q := &question[K, Q, A]{key: key, ask: ask, done: make(chan struct{})}
	j.mu.Lock()
	j.waiting = append(j.waiting, q)
	if !j.sending {
		j.sending = true
		go j.run(send)
	}
	j.mu.Unlock()
	select {
	case <-q.done:
		return q.answer.Value, q.answer.Err
	case <-ctx.Done():
		var none A
		return none, ctx.Err()
	}
}

// run sends requests until no question waits. It has no context: a caller that gives up
// must not cancel the questions of others.
func (j *Joint[K, Q, A]) run(send func(map[K]Q) map[K]Answer[A]) {
	for {
		now := j.take()
		if now == nil {
			return
		}
		asks := make(map[K]Q, len(now))
		for _, q := range now {
			asks[q.key] = q.ask
		}
		answers := send(asks)
		for _, q := range now {
			answer, ok := answers[q.key]
			if !ok {
				answer.Err = fmt.Errorf("%w: the response lacks a part of the request", kerr.UnknownServerError)
			}
			q.answer = answer
			close(q.done)
		}
	}
}

// take returns the questions for the next request, one for each key. It returns nil if none
// waits: the next question then begins to send.
func (j *Joint[K, Q, A]) take() (now []*question[K, Q, A]) {
	j.mu.Lock()
	defer j.mu.Unlock()
	taken := map[K]bool{}
	var later []*question[K, Q, A]
	for _, q := range j.waiting {
		if taken[q.key] {
			later = append(later, q)
			continue
		}
		taken[q.key] = true
		now = append(now, q)
	}
	j.waiting = later
	j.sending = len(now) > 0
	return now
}
