// Package kafka adds to franz-go what the rest of oncebus needs: it maps errors to actions of the
// worker, reads single partitions up to a given offset, and bounds the memory of fetched batches.
//
// # What it owns
//
//   - Classify maps every error of the broker, the network and franz-go to an Action of the worker:
//     retry, abort, replace the client, or stop.
//   - Denied names the right that a broker refused, in the words of kafka-acls.sh.
//   - Reader reads one partition of an internal topic, read_committed, up to an offset that the caller
//     gives.
//   - Joint combines the requests that many readers need at the same time into one request.
//   - Budget bounds the memory of the decompressed batches of a process. The process's clients use its
//     decompressor.
//   - Precompress makes a record fit that is too large for its topic but small when compressed.
//   - EndOnce makes a client outside of a consumer group send the end of a transaction only once.
//   - Pause waits for a time, or until the context ends.
//
// The package imports franz-go, the codecs of franz-go, and no package of this module.
//
// # What looks wrong
//
//   - Reader sends fetch requests itself, and ends by position. A consumer returns records only, and the
//     last offset of a changelog is a control record.
//   - pool allocates, and also counts in the budget: franz-go asks it for the memory of each batch's
//     records, and only there the records of batches without compression can be counted.
//   - A caller may recycle records but does not have to. franz-go may at any time drop a buffer from
//     which a fetched record is reachable; then the garbage collector returns the memory to the budget.
//   - If the budget has no memory for a batch, the batch's fetch fails instead of waiting: a fetch that
//     waits would block the rebalance whose end may free the memory.
//   - An error of End is never classified by its code alone: the commit outcome is unknown, so the
//     worker replaces the client (AsCommitUnknown).
package kafka
