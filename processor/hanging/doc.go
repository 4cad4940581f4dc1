// Package hanging finds transactions that hang and ends them as their coordinator recorded.
//
// A transaction ends when its coordinator has written a marker to each of its partitions. If
// a partition has no leader at that moment, the coordinator of Kafka up to 4.4.0 drops the
// marker, and completes the transaction (KAFKA-20734). The partition keeps an open
// transaction: it hangs. Readers wait before it. The next marker of the same producer id in
// that partition ends it, whatever that marker says. So an aborted transaction
// would become visible with the next commit, and a committed one would vanish with the next
// abort.
//
// The mend is an empty transaction of the same producer id that names the partition, and that
// ends as the hanging one did. It needs no right that the producer lacks. It
// relies on an invariant of the producers: none begins a transaction before the last one is
// closed in each of its partitions. Then at most one transaction of a producer is open, and
// the coordinator's record is about that one. See [Closer].
package hanging
