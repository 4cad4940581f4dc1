// Command ingress measures the HTTP ingress of oncebus, the program itself with
// its settings, on a real Apache Kafka:
//
//   - how long a verdict takes, from when a request is due until its response is
//     there, in an open loop at fixed rates and commit intervals;
//
//   - how many requests a second get a response once Kafka has the event, in a
//     closed loop, compared with the least HTTP server that does so;
//
//   - how long a verdict takes on one path while another path is flooded.
//
//     go run ./benchmarks/ingress -what verdict -rates 1000 -commit-intervals 20ms -measure 5s -rounds 1
//
// It owns the HTTP client, the requests, the plain server and the report. It may import packages bench, openloop,
// kafkatest and program, but no package of the product.
//
// Invariants:
//   - Every request has a signature; some requests are duplicates.
//   - A run fails unless responses and output agree: each accepted event is in the output once, and its
//     duplicates got the verdict duplicate.
//   - The schedule of a rate is fixed before the client sends the first request, and latency counts from the
//     schedule: if a request has to wait because an earlier request was slow, its wait counts (no coordinated
//     omission).
//
// What looks wrong:
//   - The client writes HTTP by hand, because net/http would use more CPU than the server that is measured.
//   - The log has a line for each request. It goes to a file that nothing reads during the measurement.
package main
