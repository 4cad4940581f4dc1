package dedup

// LeaseEvidence is what a task knows about the progress of the outcomes and of the executors of a route. The
// routing stage writes it to the repartition topic, so a replay of that topic has the same knowledge at the
// same record. All times are broker time, in Unix milliseconds.
//
// Time alone must not end a lease: the task may not have read an outcome yet that is already stored, or the
// executor may not have read the event yet.
type LeaseEvidence struct {
	// Written reports that the routing stage writes evidence. The routing stage of an earlier build writes no
	// evidence; then a lease ends by time alone.
	Written bool
	// OutcomesReadTo is the time before which every stored outcome has been read;
	// NoStreamTime if unknown.
	OutcomesReadTo int64
	// ExecutorPassedTo is a dispatch time: the executor's consumer group committed every event that was
	// dispatched before it, at least one lease ago. NoStreamTime if unknown. Only routes that name the group
	// use it.
	ExecutorPassedTo int64
	// SteppedAt is when broker time last changed by a step; 0 for never. The difference between a time before
	// the step and a time after it does not tell how long an executor had for its work.
	SteppedAt int64
}

// over reports whether the lease of a claim has ended at the time at which a task decides on an event.
func (e *LeaseEvidence) over(ev *ClaimEvent, claim *Claim, rule *ClaimRule) bool {
	began := leaseBegan(ev, claim)
	switch {
	case claim.StartID != nil:
		return false // no lease ends a started claim
	case !e.Written:
		return ev.ReceivedAt-began > rule.Lease
	case e.OutcomesReadTo > ev.ReceivedAt:
		return false // broker time was set back since
	case e.OutcomesReadTo == NoStreamTime || e.OutcomesReadTo-began <= rule.Lease:
		return false
	}
	return !rule.HasGroup || began < e.ExecutorPassedTo
}
