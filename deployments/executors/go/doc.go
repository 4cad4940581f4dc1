// Command go is a small executor for a route in claim mode, in Go with franz-go. The directories next to it have the
// same executor in three other languages. ../README.md has the protocol in ten steps, and how oncebus conformance
// tests an executor.
//
// The executor reads events with read_committed, charges a card, and commits outcome and offset in one transaction.
// While it works it renews each attempt, and it stops the work when the answers topic says that the attempt is
// superseded. With EXECUTOR_START=true it asks for the start of each event. Its journal records each event before the
// work. A crash may come after the charge but before the executor knows the result. Then only the gateway knows
// whether it has charged; the executor can ask it by the reference that each charge has.
//
// Its settings are environment variables: ../README.md lists them, and says what to do with a system that cannot be
// asked.
//
// A larger executor, which also copes with an outcomes topic that refuses a result, is ../../executor.
package main
