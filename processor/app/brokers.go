package app

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// readBrokers reads the metadata of the cluster and of every topic that the app relies
// on. One request has it all, so that one denied topic hides no other.
func (f *Facts) readBrokers(ctx context.Context, c Conn) error {
	req := kmsg.NewPtrMetadataRequest()
	req.IncludeTopicAuthorizedOperations = true
	for _, name := range append(f.topology.all(), offsetsTopic, transactionsTopic) {
		topic := kmsg.NewMetadataRequestTopic()
		topic.Topic = kmsg.StringPtr(name)
		req.Topics = append(req.Topics, topic)
	}
	resp, err := req.RequestWith(ctx, c.Client)
	if err != nil {
		return fmt.Errorf("read the metadata of the cluster: %w", err)
	}
	t := f.topology
	t.brokers = len(resp.Brokers)
	if resp.ClusterID != nil {
		t.Cluster = *resp.ClusterID
	}
	for i := range resp.Topics {
		topic := &resp.Topics[i]
		switch {
		case topic.Topic == nil:
		case topic.ErrorCode == kerr.TopicAuthorizationFailed.Code:
			f.denied[*topic.Topic] = true
		case topic.ErrorCode == 0:
			f.allowed[*topic.Topic] = kadm.DecodeACLOperations(topic.AuthorizedOperations)
			t.Topics[*topic.Topic] = newTopicOf(detailOf(topic))
		}
	}
	return nil
}

// detailOf returns a topic of a metadata response as the admin client would.
func detailOf(topic *kmsg.MetadataResponseTopic) kadm.TopicDetail {
	detail := kadm.TopicDetail{Topic: *topic.Topic, ID: topic.TopicID, Partitions: kadm.PartitionDetails{}}
	for _, p := range topic.Partitions {
		detail.Partitions[p.Partition] = kadm.PartitionDetail{Partition: p.Partition, Leader: p.Leader, Replicas: p.Replicas, ISR: p.ISR}
	}
	return detail
}

func (f *Facts) judgeBrokers() []Finding {
	return []Finding{{Text: fmt.Sprintf("cluster %s, %d brokers", f.topology.Cluster, f.topology.brokers)}}
}
