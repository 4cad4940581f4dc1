// Package deadletter reads the dead letters of an app and sends them back to their inputs.
//
// # What it owns
//
//   - Letter is a dead letter: what the record was, why it was turned away, and how often it was redriven. Filter
//     selects dead letters.
//   - Client scans the dead-letter topics, predicts what a redrive would do (Prospect), and redrives or drops
//     dead letters.
//   - Progress records which dead letters were redriven or dropped. It is stored in the manifest topic.
//
// It may import processor/app, processor/kafka, processor/wire, processor/security, dedup and dedup/rules. It
// has no local state and does not deduplicate.
//
// # Invariants
//
//   - At most one committed transaction redrives a dead letter, unless the operator asks to redrive it again.
//     The transaction that produces the record also writes the progress that names the dead letter.
//   - A writer first registers the app's transactional id for redrives, which fences every earlier writer. Only then does
//     it read the progress and select dead letters, so no other writer can change the progress that it has read.
//   - After an error a writer stops. The next writer reads whether the last transaction was committed.
//   - The records of one input partition are produced again in the order in which they were there.
//   - A redrive produces only to inputs of the routes file, whatever topic a dead letter names.
//   - Each redrive increments the attempt in the record's header, and no redrive sends a record whose attempt has reached
//     the bound.
//
// # What looks wrong
//
//   - Progress is a set of offsets and not the position of a consumer group, because a redrive with a filter
//     leaves other dead letters open, before and after the ones that it sends. A later redrive with another
//     filter may select those.
//   - A redrive reads the original record from its input, although the dead letter contains the event: only the
//     original record has all its headers, and the parts that did not fit into the dead letter.
//   - A redrive removes all headers from the first one with the prefix oncebus- on, whatever their names are: oncebus has
//     removed such headers of the original, and has appended its own headers after the others.
//   - A transaction does not use the caller's context, because a record whose produce request was cancelled may
//     have been written nevertheless.
package deadletter
