// Package progress observes how far outcomes were read and executors have committed, for
// the leases of claims. A lease may end only if no outcome that was stored in its time is
// unread, and if the executor had the lease's time to work on the event. Neither shows on
// a clock: a router may lag, an open transaction may hide outcomes, a partition may have
// been added, and an executor may have been away.
//
// Each worker of the routing stage observes the outcomes partitions that it reads. What it
// observed is a fact about the past: it stays true, whichever worker writes it, and however late. So
// a worker that was replaced cannot do harm with it.
package progress
