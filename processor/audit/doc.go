// Package audit reads a topic once, before an app exists for it, and counts what key rules would find there:
// copies, by delay, partition, sender and hour.
//
// # What it owns
//
//   - Rule is a key rule, written in the short notation of the command or taken from a route of a routes file.
//   - Log reads partitions to their ends and merges their records by timestamp.
//   - Fold counts the records for one rule. It is pure, except for the file on disk that makes the counts exact.
//   - Window and Grace derive the recommended settings (Advice) from the counts.
//   - Suggest finds candidates for key rules in the first records.
//
// It may import processor/app, processor/kafka, processor/security, dedup and dedup/rules. It keeps no state
// beyond a single run.
//
// # Invariants
//
//   - It sends no request that writes, and joins no consumer group.
//   - A key is exactly the key that the route would derive, because rules.Deriver derives both.
//   - The first record of a key in the merged order counts as the original, and every later one as a copy.
//   - The counts are exact as long as all keys fit into memory, or if the operator gave a directory for the
//     rest. Otherwise only a sample of the keys is counted, and every count has its standard error.
//
// # What looks wrong
//
//   - The sample is chosen by key and never by record, because a copy can be recognised only if the first record of
//     its key was seen.
//   - From the first record on, counts are kept separately for each level of the sample. When the sample has to become
//     smaller, the counts of the dropped levels are dropped with their keys.
//   - The delay of a copy is the time since the first record of the key, whatever the window. A route with a
//     short window would measure the delay of a later copy from a later first record, because it emits such a
//     copy and begins a new window.
package audit
