package restore

import (
	"testing"
	"time"
)

// TestLongRestoreIsNoFailure: a restore that only reads for long starts no bypass.
func TestLongRestoreIsNoFailure(t *testing.T) {
	r := &Restore{}
	if r.FailedFor() != 0 {
		t.Error("a restore without a failure reports when it failed")
	}
	_ = r.noteFailure(errStale)
	if r.FailedFor() <= 0 || r.FailedFor() > time.Minute {
		t.Errorf("failed for %v", r.FailedFor())
	}
}
