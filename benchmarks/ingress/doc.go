//go:build unix

// Command ingress measures the HTTP ingress of oncebus, the program itself with
// its settings, on a real Apache Kafka:
//
//   - how long a verdict takes, from when a request is due until the response is
//     read, in an open loop at fixed rates and commit intervals;
//   - how many requests a second get a response once Kafka has the event, in a
//     closed loop, compared with the simplest HTTP server that does so.
//
// Every request is signed, some are duplicates. A run fails unless responses and
// output agree: each accepted event is in the output once, and each duplicate got
// the verdict duplicate.
//
// The schedule of a rate is fixed before the first request is sent, and latency
// counts from it. So a request that waited behind a slow one is counted with its
// wait (no coordinated omission).
//
//	go run ./benchmarks/ingress -what verdict -rates 1000 -commit-intervals 20ms -measure 5s -rounds 1
package main
