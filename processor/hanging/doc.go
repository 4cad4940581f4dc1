// Package hanging finds transactions that hang, and ends them as their coordinator has recorded.
//
// A transaction ends when its coordinator has written a marker to each of its partitions. If a
// partition has no leader at that moment, the coordinator of Kafka up to 4.4.0 drops the marker and
// still completes the transaction (KAFKA-20734). In that partition the transaction stays open: it
// hangs, and readers wait before it. The next marker of the same producer id in that partition ends it,
// whatever that marker says. For example, an aborted transaction that hangs would become visible with
// the producer's next commit, and a committed one would vanish with its next abort.
//
// To close the hanging transaction, this package runs an empty transaction of the same producer id that
// names the partition and ends as the hanging one did. That needs no right that the producer lacks. It
// relies on an invariant of our producers: a producer begins no transaction before its last one is
// closed in each of its partitions. So at most one transaction of a producer is open, and the
// coordinator's record is about that one. See [Closer].
package hanging
