// Package openloop is what benchmarks of latency share: a schedule that is
// fixed before the first event is sent, a generator that keeps to it whatever
// comes back, and a histogram of what everything took from when it was due. So
// an event that had to wait because something before it was slow is counted
// with its wait (no coordinated omission).
package openloop
