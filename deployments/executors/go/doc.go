// Command go is a small executor for a route in claim mode, in Go with franz-go. The same executor in three other languages is next to it; ../README.md has
// the protocol in ten steps, and how oncebus conformance tests an executor.
//
// It reads events with read_committed, charges a card, and commits outcome and offset in one transaction. While it works it renews each
// attempt, and it stops when the answers topic says that the attempt is superseded. With EXECUTOR_START=true it asks before each event.
// Its journal notes each event before the work. A crash may come after the charge and before its result is known: then the gateway knows,
// by the reference that each charge has.
//
// Its settings are in the environment: ../README.md lists them, and says what to do with a system that cannot be asked.
//
// A larger one, which also copes with an outcomes topic that refuses a result, is ../../executor.
package main
