package app

import (
	"bytes"
	"cmp"

	"oncebus/dedup"
)

// timedClaim is a claim with one of its times, in ms: the times by which queues of claims are ordered.
type timedClaim struct {
	at     int64
	digest dedup.Digest
}

func (e timedClaim) compare(other timedClaim) int {
	return cmp.Or(cmp.Compare(e.at, other.at), bytes.Compare(e.digest[:], other.digest[:]))
}

// claimQueue is a heap.Interface of claims, whose first element is the claim with the earliest time.
type claimQueue []timedClaim

// Len implements heap.Interface.
func (q *claimQueue) Len() int { return len(*q) }

// Less implements heap.Interface.
func (q *claimQueue) Less(i, j int) bool { return (*q)[i].compare((*q)[j]) < 0 }

// Swap implements heap.Interface.
func (q *claimQueue) Swap(i, j int) { (*q)[i], (*q)[j] = (*q)[j], (*q)[i] }

// Push implements heap.Interface.
func (q *claimQueue) Push(e any) { *q = append(*q, e.(timedClaim)) } //nolint:forcetypeassert // Waiting pushes only those

// Pop implements heap.Interface.
func (q *claimQueue) Pop() any {
	last := len(*q) - 1
	e := (*q)[last]
	*q = (*q)[:last]
	return e
}
