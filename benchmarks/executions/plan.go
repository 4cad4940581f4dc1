//go:build unix

package main

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// request is one event of a sender: an operation, or a duplicate of an operation.
type request struct {
	due       time.Duration // counted from the start
	operation int
	id        string // of the request
	byHTTP    bool
	duplicate bool
}

// value returns the event. The amount is computed from the operation's number, so that the benchmark notices if
// a reply has the result of another operation.
func (q *request) value() []byte {
	return fmt.Appendf(nil, `{"account":%q,"request":%q,"amount":%d}`, q.account(), q.id, q.operation%1000)
}

// account is the value of the field that is the dedup key of the operation.
func (q *request) account() string { return fmt.Sprint("op-", q.operation) }

// result is the result that deployments/executor returns for the operation.
func (q *request) result() string {
	return fmt.Sprintf(`{"account":%q,"granted":%d}`, q.account(), q.operation%1000)
}

// plan draws the requests of a run in the order in which they are sent. Half of the duplicates come within seconds of
// their operation, most others within a minute, and some at any later time.
func plan(s settings, rng *rand.Rand) []request {
	var all []request
	step := s.duration / time.Duration(s.operations)
	for n := range s.operations {
		due := time.Duration(n) * step
		all = append(all, request{due: due, operation: n, id: fmt.Sprint("first-", n), byHTTP: rng.IntN(2) == 0})
		if rng.IntN(100) >= s.duplicates {
			continue
		}
		span := min(5*time.Second, s.duration-due)
		switch draw := rng.IntN(10); {
		case draw == 0:
			span = s.duration - due
		case draw < 5:
			span = min(time.Minute, s.duration-due)
		}
		later := time.Duration(rng.Int64N(max(1, int64(span))))
		all = append(all, request{due: due + later, operation: n, id: fmt.Sprint("again-", n), byHTTP: rng.IntN(2) == 0, duplicate: true})
	}
	slices.SortStableFunc(all, func(a, b request) int { return cmp.Compare(a.due, b.due) })
	return all
}
