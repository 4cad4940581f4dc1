package processor_test

import (
	"strings"
	"testing"

	"oncebus/processor"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

// TestTwoProcessesWithOneInstanceID starts a process twice, each with a state
// directory of its own, as a copied deployment would (fault p7, hazard A14).
// The group keeps one of them and fences the other, which has to log that and to
// back off; the events come out once.
func TestTwoProcessesWithOneInstanceID(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	first := b.ready(b.start(b.config("twin")))
	second := b.start(b.config("twin"))
	fenced := func() float64 {
		n := 0.0
		for _, i := range []*instance{first, second} {
			for _, stage := range []string{processor.StageRoute, processor.StageDedup} {
				n += testutil.ToFloat64(i.Fenced().WithLabelValues(stage))
			}
		}
		return n
	}
	b.wait("both workers of one twin to be fenced", func() bool { return fenced() >= 2 })
	records, sent := traffic(100)
	b.produce(records...)
	b.wait("a line that names the cause and the remedy", func() bool {
		return strings.Contains(b.logs.String(), "give each process its own ONCEBUS_INSTANCE_ID")
	})
	if err := second.stop(); err != nil {
		t.Error(err)
	}
	b.drain(first, "signals.raw")
	assertOnce(t, b.read("signals.unique"), sent)
	if err := first.stop(); err != nil {
		t.Error(err)
	}
}
