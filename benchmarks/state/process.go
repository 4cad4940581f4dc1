package main

import (
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// cpuTime returns user and system time of the process.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// resident returns the process's anonymous and whole resident memory, 0 where
// /proc does not say.
func resident() (anonymous, total uint64) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, 0
	}
	for line := range strings.Lines(string(status)) {
		name, value, _ := strings.Cut(line, ":")
		kib, _ := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		switch name {
		case "RssAnon":
			anonymous = kib << 10
		case "VmRSS":
			total = kib << 10
		}
	}
	return anonymous, total
}

// watchAnonymous samples the anonymous memory from now on and returns a
// function that tells the peak.
func watchAnonymous() func() uint64 {
	var peak atomic.Uint64
	sample := time.NewTicker(50 * time.Millisecond)
	go func() { // lives as long as the phase's process
		for ; ; <-sample.C {
			if now, _ := resident(); now > peak.Load() {
				peak.Store(now)
			}
		}
	}()
	return peak.Load
}
