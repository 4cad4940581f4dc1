package dedup

// LeaseEvidence is what a task knows of the outcomes and the executors of a route. The
// routing stage writes it to the repartition topic, so a replay knows the same at the
// same record. All times are broker time, in Unix milliseconds.
//
// A clock alone cannot end a lease: an outcome may be stored and not read yet, or an
// executor may not have seen the event yet.
type LeaseEvidence struct {
	// Written reports that the routing stage writes evidence. An app of an earlier
	// build has none: its leases end by the clock.
	Written bool
	// OutcomesReadTo is the time before which every stored outcome has been read;
	// NoStreamTime if unknown.
	OutcomesReadTo int64
	// ExecutorPassedTo is the time before which every event was dispatched that the
	// executor's group committed at least a lease ago; NoStreamTime if unknown. It
	// counts for routes that name the group.
	ExecutorPassedTo int64
	// SteppedAt is when broker time last changed by a step; 0 for none. Times before a step
	// say nothing of how long an executor had.
	SteppedAt int64
}

// over reports whether the lease of a claim has ended when an event is judged.
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
