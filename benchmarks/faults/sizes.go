//go:build unix

package main

import "time"

// The timeouts of the app. They are short, so that within seconds the group removes a dead process and the broker
// aborts its transaction.
const (
	sessionTimeout     = 3 * time.Second
	transactionTimeout = 5 * time.Second
)

// The sizes of each app in a run.
var (
	baseSlots      = 3                                 // processes that normally run
	spareSlots     = 2                                 // processes that faults add
	workers        = 2                                 // workers of each stage in a process
	partitions     = 6                                 // of the repartition topic and all outputs
	rawPartitions  = 4                                 // of each raw topic
	flows          = (len(routes) + 1) * rawPartitions // all raw partitions; the partitions of claim mode are the last
	claimShare     = 20                                // number of raw records for which one record of claim mode is produced
	commitInterval = 100 * time.Millisecond
	flushRows      = 2000
	flushAge       = 2 * time.Second
	passesMax      = 20                     // how often a fault point is passed at most before the kill
	readWait       = 100 * time.Millisecond // how long the harness waits for records
	readMinBytes   = int32(1)               // smallest response to the observer, in bytes, unless readWait has passed
	linger         = 2 * time.Millisecond   // linger of the traffic's producer
)

// shrink makes the apps of a run small, so that several of them fit on one machine. A worker still has two
// tasks, because one of the faults is a kill between two tasks.
func shrink() {
	baseSlots, spareSlots, workers, partitions, rawPartitions = 2, 1, 1, 4, 2
	flows = (len(routes) + 1) * rawPartitions
	commitInterval, flushRows, flushAge, passesMax = 250*time.Millisecond, 200, 500*time.Millisecond, 5
	claimShare, readWait, readMinBytes, linger = 5, 400*time.Millisecond, 1<<20, 100*time.Millisecond
}
