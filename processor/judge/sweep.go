package judge

import (
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/processor/app"
	"oncebus/processor/wire"
)

const (
	// SweepAfter and sweepFactor decide when a task sweeps: once the changelog has more rows than
	// SweepAfter plus sweepFactor for each row of the store. A sweep therefore writes at most a third
	// of what was written since the last sweep.
	SweepAfter = 1_000_000
	// sweepFactor allows for rows that a fence drops late, and for rows of claims that were written several
	// times.
	sweepFactor = 4
	// sweepRowsMax and sweepBytesMax bound what a sweep writes in one transaction, to some 20 ms. A
	// single row may have more bytes.
	sweepRowsMax, sweepBytesMax = 8192, 4 << 20
)

// sweep writes all live rows to the changelog again, in the order of their digests, one chunk in each
// transaction. After the sweep, no row below the offset at which the sweep began is needed.
//
// A sweep is needed if no fence will be due for a long time, because a namespace gets no events any more or its
// route was removed (hazard T12). It also completes a changelog that lacks rows. The state of a sweep exists in
// memory only: after a restart the task begins the sweep again.
type sweep struct {
	running bool
	began   int64        // changelog offset below which the sweep writes every row again
	rowsAt  int64        // rows in the changelog up to began
	next    dedup.Digest // the first digest that the committed transactions have not read

	// openNext, openDone and openRows are next, the end, and rows as of the open transaction.
	openNext dedup.Digest
	openDone bool
	openRows int // rows written, including the open transaction

	rows int // written by committed transactions
}

// StartSweep begins a sweep at the store's position in the changelog, or begins it again. Rows at higher offsets
// need not be written again.
func (t *State) StartSweep() {
	t.sweep = sweep{running: true, began: t.Store.Position(), rowsAt: t.Committed.Rows}
	t.Log.Info("sweep of the changelog began", t.sweepAttrs()...)
}

// Sweeping reports whether a sweep is running.
func (t *State) Sweeping() bool { return t.sweep.running }

// sweepIfLong starts a sweep if fences do not keep the changelog short. It counts rows of namespaces
// without a route as live.
func (t *State) sweepIfLong() {
	written := t.Committed.Rows - t.Open.FloorRows
	after := int64(SweepAfter)
	if t.SweepAfter > 0 {
		after = t.SweepAfter
	}
	if t.sweep.running || t.sweepRefused || written <= after || written <= after+sweepFactor*int64(t.Store.RowCount()) {
		return
	}
	t.StartSweep()
}

// sweepHeaders mark the changelog records of a sweep.
var sweepHeaders = []kgo.RecordHeader{{Key: wire.HeaderSweep}}

// Sweep writes the next chunk of a running sweep in the open transaction. It also sees the rows that
// the open transaction has stored, so it never writes an older row after a newer one.
func (t *State) Sweep(e *Emitter) error {
	if !t.sweep.running || t.Blind {
		return nil
	}
	t.writeAllJoined(e)
	t.sendPack(e) // the rows of the pack are new, so their record must not have the headers of a sweep
	defer t.sendPack(e, sweepHeaders...)
	horizons := t.App.Horizons(&t.Committed)
	read, bytes := 0, 0
	for row, err := range t.Store.RowsFrom(t.sweep.next) {
		if err != nil {
			return fmt.Errorf("sweep the changelog of %v: %w", t.ID, err)
		}
		if read == sweepRowsMax || bytes >= sweepBytesMax {
			t.sweep.openNext = row.Digest
			return nil
		}
		read++
		if row.First < horizons[row.NamespaceID] {
			continue
		}
		if !t.sweepRow(e, &row) {
			return nil
		}
		bytes += len(row.Result) + dedup.PackedBytesMax
		t.sweep.openRows++
		t.Open.Rows++
	}
	t.sweep.openDone = true
	t.Open.EndSweep(t.sweep.began, t.sweep.rowsAt)
	return nil
}

// sweepRow writes a row again. It returns false if the changelog no longer accepts the row.
func (t *State) sweepRow(e *Emitter, row *dedup.Row) bool {
	if row.Packs() {
		t.packRow(e, row, sweepHeaders...)
		return true
	}
	t.value = row.AppendValue(t.value[:0])
	if limits := t.App.Limit(t.Changelog); wire.RecordOverhead+len(row.Digest)+len(wire.HeaderSweep)+len(t.value) > int(limits.MaxBytes) {
		t.refuseSweep(row, limits)
		return false
	}
	t.singleRow(e, row, sweepHeaders...)
	return true
}

// refuseSweep ends a sweep at a row that the changelog no longer accepts: every transaction with that
// row would abort.
func (t *State) refuseSweep(row *dedup.Row, limits app.TopicLimits) {
	t.sweep, t.sweepRefused = sweep{}, true
	t.Log.Error("sweep of the changelog ended: a setting is lower than a stored row; raise it and restart, or the changelog grows",
		"topic", t.Changelog, "key", row.Digest.String(), "row_bytes", len(t.value), "setting", limits.BytesSetting, "bytes", limits.MaxBytes)
}

// commitSweep moves a running sweep behind the chunk of the committed transaction.
func (t *State) commitSweep() {
	t.sweep.next, t.sweep.rows = t.sweep.openNext, t.sweep.openRows
	if t.sweep.openDone {
		t.Log.Info("sweep of the changelog ended", t.sweepAttrs()...)
		t.sweep = sweep{}
	}
}

// discardSweep drops the chunk of the aborted transaction.
func (t *State) discardSweep() {
	t.sweep.openNext, t.sweep.openRows, t.sweep.openDone = t.sweep.next, t.sweep.rows, false
}

func (t *State) sweepAttrs() []any {
	return []any{"topic", t.Changelog, "partition", t.ID.Partition, "floor", t.sweep.began, "rows", t.sweep.rows}
}
