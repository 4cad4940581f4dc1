package processor_test

import (
	"math"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// TestInputWithoutALeaderKeepsNoOtherBack: a process starts while the offsets of one of its inputs
// cannot be listed: it has no leader, or its leader has lost it and the client goes on asking. The
// process routes the others, says why the partition waits, and takes it once they can.
func TestInputWithoutALeaderKeepsNoOtherBack(t *testing.T) {
	t.Parallel()
	for _, failure := range []*kerr.Error{kerr.LeaderNotAvailable, kerr.NotLeaderForPartition} {
		t.Run(failure.Message, func(t *testing.T) {
			t.Parallel()
			testInputWithoutALeader(t, failure)
		})
	}
}

func testInputWithoutALeader(t *testing.T, failure *kerr.Error) {
	t.Helper()
	b := newBench(t, strings.ReplaceAll(benchRoutes, "[signals.raw]", "[signals.raw, alerts.raw]"))
	b.createTopic("signals.raw", 2)
	b.createTopic("alerts.raw", 1)
	must(t, b.ready(b.start(b.config("one"))).stop())
	alert := signal("alert", 0, testTime)
	alert.Topic = "alerts.raw"
	b.produce(alert, signal("a", 0, testTime), signal("b", 1, testTime))
	fault := b.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.ListOffsets}, Topic: "alerts.raw", Err: failure, Count: math.MaxInt32})
	i := b.start(b.config("one"))
	b.wait("the other input to be routed", func() bool { return len(b.outputs("signals.unique")) == 2 })
	b.wait("the reason, once no task restores", func() bool {
		err := i.Ready()
		return err != nil && strings.Contains(err.Error(), "alerts.raw/0 has no leader")
	})
	fault.Remove()
	b.drain(b.ready(i), "signals.raw", "alerts.raw")
	if out := b.outputs("signals.unique"); len(out) != 3 {
		t.Errorf("came out: %v", out)
	}
}
