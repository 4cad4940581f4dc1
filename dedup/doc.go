// Package dedup decides on events: whether an event is emitted or is a duplicate. It owns the rows of keys,
// their windows, the rules of claims, claim tokens and key counters. The package is pure: no I/O, no clock,
// no goroutine, no logging. The caller passes the time, so equal input has equal output on every machine. It
// imports only the standard library; package rules derives the keys.
//
// # Windows
//
// Window.Admit checks the time of an event, and Decide returns the verdict. A task keeps one stream time for
// each namespace.
//
// Window.ChangeTo changes a window while the rows stay. If the new window is longer, the rows that the former,
// shorter window has removed are lost. Therefore the new window grows with event time until it has its full
// length.
//
// Events of one key may lie several windows apart and arrive in any order. Each window of a key has a separate
// row, and every row links to the row of the previous window (Row.Link). Therefore no two emitted events of a
// key are within one window of each other, and for every event that is not emitted an emitted event lies within
// one window of it.
//
// # Claims
//
// DecideClaim decides on an event of claim mode, ApplyOutcome on an executor's outcome. A claim token names one
// attempt, so ApplyOutcome refuses an outcome whose token names an earlier attempt.
//
// # Invariants
//
//   - Eviction never changes a verdict: only a row within its retention decides, whether or not an older row
//     is still stored.
//   - A duplicate never moves the window of its row.
//   - Attempts of a key only increase while its row is retained.
//   - A status changes only as claimMoves allows.
//   - Following the links of a row leads to rows that were first seen earlier and earlier. If two of these rows
//     were made while the window had the same length, neither row covers the first event of the other.
//   - Rows, claims and tokens start with a version. Their decoders refuse another version, an unknown flag
//     and a value out of range.
//
// # Not a mistake
//
//   - Decide calls an event Late if it is before the window of its row, although the key may have a row of an
//     earlier window: the caller then reads that row and asks DecideBelow. The event is finally late only
//     where rows have no links, because there an older row may have been replaced.
//   - An outcome of kind failed or rejected does not free the key of a Bypassed claim, because the executor may
//     have run the event that a worker forwarded unchecked.
//   - Without LeaseEvidence a lease begins again when its task starts: an outcome that an executor produced
//     while no task ran may be behind a duplicate in the repartition topic.
//   - A row agrees with every fingerprint whose lowest byte differs from the lowest byte of the row's
//     fingerprint: the difference shows that the route's list of details has changed, so the two cannot be
//     compared.
//   - KeyCounter may count a row for one bucket too long, never too short.
package dedup
