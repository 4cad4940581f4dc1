package processor

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// timeoutShrink divides the records of a transaction that timed out. From 50,000 records
// to one it takes eight timeouts.
const timeoutShrink = 4

// boundProbe is after how many commits in a row without growth a bound grows by a quarter.
// A transaction that takes long whatever its size would else stay at one record.
const boundProbe = 10

// A transactionBound is the most input records of a worker's next transaction. The broker
// aborts a transaction that takes longer than its timeout, because of a slow broker, a
// slow disk or a large poll. Repeated at the same size it would time out for ever. So a
// timeout makes the next one smaller, down to one record. Commits let it grow back. The
// bound limits polls: a poll is always processed whole (A5).
type transactionBound struct {
	records int
	timeout time.Duration
	steady  int // commits since the bound changed
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

// failed changes the bound after a transaction of n records that did not commit, and
// reports whether it timed out. The machine's clock may run slower than the broker's, so
// three quarters of the timeout count as a timeout.
func (b *transactionBound) failed(n int, took time.Duration) (timedOut bool) {
	if n == 0 || took < b.timeout*3/4 {
		return false
	}
	b.set(max(1, min(n, b.records)/timeoutShrink))
	return true
}

// committed changes the bound after a commit. It grows to at most twice, and to a size
// that takes three quarters of the timeout if time is proportional to records.
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
