// Package dedup decides on events. It has the rows of keys, their windows, the
// rules of claims, claim tokens and key counters. It is pure: no I/O, no clock, no
// goroutine, no logging. Time is an argument, so equal input has equal output on
// every machine. It imports only the standard library; package rules derives the
// keys.
//
// # Windows
//
// Window.Admit checks an event's time, and Decide returns the verdict. Stream time
// is kept per namespace and task.
//
// Window.ChangeTo changes a window while its rows stay. What the former window has removed is
// not known, so the longer window grows with event time until it is whole.
//
// # Claims
//
// DecideClaim decides on an event of claim mode, ApplyOutcome on an outcome. A
// token names one attempt, so ApplyOutcome refuses an outcome of an earlier one.
//
// # Invariants
//
//   - Eviction never changes a verdict: only a retained row decides, stored or not.
//   - A duplicate never moves the window of its row.
//   - Attempts of a key only increase while its row is retained.
//   - A status changes only as claimMoves allows.
//   - Rows, claims and tokens start with a version. Their decoders refuse another
//     version, an unknown flag and a value out of range.
//
// # Not a mistake
//
//   - An event before the window of its row is Late, not Unique: an older row may
//     have been replaced, and one row per key cannot show it.
//   - A failure of a Bypassed claim does not free the key: the executor may have run
//     the event that was forwarded unchecked.
//   - A lease restarts with its task: an outcome that was produced while no task ran
//     may be behind a duplicate.
//   - A row agrees with every fingerprint whose lowest byte differs: the list of
//     details of the route has changed.
//   - KeyCounter may count a row for one bucket too long, never too short.
package dedup
