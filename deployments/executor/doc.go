// Command executor is an example of an executor for a route in claim mode. It
// consumes events from the route's output, does the work, and produces the outcome
// to the outcomes topic. Outcome and input offset are in one transaction, so within
// Kafka every event is processed once. A call of another system includes the event's
// oncebus-key as its idempotency key: ../executors/README.md says why, and what to do
// with a system that knows none.
//
// If the outcomes topic refuses a result, the outcome is sent without it: the header
// executor-reason says why. If the topic refuses that too, the executor ends.
//
// For work that must never run twice, -answers and -journal make it ask for the start of each
// event and execute what is granted, renew it while it runs, and write all of that to the
// journal. After a crash it finishes what the journal has. Work that the crash cut off may
// have had its effect: it does not run again, unless -repeatable says that it may. Its
// outcome is submitted, so that the claim stays. The outcome is sent before the offset is committed. A journal
// belongs to one process; a lost one leaves the events that it had started in progress,
// until an operator ends them.
//
// An event without a claim is executed too. Its outcome goes to the request that waits for it, if one
// does. -claimed-only skips it.
//
// With -journal alone it asks nothing, and each execution appends a line to the journal:
// benchmarks/executions counts them.
//
// Exit codes: 0 stopped by a signal, 1 failed, 2 the outcomes topic refuses an outcome, or
// the flags are wrong: change the topic or the flags before the next start.
//
//	go run ./deployments/executor -brokers localhost:9092 -input economy.run -outcomes economy.outcomes
//	go run ./deployments/executor -answers economy.answers -journal executor-1.journal
package main
