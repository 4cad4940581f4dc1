// Package openloop has the parts that latency benchmarks share: a schedule that is fixed before the first event, a
// generator that keeps to this schedule whatever the responses are, and a histogram of latencies, which count from
// the due times.
//
// It may import the standard library only.
//
// Invariants:
//   - The latency of an event counts from when it is due, not from when it is sent. If an event has to wait because
//     an earlier event was slow, its wait counts (no coordinated omission).
//
// What looks wrong:
//   - On Linux the generator sleeps in the kernel. With the timers of the Go runtime, half of the ticks were more
//     than 0.5 ms late; with the kernel's sleep, 0.07 ms.
//   - The generator does not use kafkatest.Pause, which waits for other processes and ends with its context.
package openloop
