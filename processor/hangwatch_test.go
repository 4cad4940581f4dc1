package processor

import (
	"context"
	"errors"
	"testing"

	"oncebus/processor/app"
)

// TestClosingOfPendingOffsetsIsRepeated covers a broker that is away, so that the watch cannot close the transaction
// that may have left a pending offset. The watch tries again at each look until it has closed the transaction, and
// then stops until an offset stays pending the next time.
func TestClosingOfPendingOffsetsIsRepeated(t *testing.T) {
	t.Parallel()
	id := app.TaskID{Topic: "app-repartition", Partition: 1}
	h := &hangWatch{closed: map[string]bool{}, pending: map[app.TaskID]pendingOffset{}}
	for look, c := range []struct {
		looks  int // for which the offset has stayed pending; 0: it is not pending
		away   bool
		closes bool
	}{
		{looks: 1},
		{looks: pendingLooks - 1},
		{looks: pendingLooks, away: true, closes: true},
		{looks: pendingLooks + 1, away: true, closes: true},
		{looks: pendingLooks + 2, closes: true},
		{looks: pendingLooks + 3},
		{looks: pendingLooks + 4},
		{looks: 0},
		{looks: 1},
		{looks: pendingLooks, closes: true},
	} {
		delete(h.pending, id)
		if c.looks > 0 {
			h.pending[id] = pendingOffset{stage: app.StageDedup, looks: c.looks}
		}
		var failure error
		if c.away {
			failure = errors.New("a broker is away")
		}
		closed := false
		err := h.closePending(t.Context(), func(_ context.Context, stage string) error {
			closed = stage == app.StageDedup
			return failure
		})
		if closed != c.closes || !errors.Is(err, failure) {
			t.Errorf("look %d: closes %v, want %v; error %v, want %v", look, closed, c.closes, err, failure)
		}
	}
}
