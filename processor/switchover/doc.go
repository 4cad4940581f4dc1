// Package switchover decides the steps of a switch: the tasks of one generation of partitions
// stop, and those of the next one go on with their rows. It is pure: rows and facts in, a
// decision out.
//
// # What it owns
//
//   - Phase is how far a switch is, as its row in the manifest topic says. Decide returns the
//     next one, from facts that anybody can check again. So any process may lead, and a command
//     that was killed is started again.
//   - OldTask, NewTask and Route say what the tasks and routers do in a phase, as far as they
//     have read of it.
//
// It imports nothing of oncebus.
//
// # Phases
//
//	Preparing --> Holding --> Draining --> Acted --> Done
//	     \           |           |
//	      \__________|___________|_____> Aborted
//
// In Holding every router commits and stops, and writes a held row. In Draining the row has the
// ends of the old topic, listed after the last held row. An old task that has judged up to its
// end closes: its checkpoint says so. The rows of closed tasks are copied to their end, then
// the switch acts. Done releases the routers to the new topic.
//
// # Invariants
//
//   - A phase is written under the manifest's transactional id, if May still allows it. So
//     the act and an abort exclude each other.
//   - A fact that a phase needs stays true until the hold ends: a router with a held row
//     routes nothing, and a closed task judges nothing. So a leader may write late.
//   - A record is judged by an old task that is open, or by a new task after the act. A closed
//     task forwards it, with its key derived again; a front that slept may have written it.
//   - The records of one input partition with one key are judged in their order.
//   - From each state every record is judged in the end, after any crash.
package switchover
