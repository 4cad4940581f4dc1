// Package kafka maps errors to actions, and reads one partition.
//
// # What it owns
//
//   - Classify maps every error of the broker, the network and franz-go to an
//     Action of the worker: continue, abort, replace the client, or stop.
//   - Denied names the right that a broker refused, as kafka-acls.sh has it.
//   - Reader reads one partition of an internal topic, read_committed, up to an
//     offset given by the caller.
//   - Joint makes one request of what many readers ask at the same time.
//   - Budget bounds the memory of decompressed batches of a process. Its clients use
//     its decompressor.
//   - Precompress makes a record fit that is too large for its topic, and small compressed.
//   - EndOnce is how a client outside of a group sends the end of a transaction.
//   - Pause waits for a time or until the context ends.
//
// It imports franz-go, the codecs of franz-go, and no package of this module.
//
// # What looks wrong
//
//   - Reader sends fetch requests itself and counts by position. A consumer returns
//     records only, and the last offset of a changelog is a control record.
//   - pool counts too: it is how franz-go lets us count the records of a batch without
//     compression.
//   - A caller may recycle records, and need not. A fetched record is reachable from
//     buffers that franz-go may drop at any time. The garbage collector returns these.
//   - A batch without memory fails its fetch and does not wait: a fetch that waits blocks
//     the rebalance, whose end may free the memory.
//   - An error of End is never classified by its code alone: the commit outcome is
//     unknown, so the worker replaces the client (AsCommitUnknown).
package kafka
