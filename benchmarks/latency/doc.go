//go:build unix

// Command latency measures how long an event takes, from when it is due to be
// produced until a read_committed consumer has it. It compares oncebus with the
// least that a transactional stream processor can do, at fixed rates and commit
// intervals, in rounds, each contender in turn.
//
// The schedule of a rate is fixed before the first event is sent, and latency
// counts from it. So an event that waited behind a slow one is counted with its
// wait (no coordinated omission). Generator and consumer are this process, with
// one clock; contender and broker are others.
//
//	go run ./benchmarks/latency -rates 1000 -commit-intervals 20ms -measure 5s -rounds 1
//
// By default there are 135 measurements of half a minute each.
package main
