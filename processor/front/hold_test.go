package front

import (
	"testing"

	"oncebus/processor/app"
)

// TestHoldIsComplete: a hold is complete once all partitions are held and all that was routed
// is judged.
func TestHoldIsComplete(t *testing.T) {
	some := []app.TaskID{{Topic: "t", Partition: 1}}
	for _, c := range []struct {
		state HoldState
		want  bool
	}{
		{HoldState{}, false},
		{HoldState{Hold: &app.Hold{}, NotHeld: some}, false},
		{HoldState{Hold: &app.Hold{}, Undrained: some}, false},
		{HoldState{Hold: &app.Hold{}}, true},
	} {
		if got := c.state.Complete(); got != c.want {
			t.Errorf("%+v: complete is %v", c.state, got)
		}
	}
}
