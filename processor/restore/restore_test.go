package restore

import (
	"testing"
	"time"
)

// TestLongRestoreIsNoFailure: a state that is merely being read lets nothing
// pass, however long it takes.
func TestLongRestoreIsNoFailure(t *testing.T) {
	r := &Restore{}
	if r.FailedFor() != 0 {
		t.Error("a restore that did not fail has failed for a time")
	}
	_ = r.failed(errStale)
	if r.FailedFor() <= 0 || r.FailedFor() > time.Minute {
		t.Errorf("failed for %v", r.FailedFor())
	}
}
