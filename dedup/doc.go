// Package dedup judges. It holds the rows that stand for keys, the windows in
// which they count, the rules of claims, and the key counters. It is pure: no
// I/O, no clock, no goroutine, no logging. Time comes in as arguments, and the
// same input gives the same output on every machine.
//
// It imports the standard library alone. Package rules derives the keys.
//
// # Windows
//
// Window describes the rule of the sliding window and its edges. Decide returns
// the verdict on one event. Stream time is kept by namespace and task.
//
// # Claims
//
// DecideClaim returns what an event asks of a claim. Tokens name an attempt, so
// that the outcome of an earlier attempt is refused.
package dedup
