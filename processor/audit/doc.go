// Package audit reads a topic once, before there is an app, and counts what key rules would
// find there: copies, by delay, partition, sender and hour.
//
// # What it owns
//
//   - Rule is a key rule in the short notation of the command, or of a route of a routes file.
//   - Log reads partitions to their ends, and merges them by timestamp.
//   - Fold counts the records of one rule. It is pure but for the file of exact counts on disk.
//   - Advise derives a window and a grace period from the counts.
//   - Suggest finds candidates for key rules in the first records.
//
// It may import processor/app, processor/kafka, processor/security, dedup and dedup/rules. It
// has no state beyond one run.
//
// # Invariants
//
//   - It sends no request that writes, and joins no group.
//   - A key is the one that the route would derive: rules.Deriver derives both.
//   - The first record of a key is the first of the merged order, and every later one a copy.
//   - While all keys fit into memory, or with a directory, counts are exact. Else they are
//     of a sample of the keys, and each has its standard error.
//
// # What looks wrong
//
//   - A sample is chosen by the key and never by the record: a copy counts only if its first
//     record was seen.
//   - Counts are kept by level of the sample from the first record on. When a sample becomes
//     smaller, those of the dropped levels are dropped with it.
//   - The delay is that since the first record, whatever the window. Under a short window the
//     route would count a later copy from a later first record.
package audit
