package dedup

// LeaseIsOver reports whether the lease of a claim in progress has ended for an event that
// is judged at a broker time. Of ev it needs the times and the evidence.
func (ev *ClaimEvent) LeaseIsOver(claim *Claim, rule ClaimRule) bool {
	return ev.Evidence.over(ev, claim, &rule)
}

// LeasesBefore returns the broker time before which leases began that are over; false if
// none is.
func (e *LeaseEvidence) LeasesBefore(rule *ClaimRule) (at int64, known bool) {
	if e.OutcomesReadTo == NoStreamTime {
		return 0, false
	}
	at = e.OutcomesReadTo - rule.Lease
	if rule.HasGroup {
		at = min(at, e.ExecutorPassedTo)
	}
	return at, e.SteppedAt < at // leases begin again at a step
}

// DropRequests removes the requests of a claim from it and from its row, and returns them.
func (r *Row) DropRequests(c *Claim) []Request {
	requests := c.Requests
	c.Requests = nil
	r.setClaim(c)
	return requests
}
