// Package switchover decides the steps of a switch: the tasks of one generation of partitions
// end, and those of the next one go on with their rows. It is pure: rows and facts in, a
// decision out.
//
// # What it owns
//
//   - Phase is how far a switch is, as its row in the manifest topic says. Decide returns the
//     next one, from facts that anybody can check again. So a command that was killed is
//     started again.
//   - OldTask and Route say what the old tasks and the routers do in a phase, as far as they
//     have read of it.
//
// It imports nothing of oncebus.
//
// # Phases
//
//	Preparing --> Holding --> Closing --> Acted --> Done
//	     \           |           |
//	      \__________|___________|_____> Aborted
//
// In Holding every router commits, pauses and writes a held row, and the old tasks judge what
// was routed. In Closing an old task writes a checkpoint that says so, and judges no more. The
// rows of closed tasks are copied to their end, then the switch acts. Done releases the routers
// to the new topic. They forward what reached the old topic after its tasks had closed.
//
// The tasks of a prepartitioned topic that becomes routed are old tasks too. They are their own
// routers until then, and the routers go on behind their closed checkpoints.
//
// # Invariants
//
//   - A phase is written under the manifest's transactional id, if May still allows it. So
//     the act and an abort exclude each other.
//   - A fact that a phase needs stays true until the hold ends: a router with a held row
//     routes nothing, and a closed task judges nothing. So a leader may write late.
//   - A checkpoint is closed for one switch, by number. So a process that has read of an older
//     switch only neither opens it again, nor lets a leader take it for closed.
//   - The row of a switch names the generation in force when it began. So a process that reads of
//     a later switch first judges and routes nothing for a generation that is over.
//   - A record is judged by an old task before its closed checkpoint, or forwarded to a new
//     task, with its partition derived again. A front that slept may have written it.
//   - The records of one input partition with one key are judged in their order.
//   - From each state every record is judged in the end, after any crash.
package switchover
