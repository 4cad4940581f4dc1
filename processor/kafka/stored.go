package kafka

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// AwaitStored waits until a client has stored which partitions its open transaction wrote to. The caller must
// call it before EndTransaction commits a transaction without offsets. The reason is that franz-go 1.22.3 sends
// the first records of a topic before it stores the partitions of the topic (storePartitionsUpdate). If
// EndTransaction is called before that, it finds no partition in the transaction, aborts the transaction, and
// returns nil. In one case a hold that an operator had released stayed in force because of that. AwaitStored
// returns an error only once ctx is done.
func AwaitStored(ctx context.Context, client *kgo.Client, written kadm.TopicsSet) error {
	for topic, partitions := range written {
		for p := range partitions {
			for {
				if leader, epoch, _ := client.PartitionLeader(topic, p); leader >= 0 || epoch >= 0 {
					break
				}
				if err := Pause(ctx, time.Millisecond); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
