// Package kafka decides what an error asks for, and reads one partition.
//
// # What it owns
//
//   - Classify maps every error of the broker, the network and franz-go to an
//     Action of the worker: continue, abort, replace the client, or stop.
//   - Denied names the right that a broker refused, as kafka-acls.sh has it.
//   - Reader reads one partition of an internal topic, read_committed, up to an
//     offset that the caller took before.
//   - Pause waits for a time or until the context ends.
//
// It imports franz-go and no package of this module.
//
// # What looks wrong
//
//   - Reader fetches by hand and counts by position. A consumer shows records
//     only, and the last offset of a changelog is a control record.
//   - An error of End is never classified by its code alone: the commit outcome is
//     unknown, so the client is replaced (AsCommitUnknown).
package kafka
