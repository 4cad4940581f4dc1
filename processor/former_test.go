package processor_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/wire"
)

// TestSubmittedClaimThatRunsAgainGetsItsOwnOutcome covers an order that is still at an exchange when its window ends,
// while another order claims the key. Each sender gets the id of its own order, also after a restart without local
// state.
func TestSubmittedClaimThatRunsAgainGetsItsOwnOutcome(t *testing.T) {
	t.Parallel()
	b := newBench(t, fmt.Sprintf(claimRoutes, "wait"))
	i := b.ready(b.start(b.config("one")))
	at := func(request string, partition int32, later time.Duration) *kgo.Record {
		r := operation("1", request, partition)
		r.Timestamp = r.Timestamp.Add(later)
		return r
	}
	b.produce(at("first", 0, 0), at("twin", 0, time.Minute))
	b.drainClaims(i)
	b.produce(outcomeOf(b.runsOf("1")[0], "submitted", nil))
	b.drainClaims(i)
	b.produce(at("second", 0, time.Hour+time.Millisecond), at("third", 0, 90*time.Minute))
	b.drainClaims(i)
	must(t, i.stop())
	i = b.ready(b.start(b.config("rebuilt")))

	runs := b.runsOf("1")
	if len(runs) != 2 {
		t.Fatalf("%d runs, want one of each operation", len(runs))
	}
	assertHeaders(t, runs[1], map[string]string{wire.HeaderVerdict: "after_window", wire.HeaderAttempt: "2"})
	b.produce(outcomeOf(runs[1], "completed", []byte("order-2")))
	b.drainClaims(i)
	b.produce(outcomeOf(runs[0], "completed", []byte("order-1")), outcomeOf(runs[0], "completed", []byte("order-1")))
	b.drainClaims(i)
	replies := b.replies("ops.replies")
	for offset, want := range []struct{ verdict, attempt, value string }{
		{"unique", "1", "order-1"}, {"replayed", "1", "order-1"}, {"unique", "2", "order-2"}, {"replayed", "2", "order-2"},
	} {
		r := replies[fmt.Sprint("ops.raw/0/", offset)]
		assertHeaders(t, r, map[string]string{wire.HeaderVerdict: want.verdict, wire.HeaderAttempt: want.attempt, wire.HeaderClaimStatus: "completed"})
		if string(r.Value) != want.value {
			t.Errorf("event %d got %q, want %q", offset, r.Value, want.value)
		}
	}
	if dead := b.read("dead"); len(dead) > 0 {
		t.Errorf("%d dead letters: %v", len(dead), dead[0].Headers)
	}
	b.promiseHeld(b.config("auditor"))
}
