package app

import (
	"reflect"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

func TestMissingRights(t *testing.T) {
	topics := &Topology{App: "app", Manifest: "app-manifest", Repartition: "app-repartition", Routed: []string{"raw", "both"}, emissions: []string{"out", "both"}, outcomes: []string{"outcomes"}}
	all := []kadm.ACLOperation{kmsg.ACLOperationRead, kmsg.ACLOperationWrite, kmsg.ACLOperationDescribe, kmsg.ACLOperationDescribeConfigs}
	for _, tt := range []struct {
		topic   string
		code    int16
		allowed []kadm.ACLOperation
		want    []string
	}{
		{"raw", 0, all[:1], nil},
		{"raw", 0, all[1:], []string{"Read"}},
		{"out", 0, all[:3], []string{"DescribeConfigs"}},
		{"both", 0, all[2:3], []string{"Read", "Write", "DescribeConfigs"}},
		{"app-manifest", 0, all, nil},
		{"app-repartition-changelog", 0, all[:1], []string{"Write", "DescribeConfigs"}},
		{"app-repartition", kerr.TopicAuthorizationFailed.Code, nil, []string{"Read", "Write", "DescribeConfigs"}},
		{"app-repartition", kerr.UnknownTopicOrPartition.Code, nil, nil},
		{"outcomes", 0, all[:1], []string{"DescribeConfigs"}},
		{"out", 0, nil, nil}, // a broker that lists no operations
	} {
		if got := topics.missing(tt.topic, tt.code, tt.allowed); len(got)+len(tt.want) > 0 && !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s with %v: missing %v, want %v", tt.topic, tt.allowed, got, tt.want)
		}
	}
}
