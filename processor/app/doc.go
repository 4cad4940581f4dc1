// Package app has the data that all processes of an app share: topics, manifest,
// numbers and limits. The service, the ingress and the commands start from the same App.
//
// # What it owns
//
//   - SetUp creates the internal topics and the manifest at the first start. At a later
//     start it compares them with the routes. Find only reads, for the ingress and the
//     commands.
//   - The manifest pins what must never change: partition counts, key rules, the hash
//     and the encodings. SetUp refuses a start that disagrees.
//   - The numbers of topics and namespaces, the partition of each key, the limits of
//     topics, and the key counts of a task.
//   - The decisions of operators and their requests to erase rows, in the manifest topic.
//   - The rights that a start needs on topics.
//   - The checks of 'oncebus doctor', in one table: what to read, and a pure verdict on
//     the facts. A running process makes the same checks at its start.
//
// It may import processor/kafka, processor/wire, processor/security, dedup,
// dedup/rules and franz-go.
//
// # Invariants
//
//   - A refused start has created no topic: SetUp finds all contradictions first, and
//     returns them at once.
//   - Topics and namespaces of the manifest only grow, because rows have their
//     numbers (invariant 9).
//   - An App is immutable, except for its limits, which are replaced as a whole.
//
// # What looks wrong
//
//   - Two processes may write the manifest at the same time. They share a
//     transactional id, so the later one fences the earlier, which reads again.
//   - A key may count as live for a 64th of its retention too long (package dedup).
//   - The repartition topic has LogAppendTime; the original timestamp is in the
//     envelope. A replay then reads the same broker time.
package app
