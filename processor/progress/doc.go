// Package progress observes how far the workers have read outcomes and how far executors have committed, so that
// the lease of a claim can end. A lease may end only if every outcome that was stored before the lease's end has
// been read, and if the executor had the whole time of the lease to work on the event. A clock alone shows
// neither of these: a router may be behind, an open transaction may hide outcomes, a partition may have been
// added, and an executor may have been stopped for a part of the time.
//
// Each worker of the routing stage observes the partitions of outcomes that it reads. What a worker has
// observed is a fact about the past: it stays true whichever worker writes it, and however late. A worker that
// was replaced (a zombie) can therefore write an old observation without harm.
package progress
