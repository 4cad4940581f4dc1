// Package failpoint names the places at which a process can be killed to show
// that nothing is lost there. Builds with the tag failpoints read the setting
// ONCEBUS_FAILPOINT (name:hits) and kill themselves with SIGKILL at the hits-th
// pass; in all other builds a point is no code at all.
package failpoint

// The points, in the order in which a transaction and a restore pass them.
const (
	AfterPoll        = "after-poll"        // records are polled, no transaction is open
	AfterOutput      = "after-output"      // a record of a transaction is handed to the client
	BeforeFlush      = "before-flush"      // everything is produced, checkpoints included
	AfterFlush       = "after-flush"       // the broker has all records
	BeforeOffsets    = "before-offsets"    // the offset commit is about to be sent
	AfterOffsets     = "after-offsets"     // the offset commit was answered, EndTxn not yet sent
	AfterEnd         = "after-end"         // the transaction is committed, nothing is applied
	BetweenApplies   = "between-applies"   // one task's rows are applied, another's not
	BeforeGate       = "before-gate"       // everything is applied, the rebalance gate is closed
	RestoreStart     = "restore-start"     // a restore knows its bounds, has read nothing
	RestoreChunk     = "restore-chunk"     // a restore has applied one fetch
	FlushWritten     = "flush-written"     // a run is on disk, the manifest does not name it
	FlushCommitted   = "flush-committed"   // the manifest names a new run
	BeforeQuarantine = "before-quarantine" // a damaged directory is about to be renamed
	AfterQuarantine  = "after-quarantine"  // it is renamed, nothing is rebuilt
)

// Names lists all points.
var Names = []string{
	AfterPoll, AfterOutput, BeforeFlush, AfterFlush, BeforeOffsets, AfterOffsets, AfterEnd, BetweenApplies,
	BeforeGate, RestoreStart, RestoreChunk, FlushWritten, FlushCommitted, BeforeQuarantine, AfterQuarantine,
}
