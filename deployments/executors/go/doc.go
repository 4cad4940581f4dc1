// Command go is a small executor for a route in claim mode, in Go with franz-go. The same executor in three other languages is next to it; ../README.md has
// the protocol in ten steps, and how oncebus conformance tests an executor.
//
// It reads events with read_committed, works, and commits outcome and offset in one transaction. While it works it renews each attempt,
// and it stops when the answers topic says that the attempt is superseded. With EXECUTOR_START=true it asks before each event, and its
// journal has what it did, so that no event is executed twice.
//
// Its settings are in the environment: EXECUTOR_BROKERS, EXECUTOR_INPUT, EXECUTOR_OUTCOMES, EXECUTOR_ANSWERS, EXECUTOR_GROUP,
// EXECUTOR_INSTANCE (different for each process, and the same after a restart), EXECUTOR_RENEW_MS, EXECUTOR_START, EXECUTOR_JOURNAL.
//
// A larger one, which also copes with an outcomes topic that refuses a result, is ../../executor.
package main
