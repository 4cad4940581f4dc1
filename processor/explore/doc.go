// Package explore visits every state that a protocol can reach, breadth first, and checks each state. A random test
// finds an error that is likely. An exploration finds every error within the bounds of its model, and reports a
// shortest way to it.
//
// The model of a protocol consists of the protocol's pure decisions, and of everything that may happen around them:
// processes are slow, crash at any step or start again, and records are repeated or arrive late. Where the product
// has a pure function for a decision, the model calls that function, so the exploration tests the product itself.
// Only tests use this package.
//
// # What it owns
//
//   - Model describes a protocol: its first states, its steps, and what must hold.
//   - Explore visits the states, and returns their number, or the shortest ViolationError.
//   - Holds and Finds do this in a test. Holds expects a correct model; Finds expects that the exploration finds a
//     planted mistake.
//   - Walk takes random steps, for bounds that are too wide to explore.
//   - Bound chooses narrow bounds under the race detector. To explore the wide bounds:
//     go test -run Explored -v ./processor/explore ./processor/restore ./processor/transfer
//
// It imports nothing of oncebus.
//
// # Invariants
//
//   - Two states count as the same state only if they are equal. A hash collision loses no state.
//   - The search is breadth first: no other way to the reported violation has fewer steps.
//   - A model with more states than its limit is an error; the exploration is never cut off silently.
//
// # How to write a model
//
//   - A state is a comparable value: a struct of small integers and arrays, or of strings that encode what the
//     product encodes. It has everything that decides what may happen next, and nothing else. For example, a counter
//     of steps would make every state a new one.
//   - Next appends one step for each thing that may happen, and never chooses between them.
//   - A bound belongs into the state, for example: two crashes left, three events left.
//   - What an observer would call wrong is either recorded by the step that does it (Step.Err) or visible in the
//     state (Check). What must remain possible is a Goal: from each state, a state that satisfies Goal must be
//     reachable.
package explore
