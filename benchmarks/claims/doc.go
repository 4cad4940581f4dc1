//go:build unix

// Command claims measures a route in claim mode with the program of this checkout and with an earlier program,
// one after the other in turns, on one broker: how many events a second are dispatched, how many outcomes a
// second are answered, and the CPU time of each. It also measures what a process does at rest, while claims are
// open and while none is open.
//
// It may import packages bench and program, and franz-go. It uses oncebus only as a built program.
package main
