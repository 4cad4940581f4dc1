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
// A key may have events that lie windows apart, in any order. Each window has a row, and the rows
// of a key are linked (Row.Link). So of a key no two events come out within a window, and each
// other one has one that came out within a window of it.
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
//   - The rows that a row's links lead to were first seen ever earlier. Of any two of them that
//     one window made, the windows do not cover each other's first event.
//   - Rows, claims and tokens start with a version. Their decoders refuse another
//     version, an unknown flag and a value out of range.
//
// # Not a mistake
//
//   - Decide calls an event before the window of its row Late: the caller has the row of the
//     window before, if there is one, and asks DecideBelow. Only where rows have no links is the
//     event late: an older row may have been replaced.
//   - A failure of a Bypassed claim does not free the key: the executor may have run
//     the event that was forwarded unchecked.
//   - A lease restarts with its task: an outcome that was produced while no task ran
//     may be behind a duplicate.
//   - A row agrees with every fingerprint whose lowest byte differs: the list of
//     details of the route has changed.
//   - KeyCounter may count a row for one bucket too long, never too short.
package dedup
