// Package conformance tests whether an executor keeps the protocol of claim mode. It plays the part of oncebus on real topics: it
// dispatches the events of a scenario, answers questions, supersedes an attempt, lets the executor be killed, and judges what it wrote. It
// also plays the system in which the work has its effect: a gateway that charges cards.
//
// # What it owns
//
//   - [Scenario] is the file: events with their expected outcomes, and steps. [ParseScenario] reads it strictly.
//   - [Timeline] is what happened in a run, in the order in which the kit saw it. [Check] judges it by [Rules]: it is pure, and knows
//     no Kafka.
//   - [Run] produces a timeline: it dispatches, answers and observes. [Control] starts and kills the executor.
//   - [Gateway] is the server that the executor charges. It books, and holds a charge while the executor is killed in its work.
//
// It may import dedup, and packages kafka, security and wire. Its outside systems are franz-go, HTTP, JSON, YAML, the log and
// random numbers.
//
// # Invariants
//
//   - A rule that the scenario gives no occasion for is not judged, and does not count as held.
//   - The times of a timeline are of one clock, that of the kit: those of brokers and executors differ.
//   - The kit answers as oncebus does: an attempt is granted to one start id, and again to the same.
//   - A charge that the gateway held gets no answer. One that it held before the booking is never booked.
//   - It reads the outcomes with read_committed, so what an aborted transaction wrote is no outcome.
//
// # What looks wrong
//
//   - It reads __consumer_offsets. Only there a plain commit of an offset and one in a transaction differ. Without the right to read
//     it, or on an embedded broker, that half of the rule one-transaction shows after a crash only.
//   - The rules about effects are not judged for an executor that charges nothing at the gateway: its work may have other effects.
//   - A superseded attempt may write its outcome for one lease after the answer: nothing in Kafka orders the two.
package conformance
