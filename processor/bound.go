package processor

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// timeoutShrink divides the bound after a transaction that timed out. From 50,000 records to one it takes
// eight timeouts.
const timeoutShrink = 4

// boundProbe is the number of commits in a row without growth after which a bound grows by a quarter.
// Without such a probe a worker whose transactions take long whatever their size would stay at one record.
const boundProbe = 10

// A transactionBound is the most input records of a worker's next transaction. The broker aborts a
// transaction that takes longer than its timeout, because of a slow broker, a slow disk or a large poll.
// Repeated at the same size, the transaction would time out for ever. So a timeout makes the next
// transaction smaller, down to one record, and commits let the bound grow back. The bound limits polls,
// because a poll is always processed whole (A5).
type transactionBound struct {
	records int
	timeout time.Duration
	steady  int // commits since the bound last changed
	gauge   prometheus.Gauge
}

func newTransactionBound(timeout time.Duration, gauge prometheus.Gauge) transactionBound {
	b := transactionBound{timeout: timeout, gauge: gauge}
	b.set(transactionRecordsMax)
	return b
}

func (b *transactionBound) set(records int) {
	b.records, b.steady = records, 0
	b.gauge.Set(float64(records))
}

// failed changes the bound after a transaction of n records that did not commit, and reports whether that
// transaction timed out. A transaction that took three quarters of the timeout counts as timed out: this
// machine's clock may run slower than the broker's.
func (b *transactionBound) failed(n int, took time.Duration) (timedOut bool) {
	if n == 0 || took < b.timeout*3/4 {
		return false
	}
	b.set(max(1, min(n, b.records)/timeoutShrink))
	return true
}

// committed changes the bound after a commit that took this time. The bound at most doubles, and grows only
// to a size that would take three quarters of the timeout if time is proportional to records.
func (b *transactionBound) committed(took time.Duration) {
	if b.records == transactionRecordsMax {
		return
	}
	b.steady++
	grown := 2 * b.records
	if allowed := float64(b.timeout) * 3 / 4 / float64(max(took, 1)); allowed < 2 {
		grown = int(float64(b.records) * allowed)
	}
	if grown <= b.records && b.steady >= boundProbe {
		grown = b.records + max(1, b.records/timeoutShrink)
	}
	if grown > b.records {
		b.set(min(grown, transactionRecordsMax))
	}
}
