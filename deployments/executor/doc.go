// Command executor is an example of an executor for a route in claim mode. It
// consumes events from the route's output, does the work, and produces the outcome
// to the outcomes topic. Outcome and input offset are in one transaction, so within
// Kafka every event is processed once. A call of another system should include the
// event's oncebus-key, by which the system finds a second attempt.
//
//	go run ./deployments/executor -brokers localhost:9092 -input economy.run -outcomes economy.outcomes
package main
