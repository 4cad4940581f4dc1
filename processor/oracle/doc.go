// Package oracle computes what oncebus should have emitted, and compares that with the records that were read.
// It is a second, slow and small implementation of the rules, written from the product's contract: it folds the
// repartition topic into the exact outputs and rows. The simulation and the fault harness feed it.
//
// It owns the reference for plain routes ([Check]) and for routes in claim mode ([CheckClaims]), and the
// numbered invariants K1 to K13, to which each of its findings belongs. [Ledger] judges a running app from
// streams of records, in bounded memory; package selfaudit feeds it. The oracle may import only the standard
// library, and does no I/O.
//
// Invariants:
//   - The oracle shares no code with the packages dedup, state and processor, so that a mistake in one of these
//     packages cannot be repeated here. It has its own readers for envelopes, checkpoints, rows and claim
//     tokens.
//   - plant_test.go plants a defect for each invariant, and Check must find it. In a clean history Check must find
//     nothing, however strange the history is (clean_test.go).
//   - The oracle uses only committed data: the records that a read_committed reader saw, and the offsets that a
//     consumer group committed.
//
// What looks wrong:
//   - The formats are spelled out again, field by field. If the oracle shared a reader with the product, it would
//     agree with a wrong reader.
//   - A record in the repartition topic that no producer has sent is a finding, but the fold continues with it,
//     because the judgement of later records depends on it.
package oracle
