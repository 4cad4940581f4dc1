package processor

import "time"

// waitForMore returns how long the open transaction waits for further records, at most until
// the latest time.
func (x *transactions) waitForMore(now, latest time.Time) time.Duration {
	due := x.due
	if x.emitter.Awaited && x.dueAwaited.Before(due) {
		due = x.dueAwaited
	}
	return max(0, min(due.Sub(now), latest.Sub(now)))
}

// awaitedShare is how far apart transactions are for each record of the one before, if requests
// wait for them. Up to some 3,000 records a second of a worker this leads to the shortest
// transactions. Beyond, it leads to the commit interval: then a transaction costs the
// brokers as little of each record as without requests.
const awaitedShare = 300 * time.Microsecond

// setDue sets when the next transaction is due, after one that began its end at a time.
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
