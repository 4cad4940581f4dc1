//go:build unix

package main

import "time"

// The app's timeouts are short, so that the group removes a dead process and the
// broker aborts its transaction within seconds.
const (
	sessionTimeout     = 3 * time.Second
	transactionTimeout = 5 * time.Second
)

// The sizes of each app of a run.
var (
	baseSlots      = 3                                 // processes that normally run
	spareSlots     = 2                                 // processes that faults add
	workers        = 2                                 // of each stage of a process
	partitions     = 6                                 // of the repartition topic and all outputs
	rawPartitions  = 4                                 // of each raw topic
	flows          = (len(routes) + 1) * rawPartitions // raw partitions; those of claim mode are the last
	claimShare     = 20                                // one record of claim mode for this many raw records
	commitInterval = 100 * time.Millisecond
	flushRows      = 2000
	flushAge       = 2 * time.Second
	passesMax      = 20                     // of a fault point until the kill
	readWait       = 100 * time.Millisecond // of the harness for records
	readMinBytes   = int32(1)               // a response to the observer has at least these, or comes after readWait
	linger         = 2 * time.Millisecond   // of the traffic
)

// shrink makes the apps of a run small, so that several of them fit on one machine. A
// worker has two tasks, because a kill between the two is a fault.
func shrink() {
	baseSlots, spareSlots, workers, partitions, rawPartitions = 2, 1, 1, 4, 2
	flows = (len(routes) + 1) * rawPartitions
	commitInterval, flushRows, flushAge, passesMax = 250*time.Millisecond, 200, 500*time.Millisecond, 5
	claimShare, readWait, readMinBytes, linger = 5, 400*time.Millisecond, 1<<20, 100*time.Millisecond
}
