// Package app has the data that all processes of an app share: topics, manifest, numbers and limits. The
// service, the ingress and the commands all start from an App.
//
// # What it owns
//
//   - SetUp creates the internal topics and the manifest at the first start. At a later start it compares them
//     with the routes. Find only reads, for the ingress and the commands.
//   - The manifest pins what must never change: partition counts, key rules, the partitioning hash and the
//     encodings. SetUp refuses a start that disagrees with it.
//   - The numbers of topics and namespaces, the partition of each key, the limits of topics, and the key counts
//     of a task.
//   - The decisions of operators and their requests to erase rows, which are records of the manifest topic.
//   - The rights that a start needs on topics.
//   - The checks of 'oncebus doctor', in one table: what to read, and a pure verdict on the facts. A process
//     makes the same checks at its start.
//
// It may import processor/kafka, processor/wire, processor/security, dedup, dedup/rules and franz-go.
//
// # Invariants
//
//   - A refused start has created no topic: SetUp first finds all contradictions, and returns them together.
//   - The lists of topics and namespaces in the manifest only grow, because stored rows refer to them by number
//     (invariant 9). If topic 3 were removed, the rows with number 4 would belong to another topic.
//   - An App is immutable, except for its limits: RereadLimits replaces all of them at once.
//
// # What looks wrong
//
//   - Two processes may write the manifest at the same time. They use the same transactional id, so the later
//     process fences the earlier one, which then reads the manifest again.
//   - A key may count as live for a 64th of its retention too long (package dedup).
//   - The repartition topic has LogAppendTime, and the original timestamp is in the envelope. The record's
//     timestamp is then the broker time, and a replay reads the same broker time again.
package app
