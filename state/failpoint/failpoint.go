package failpoint

// The points, in the order of a transaction and then of a restore.
const (
	AfterPoll            = "after-poll"             // records are polled, no transaction is open
	AfterOutput          = "after-output"           // the client has one record of the transaction
	BeforeFlush          = "before-flush"           // the client has all records, checkpoints included
	AfterFlush           = "after-flush"            // the broker has all records
	BeforeOffsets        = "before-offsets"         // the offset commit is not yet sent
	AfterOffsets         = "after-offsets"          // the offset commit succeeded, EndTxn is not yet sent
	AfterEnd             = "after-end"              // the transaction is committed, no row is applied
	BetweenApplies       = "between-applies"        // the rows of one task are applied, others are not
	BeforeAllowRebalance = "before-allow-rebalance" // all rows are applied, the worker still holds the rebalance lock
	RestoreStart         = "restore-start"          // a restore has its offset range and has read nothing
	RestoreChunk         = "restore-chunk"          // a restore has applied one fetch
	FlushWritten         = "flush-written"          // a run is on disk, the manifest does not name it
	FlushCommitted       = "flush-committed"        // the manifest names a new run
	BeforeQuarantine     = "before-quarantine"      // a damaged directory is not yet renamed
	AfterQuarantine      = "after-quarantine"       // the damaged directory is renamed, the rebuild has not started
)

// Names lists all points.
var Names = []string{
	AfterPoll, AfterOutput, BeforeFlush, AfterFlush, BeforeOffsets, AfterOffsets, AfterEnd, BetweenApplies,
	BeforeAllowRebalance, RestoreStart, RestoreChunk, FlushWritten, FlushCommitted, BeforeQuarantine, AfterQuarantine,
}

// WallStepVariable names the file with the step of the process's wall clock, in ms.
const WallStepVariable = "FAULTS_WALL_STEP"
