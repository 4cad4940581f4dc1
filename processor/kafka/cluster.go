package kafka

import (
	"context"
	"errors"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// ErrOtherCluster is wrapped by the errors about a cluster at the address of another one.
var ErrOtherCluster = errors.New("the cluster was replaced")

// CheckCluster asks a broker for the id of its cluster, and compares it with the one on which a
// process began. Without an answer it returns nil: whether a broker answers is another question.
func CheckCluster(ctx context.Context, client *kgo.Client, began string) error {
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = []kmsg.MetadataRequestTopic{} // none, for nil is all
	resp, err := req.RequestWith(ctx, client)
	if err != nil || resp.ClusterID == nil {
		return nil //nolint:nilerr // as above
	}
	return SameCluster(*resp.ClusterID, began)
}

// SameCluster returns an operator error if the brokers are of another cluster than the one on which
// a process began: somebody has put it at the same address. What the process knows of topics, groups
// and offsets is of the former one, so no request would ever succeed again. Without an id, which some
// brokers do not give, it returns nil.
func SameCluster(cluster, began string) error {
	if cluster == began || cluster == "" || began == "" {
		return nil
	}
	return OperatorErrorf("%w: the brokers are of cluster %s, and this process began on cluster %s: bring that one back, or start the process again to run on the other one", ErrOtherCluster, cluster, began)
}
