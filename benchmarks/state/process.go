//go:build unix

package main

import (
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"oncebus/processor/kafkatest/program"
)

// cpuTime returns user and system time of the process.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// watchAnonymous samples the anonymous memory from now on and returns a function that
// returns the peak.
func watchAnonymous() func() uint64 {
	var peak atomic.Uint64
	sample := time.NewTicker(50 * time.Millisecond)
	go func() { // ends with the phase's process
		for ; ; <-sample.C {
			if u, err := program.UsageOf(os.Getpid()); err == nil {
				peak.Store(max(peak.Load(), uint64(u.RSSAnon)))
			}
		}
	}()
	return peak.Load
}
