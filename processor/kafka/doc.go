// Package kafka maps errors to actions, and reads one partition.
//
// # What it owns
//
//   - Classify maps every error of the broker, the network and franz-go to an
//     Action of the worker: continue, abort, replace the client, or stop.
//   - Denied names the right that a broker refused, as kafka-acls.sh has it.
//   - Reader reads one partition of an internal topic, read_committed, up to an
//     offset given by the caller.
//   - Pause waits for a time or until the context ends.
//
// It imports franz-go and no package of this module.
//
// # What looks wrong
//
//   - Reader sends fetch requests itself and counts by position. A consumer returns
//     records only, and the last offset of a changelog is a control record.
//   - An error of End is never classified by its code alone: the commit outcome is
//     unknown, so the worker replaces the client (AsCommitUnknown).
package kafka
