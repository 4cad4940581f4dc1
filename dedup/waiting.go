package dedup

// LeaseIsOver reports whether the lease of a claim in progress has ended when a task judges ev. It reads only
// the times and the evidence of ev.
func (ev *ClaimEvent) LeaseIsOver(claim *Claim, rule ClaimRule) bool {
	return ev.Evidence.over(ev, claim, &rule)
}

// LeasesBefore returns a broker time: every lease that began before that time is over, except the leases of
// claims whose start was granted. It returns false if the evidence ends no lease.
func (e *LeaseEvidence) LeasesBefore(rule *ClaimRule) (at int64, known bool) {
	if e.OutcomesReadTo == NoStreamTime {
		return 0, false
	}
	at = e.OutcomesReadTo - rule.Lease
	if rule.HasGroup {
		at = min(at, e.ExecutorPassedTo)
	}
	return at, e.SteppedAt < at // a step of broker time restarts every lease
}

// DropRequests removes the waiting requests from a claim and from its row, and returns them.
func (r *Row) DropRequests(c *Claim) []Request {
	requests := c.Requests
	c.Requests = nil
	r.setClaim(c)
	return requests
}
