package processor_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/processor"
)

// TestInputWithoutALeaderKeepsNoOtherBack starts a process while the offsets of one of its inputs cannot be listed:
// the partition has no leader, or its leader has lost the partition and the client goes on asking. The process routes
// the other inputs, says why the partition waits, and takes the partition once its offsets can be listed.
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

// TestMarkerOfALaterLeaderIsNoLoss moves the leader of an input inside a transaction of its sender, so that the
// transaction marker has a later leader epoch than the records, and moves it again behind the marker. A client that
// compares the marker with the epoch of the records would report lost records.
func TestMarkerOfALaterLeaderIsNoLoss(t *testing.T) {
	t.Parallel()
	bothWays(t, benchRoutes, func(t *testing.T, routes string) {
		t.Run("moved", func(t *testing.T) {
			t.Parallel()
			b := newBench(t, routes, kfake.NumBrokers(2))
			b.createTopic("signals.raw", 1)
			i := b.ready(b.start(b.config("one")))
			sender := b.newClient(kgo.TransactionalID("sender"))
			for n := range 4 {
				must(t, sender.BeginTransaction())
				must(t, sender.ProduceSync(t.Context(), signal(fmt.Sprint("in-", n), 0, testTime)).FirstErr())
				must(t, b.cluster.MoveTopicPartition("signals.raw", 0, int32(n%2)))
				must(t, sender.EndTransaction(t.Context(), kgo.TryCommit))
				b.drain(i, "signals.raw") // the client stands behind the marker
				must(t, b.cluster.MoveTopicPartition("signals.raw", 0, int32((n+1)%2)))
				b.produce(signal(fmt.Sprint("behind-", n), 0, testTime))
				b.drain(i, "signals.raw")
			}
			if out := b.outputs("signals.unique"); len(out) != 8 {
				t.Errorf("%d events came out, want 8: %v", len(out), out)
			}
			if refused := b.refusals(); len(refused) > 0 {
				t.Errorf("partitions wait: %+v", refused)
			}
			for _, stage := range []string{processor.StageRoute, processor.StageDedup} {
				if n := testutil.ToFloat64(i.Rebuilt().WithLabelValues(stage)); n > 0 {
					t.Errorf("%v new clients of stage %s", n, stage)
				}
			}
		})
	})
}
