package front

import (
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/processor/kafka"
	"oncebus/processor/kafkatest/embedded"
)

// TestLargeEventsWaitForTheirOwnPartition: one whose partition has no leader waits, those of other partitions and
// the client do not, and each place gets one at a time.
func TestLargeEventsWaitForTheirOwnPartition(t *testing.T) {
	cluster := embedded.Start(t)
	cluster.CreateTopic("t", 2)
	leaderless := cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Partitions: []int32{0}, Err: kerr.NotLeaderForPartition, Count: -1})
	l, opened := newLargeSender(), 0
	send := func(partition int32) error {
		rec := &kgo.Record{Topic: "t", Partition: partition, Value: make([]byte, 2<<20)}
		if !kafka.Precompress(rec, 1<<20, 0) {
			t.Error("the event does not fit")
		}
		return l.send(rec, func() (*kgo.Client, error) {
			opened++ // under the sender's lock
			return cluster.Client(kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.MetadataMinAge(10*time.Millisecond), kafka.WithPrecompressed()), nil
		})
	}
	sent := make(chan error, 2)
	for range 2 {
		go func() { sent <- send(0) }()
	}
	embedded.Wait(t, "an event that waits", func() bool { return leaderless.Hits() > 0 })
	if err := send(1); err != nil {
		t.Fatal(err)
	}
	leaderless.Remove()
	for range 2 {
		if err := <-sent; err != nil {
			t.Error(err)
		}
	}
	l.close()
	if err := send(1); err == nil || opened != 1 {
		t.Errorf("a closed sender sends: %v, and has opened %d clients", err, opened)
	}
}
