package kafka

import (
	"context"
	"errors"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// ErrOtherCluster is wrapped by errors which say that another cluster now has the address of the former one.
var ErrOtherCluster = errors.New("the cluster was replaced")

// CheckCluster asks a broker for the id of its cluster, and compares it with the id with which the
// process began. If no broker answers it returns nil: whether brokers answer is checked elsewhere.
func CheckCluster(ctx context.Context, client *kgo.Client, began string) error {
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = []kmsg.MetadataRequestTopic{} // an empty list asks for no topic; nil would ask for all
	resp, err := req.RequestWith(ctx, client)
	if err != nil || resp.ClusterID == nil {
		return nil //nolint:nilerr // as above
	}
	return SameCluster(*resp.ClusterID, began)
}

// SameCluster returns an operator error if the brokers belong to another cluster than the one with which the
// process began, because somebody has put that other cluster at the same address. What the process knows of
// topics, groups and offsets belongs to the former cluster, so its requests would fail for ever. Some brokers do
// not give an id; if one of the two ids is missing, SameCluster returns nil.
func SameCluster(cluster, began string) error {
	if cluster == began || cluster == "" || began == "" {
		return nil
	}
	return OperatorErrorf("%w: the brokers are of cluster %s, and this process began on cluster %s: bring that one back, or start the process again to run on the other one", ErrOtherCluster, cluster, began)
}
