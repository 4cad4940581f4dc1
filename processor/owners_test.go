package processor_test

import (
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"oncebus/processor"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// withoutOwner removes a partition of the repartition topic from what the leader of the dedup group assigns, for this
// number of rounds. The first half of a cooperative rebalance leaves this situation behind if the member that was to
// begin the second half was replaced under its static name. The counter says how often a round was changed.
func (b *bench) withoutOwner(partition int32, rounds int64) *atomic.Int64 {
	var taken atomic.Int64
	b.cluster.Intercept(func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		req := kreq.(*kmsg.SyncGroupRequest)
		if req.Group != "app-dedup" || len(req.GroupAssignment) == 0 || taken.Load() == rounds {
			return nil, nil, false
		}
		for i := range req.GroupAssignment {
			member := &req.GroupAssignment[i]
			var assignment kmsg.ConsumerMemberAssignment
			if err := assignment.ReadFrom(member.MemberAssignment); err != nil {
				b.t.Error(err)
			}
			for j := range assignment.Topics {
				topic := &assignment.Topics[j]
				if at := slices.Index(topic.Partitions, partition); at >= 0 {
					topic.Partitions = slices.Delete(topic.Partitions, at, at+1)
					taken.Add(1)
				}
			}
			member.MemberAssignment = assignment.AppendTo(nil)
		}
		return nil, nil, false
	}, kmsg.SyncGroup)
	return &taken
}

// TestPartitionWithoutAnOwnerIsAssignedAgain protects that a stable group in which no member owns a partition does
// not stay so (B12). A fault run met this: a broker and a process ended during a rebalance, and a partition stalled
// for as long as no member joined or left.
func TestPartitionWithoutAnOwnerIsAssignedAgain(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	taken := b.withoutOwner(2, 2)
	i := b.ready(b.startWith(b.config("one"), func(p *processor.Processor) { p.SetOwnersInterval(50 * time.Millisecond) }))
	records, sent := traffic(200)
	b.produce(records...)
	b.drain(i, "signals.raw")
	assertOnce(t, b.read("signals.unique"), sent)
	if n := taken.Load(); n != 2 {
		t.Errorf("the partition was taken from its owner %d times, want 2", n)
	}
	if n := testutil.ToFloat64(i.Rejoined().WithLabelValues(processor.StageDedup)); n == 0 {
		t.Error("no rejoin was counted")
	}
	if n := testutil.ToFloat64(i.Rejoined().WithLabelValues(processor.StageRoute)); n != 0 {
		t.Errorf("the routing stage, which misses nothing, joined again %v times", n)
	}
}
