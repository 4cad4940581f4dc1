// Package conformance tests whether an executor keeps the protocol of claim mode. It plays the part of oncebus
// on real topics: it dispatches the events of a scenario, answers the executor's questions, supersedes an
// attempt, has the executor killed, and judges what the executor has written. It also plays the system in which
// the executor's work takes effect: a gateway that charges cards.
//
// # What it owns
//
//   - [Scenario] is the scenario file: events with their expected outcomes, and steps. [ParseScenario] parses it strictly.
//   - [Timeline] is what happened in a run, in the order in which the kit saw it. [Check] judges a timeline by [Rules]:
//     it is pure, and knows nothing of Kafka.
//   - [Run] produces a timeline: it dispatches, answers and observes. [Control] starts and kills the executor.
//   - [Gateway] is the server that the executor charges. It books charges, and can hold a charge open while the executor
//     is killed in the middle of its work.
//
// It may import dedup and the packages kafka, security and wire. Outside of oncebus it uses franz-go, HTTP,
// JSON, YAML, the log and random numbers.
//
// # Invariants
//
//   - If a scenario gives no occasion for a rule, the rule is not judged, and does not count as held.
//   - All times in a timeline come from one clock, the kit's: the clocks of brokers and executors differ from it.
//   - The kit answers as oncebus does: it grants an attempt to one start id, and grants it again to the same start id.
//   - A charge that the gateway holds gets no answer. If the gateway held the charge before booking it, it never books it.
//   - The kit reads the outcomes with read_committed, so a record of an aborted transaction is no outcome.
//
// # What looks wrong
//
//   - The kit reads __consumer_offsets, because only there it can see whether an offset was committed in a
//     transaction or by a plain commit. If the kit has no right to read this topic, or the broker is embedded,
//     the kit can judge this half of the rule one-transaction only by what happens after a crash.
//   - The rules about effects are not judged for an executor that charges nothing at the gateway: its work may have other
//     effects.
//   - A superseded attempt may still write its outcome for one lease after the answer, because nothing in Kafka orders the
//     answer and the outcome.
package conformance
