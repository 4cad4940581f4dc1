package kafka

import (
	"context"
	"fmt"
	"sync"

	"github.com/twmb/franz-go/pkg/kerr"
)

// Joint combines the questions of many callers into few requests. While one request is in flight, further
// questions wait, and the next request contains all of them. So the restores of 1,000 partitions send some tens
// of requests instead of 1,000, and a single question is sent at once.
//
// A request never answers a question that was asked after the request was sent. That is necessary: the
// high watermark at which a restore ends must be listed after the restore's offset fetch (invariant 4).
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
	done   chan struct{} // closed when answer is set
}

// Ask returns the answer to a question about key. send sends one request that contains one question for
// each key. The request that answers the question may be sent by the send function of another caller.
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

// run sends requests until no question waits. It has no context: a caller that gives up must not cancel
// the questions of other callers.
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

// take returns the questions for the next request, one for each key. If no question waits it returns
// nil; the next call of Ask then starts run again.
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
