// Package openloop has the parts that latency benchmarks share: a schedule that is
// fixed before the first event, a generator that keeps to it whatever the
// responses, and a histogram of latencies from the due times.
//
// It may import the standard library only.
//
// Invariants:
//   - Latency counts from when an event is due, not from when it is sent. An
//     event that waits because an earlier one was slow counts with its wait (no
//     coordinated omission).
//
// What looks wrong:
//   - On Linux the generator sleeps in the kernel: half of the ticks of the Go
//     runtime's timers were more than 0.5 ms late, these 0.07 ms.
//   - This pause is not kafkatest.Pause, which waits for other processes and
//     ends with its context.
package openloop
