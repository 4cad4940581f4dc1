// Package explore visits every state that a protocol can reach, breadth first, and checks
// each of them. A random test finds an error that is likely. This finds each one within the
// bounds of its model, and by the shortest way.
//
// A protocol's model is its pure decisions, driven by all that may happen around them:
// processes that are slow, crash at any step or start again, and records that are repeated or
// late. Where the product has a pure function for a decision, the model calls that function,
// so the exploration tests the product. Tests only use this package.
//
// # What it owns
//
//   - Model describes a protocol: its first states, its steps, and what must hold.
//   - Explore visits the states, and returns their number, or the shortest ViolationError.
//   - Holds and Finds do this in a test. Finds expects a planted mistake.
//   - Walk takes random steps, for bounds that are too wide to explore.
//   - Bound chooses narrow bounds under the race detector. To explore the wide ones:
//     go test -run Explored -v ./processor/explore ./processor/restore ./processor/transfer
//
// It imports nothing of oncebus.
//
// # Invariants
//
//   - Two states are one state only if they are equal. No state is lost by a hash.
//   - Breadth first: no other way to a violation has fewer steps.
//   - A model with more states than its limit is an error, not a smaller exploration.
//
// # How to write a model
//
//   - A state is a comparable value: a struct of small integers and arrays, or of strings that
//     encode what the product encodes. It has all that decides what may happen next, and
//     nothing else. A counter of steps, for instance, would make every state a new one.
//   - Next appends one step for each thing that may happen, and never chooses between them.
//   - A bound belongs into the state: two crashes left, three events left.
//   - What an observer would call wrong is recorded by the step that does it (Step.Err), or
//     seen in the state (Check). Hope is a Goal: from each state one can be reached.
package explore
