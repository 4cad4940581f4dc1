// Package switchover decides the steps of a switch, in which the tasks of one generation of partitions end and
// the tasks of the next generation continue with their rows. It is pure: it gets rows and facts, and returns a
// decision.
//
// # What it owns
//
//   - Phase is the progress of a switch, which is stored in the switch's row in the manifest topic. Decide
//     returns the next phase from facts that anybody can verify again. A command that was killed can therefore
//     be started again.
//   - OldTask and Route say what the old tasks and the routers do in a phase, depending on what their process
//     has read about the switch.
//
// It imports nothing of oncebus.
//
// # Phases
//
//	Preparing --> Holding --> Closing --> Acted --> Done
//	     \           |           |
//	      \__________|___________|_____> Aborted
//
// In Holding, every router commits, pauses and writes a held row, and the old tasks judge the records that were
// routed before. In Closing, an old task writes a checkpoint that marks it as closed, and judges nothing more.
// When the rows of the closed tasks are copied to their end, the switch acts, which means that it puts the new
// generation into force. In Done the routers are released, and write to the new topic. They also forward the
// records that reached the old topic after its tasks had closed.
//
// The tasks of a prepartitioned topic that becomes routed are old tasks too. Until they close, they read their
// topic themselves, without a router; after that, the routers of the app continue at the offsets of their
// closed checkpoints.
//
// # Invariants
//
//   - A phase is written under the manifest's transactional id, and only if May still allows it. Therefore the act and an
//     abort exclude each other.
//   - A fact that a phase needs stays true until the hold ends: a router with a held row routes nothing, and a closed task
//     judges nothing. Therefore a leader may write the phase late.
//   - A checkpoint is closed for one particular switch, by its number. Therefore a process that has read only
//     about an older switch does not open the task again, and does not make a leader believe that the task is
//     closed for the newer switch.
//   - The row of a switch names the generation that was in force when the switch began. Therefore, if a process
//     first reads about a later switch, it does not judge or route anything for a generation that is over.
//   - A record is either judged by an old task before that task's closed checkpoint, or forwarded to a new
//     task, with its partition derived again. A record is forwarded in this way if a front wrote it late,
//     because the front had been suspended.
//   - Records of one input partition that have the same key are judged in their order.
//   - From every state, and after any crash, every record is judged in the end.
package switchover
