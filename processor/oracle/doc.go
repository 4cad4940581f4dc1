// Package oracle computes what oncebus should have emitted, and compares that
// with the records that were read. It is a second, slow and small implementation of the
// rules, written from the product's contract: it folds the repartition topic to
// the exact outputs and rows. The simulation and the fault harness feed it.
//
// It owns the reference for plain routes ([Check]) and for routes in claim mode
// ([CheckClaims]), and the numbered invariants K1 to K13 of its findings. [Ledger] judges a
// running app from streams, in bounded memory; package selfaudit feeds it. It
// may import the standard library only, and does no I/O.
//
// Invariants:
//   - It shares no code with packages dedup, state and processor, so that no
//     mistake of theirs can hide here. It has readers of its own for envelopes,
//     checkpoints, rows and claim tokens.
//   - plant_test.go plants a defect for each invariant, which Check must find. It
//     must find nothing in a clean history, however strange (clean_test.go).
//   - It judges from committed records only: those that a read_committed reader saw,
//     and the offsets that a group committed.
//
// What looks wrong:
//   - The formats are spelled out again, field by field. Sharing a reader with
//     the product would make the oracle agree with a wrong one.
//   - A record in the repartition topic that no producer sent is a finding, but
//     the fold continues with it: later records depend on it.
package oracle
