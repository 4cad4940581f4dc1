// Package deadletter reads the dead letters of an app and sends them back to their inputs.
//
// # What it owns
//
//   - Letter is one dead letter: what it was, why it was turned away, and how often it was
//     redriven. Filter selects dead letters.
//   - Client scans the dead-letter topics, says what a redrive would do (Prospect), and redrives
//     or drops.
//   - Progress is what was done about each dead letter. It is in the manifest topic.
//
// It may import processor/app, processor/kafka, processor/wire, processor/security, dedup and
// dedup/rules. It has no local state and judges nothing.
//
// # Invariants
//
//   - A dead letter is redriven by at most one committed transaction, unless its operator asks for
//     it again. The transaction that produces it also writes the progress that names it.
//   - A writer registers the app's one transactional id, and only then reads the progress and
//     selects. So no other writer can change the progress that it read.
//   - After an error no writer goes on. The next one reads whether the transaction committed.
//   - The records of one raw partition go back in the order that they had there.
//   - A redrive produces to inputs of the routes file only, whatever a dead letter names.
//   - Each redrive counts the attempt up, and none sends a record whose attempt is at the bound.
//
// # What looks wrong
//
//   - Progress is sets of offsets, not the position of a group. A redrive with one filter leaves
//     open what a later one with another filter selects, before and after it.
//   - The original is read from its input, although the dead letter has the event. Only the
//     original has all of its headers, and what did not fit into the dead letter.
//   - Headers that follow the first one with the prefix oncebus- are removed whatever their names
//     are: oncebus removes such headers of the original, and appends its own after the others.
//   - A transaction is ended without the caller's context. A cancelled produce may be written.
package deadletter
