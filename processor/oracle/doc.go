// Package oracle computes what oncebus should have done. It is a second, slow and
// small implementation of the rules, written from the pages: it folds the
// repartition log to the exact outputs and state, and compares them with what a
// run produced.
//
// It shares no code with packages dedup and state, does no I/O, and imports
// nothing but the standard library, so that a mistake there cannot hide here. The
// simulation and the fault runs feed it.
package oracle
