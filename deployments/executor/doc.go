// Command executor is an example of an executor for a route in claim mode. It
// consumes events from the route's output, does the work, and produces the outcome
// to the outcomes topic. Outcome and input offset are in one transaction, so within
// Kafka every event is processed once. A call of another system should include the
// event's oncebus-key, by which the system finds a second attempt.
//
// If the outcomes topic refuses a result, the outcome is sent without it: the header
// executor-reason says why. If the topic refuses that too, the executor ends.
//
// Exit codes: 0 stopped by a signal, 1 failed, 2 the outcomes topic refuses an outcome:
// change the topic before the next start.
//
//	go run ./deployments/executor -brokers localhost:9092 -input economy.run -outcomes economy.outcomes
package main
