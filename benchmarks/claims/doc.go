//go:build unix

// Command claims measures a route in claim mode with this program and an earlier one, in
// turns on one broker: how many events a second are dispatched, how many outcomes a second
// are answered, the CPU time of each, and what a process does at rest while claims are open
// and when none is.
//
// It may import packages bench and program, and franz-go. It uses oncebus as a built program
// only.
package main
