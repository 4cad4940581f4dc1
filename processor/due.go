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

// awaitedShare is multiplied by the number of records of a transaction to get the time until the next
// transaction is due, if requests by HTTP wait for it. Example: after a transaction of 10 records the next one
// is due 3 ms later, after 500 records 150 ms later, or a commit interval later if that is shorter. So up to
// some 3,000 records a second of a worker transactions are as short as possible. Above that rate transactions
// are a commit interval apart, and cost the brokers as little per record as without requests.
const awaitedShare = 300 * time.Microsecond

// setDue sets the time at which the next transaction is due. The last transaction began to end at began, and its
// end has just finished. The next one is due no earlier than markerTime from now.
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
