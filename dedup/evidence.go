package dedup

// LeaseEvidence is what a task knows about the progress of the outcomes and of the executors of a route. The
// routing stage writes it to the repartition topic, so a replay knows the same at the same record. All times
// are broker time, in Unix milliseconds.
//
// A clock alone cannot end a lease: an outcome may be stored but not read yet, or the executor may not have
// seen the event yet.
type LeaseEvidence struct {
	// Written reports that the routing stage writes evidence. The routing stage of an earlier build writes
	// none: there a lease ends by the clock.
	Written bool
	// OutcomesReadTo is the time before which every stored outcome has been read;
	// NoStreamTime if unknown.
	OutcomesReadTo int64
	// ExecutorPassedTo is a dispatch time: the executor's consumer group committed every event that was
	// dispatched before it, at least one lease ago. NoStreamTime if unknown. Only routes that name the group
	// use it.
	ExecutorPassedTo int64
	// SteppedAt is when broker time last changed by a step, that is when a broker's clock was set; 0 for
	// never. A time from before a step does not tell how long an executor had for its work.
	SteppedAt int64
}

// over reports whether the lease of a claim has ended when a task judges an event.
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
