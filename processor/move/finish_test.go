package move

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/processor/app"
	"oncebus/processor/kafkatest/embedded"
)

// TestTopicIsReadDuringARebalance: brokers describe the members of a group that rebalances without
// what they read, and a group whose coordinator moves not at all. Neither says that no process reads a
// topic, which would then be deleted.
func TestTopicIsReadDuringARebalance(t *testing.T) {
	cluster := embedded.Start(t)
	m := &Mover{cfg: app.Config{}, conn: app.Conn{Admin: kadm.NewClient(cluster.Client())}}
	m.cfg.AppID = "app"
	answers := []kmsg.DescribeGroupsResponseGroup{
		{State: "PreparingRebalance", Members: []kmsg.DescribeGroupsResponseGroupMember{{MemberID: "m"}}},
		{State: "CompletingRebalance", Members: []kmsg.DescribeGroupsResponseGroupMember{{MemberID: "m"}}},
		{State: "Stable", Members: []kmsg.DescribeGroupsResponseGroupMember{{MemberID: "m"}}},
	}
	asked := 0
	cluster.Intercept(func(req kmsg.Request) (kmsg.Response, error, bool) {
		resp := req.ResponseKind().(*kmsg.DescribeGroupsResponse)
		for _, name := range req.(*kmsg.DescribeGroupsRequest).Groups {
			group := answers[min(asked, len(answers)-1)]
			group.Group, group.ProtocolType = name, "consumer"
			resp.Groups = append(resp.Groups, group)
		}
		asked++
		return resp, nil, true
	}, kmsg.DescribeGroups)
	if err := m.awaitUnread(t.Context(), []string{"app-repartition"}, app.StageDedup); err != nil || asked != len(answers) {
		t.Errorf("asked %d times, %v; want %d", asked, err, len(answers))
	}
	answers[2].ErrorCode = kerr.InvalidGroupID.Code
	if err := m.awaitUnread(t.Context(), []string{"app-repartition"}, app.StageDedup); err == nil {
		t.Error("a group that cannot be described reads nothing")
	}
	if live, err := app.LiveInstances(t.Context(), m.conn, "app"); err == nil {
		t.Errorf("the live instances are %v, although no group was described", live)
	}
}
