package processor

import "time"

// waitForMore returns how long the open transaction waits for further records: until it is due, and no
// longer than until latest.
func (x *transactions) waitForMore(now, latest time.Time) time.Duration {
	due := x.due
	if x.emitter.Awaited && x.dueAwaited.Before(due) {
		due = x.dueAwaited
	}
	return max(0, min(due.Sub(now), latest.Sub(now)))
}

// awaitedShare is the time between two transactions for each record of the first one, while requests by
// HTTP wait for them. Example: after a transaction of 10 records the next one is due 3 ms later, after 500
// records 150 ms later, or a commit interval later if that is shorter. Up to some 3,000 records a second of
// a worker this makes the shortest transactions. Beyond, transactions are a commit interval apart, and cost
// the brokers as little per record as without requests.
const awaitedShare = 300 * time.Microsecond

// setDue sets the time at which the next transaction is due, after a transaction that began to end at began
// and has ended now. It is due no earlier than markerTime from now.
func (x *transactions) setDue(began, now time.Time) {
	written := now.Add(markerTime)
	after := func(d time.Duration) time.Time {
		if due := began.Add(d); due.After(written) {
			return due
		}
		return written
	}
	x.due = after(x.cfg.CommitInterval)
	x.dueAwaited = after(min(x.cfg.CommitInterval, time.Duration(x.records)*awaitedShare))
}
