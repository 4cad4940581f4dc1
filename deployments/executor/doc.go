// Command executor is an example of an executor for a route in claim mode. It consumes events from the route's
// output, does the work, and produces the outcome to the outcomes topic. Outcome and input offset are in one
// transaction, so within Kafka every event is processed once. A call of another system includes the event's
// oncebus-key as its idempotency key: ../executors/README.md says why, and what to do with a system that does not
// accept idempotency keys.
//
// If the outcomes topic refuses a result, the executor sends the outcome without the result; the header
// executor-reason says why. If the topic refuses that outcome too, the executor ends.
//
// For work that must never run twice, set -answers and -journal. The executor then asks for the start of each event,
// executes only events whose start is granted, renews each attempt while it runs, and writes all of this to the
// journal. After a crash it finishes the attempts that are in the journal. Work that a crash cut off may have had its
// effect, so the executor does not run it again unless -repeatable allows this. Instead it sends the outcome
// submitted, so that the claim stays. In this mode the outcome is sent before the offset is committed. A journal
// belongs to one process. If a journal is lost, the events that it had started stay in progress until an operator
// ends them.
//
// The executor also executes an event without a claim. If a request waits for the outcome of that event, the outcome
// goes to the request. With -claimed-only the executor skips such events.
//
// With -journal but without -answers, the executor asks nothing and only appends a line to the journal for each
// execution: benchmarks/executions counts these lines.
//
// Exit codes: 0 stopped by a signal; 1 failed; 2 the outcomes topic refuses an outcome, or the flags are wrong. After
// 2, change the topic or the flags before the next start.
//
//	go run ./deployments/executor -brokers localhost:9092 -input economy.run -outcomes economy.outcomes
//	go run ./deployments/executor -answers economy.answers -journal executor-1.journal
package main
