package processor

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// timeoutShrink is the divisor of the bound after a transaction that timed out. From 50,000 records to one it
// takes eight timeouts.
// eight timeouts.
const timeoutShrink = 4

// boundProbe is the number of commits in a row without growth after which a bound grows by a quarter, to probe
// whether larger transactions are possible. The transactions of some workers take long whatever their size:
// without a probe the bound of such a worker would stay at one record.
const boundProbe = 10

// A transactionBound is the largest number of input records in a worker's next transaction. The broker aborts a
// transaction that takes longer than its timeout, because of a slow broker, a slow disk or a large poll. The
// worker then processes the same records again. In a transaction of the same size they would time out for ever.
// So a timeout makes the next transaction smaller, down to one record, and commits let the bound grow back. The
// bound limits the size of a poll, because a poll is always processed whole (A5).
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

// committed changes the bound after a commit that took this time. The bound at most doubles. It grows only to a
// size whose transaction would take three quarters of the timeout, if the time is proportional to the number of
// records.
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
