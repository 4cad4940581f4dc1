package assign

import (
	"maps"
	"slices"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/processor/app"
)

// ProtocolName names the balancer to the broker. The broker uses it when all members of the
// group offer it.
const ProtocolName = "oncebus-warm"

// metadataVersion is that of the consumer protocol with owned partitions and generation.
const metadataVersion = 3

// A balancer is a cooperative balancer that uses Assign. A partition that moves is first
// revoked by its owner, and assigned in the next rebalance.
type balancer struct {
	warmth func() Warmth
}

// NewBalancer returns the balancer of a member. warmth is called at each join, and must
// not block.
func NewBalancer(warmth func() Warmth) kgo.GroupBalancer { return &balancer{warmth} }

func (*balancer) ProtocolName() string { return ProtocolName }

func (*balancer) IsCooperative() bool { return true }

// JoinGroupMetadata has what the member owns and what its process has stored.
func (b *balancer) JoinGroupMetadata(topics []string, owned map[string][]int32, generation int32) []byte {
	meta := kmsg.NewConsumerMemberMetadata()
	meta.Version, meta.Topics, meta.Generation = metadataVersion, topics, generation
	for _, topic := range slices.Sorted(maps.Keys(owned)) {
		o := kmsg.NewConsumerMemberMetadataOwnedPartition()
		o.Topic, o.Partitions = topic, owned[topic]
		meta.OwnedPartitions = append(meta.OwnedPartitions, o)
	}
	meta.UserData = b.warmth().encode()
	return meta.AppendTo(nil)
}

func (*balancer) ParseSyncAssignment(assignment []byte) (map[string][]int32, error) {
	return kgo.ParseConsumerSyncAssignment(assignment)
}

func (b *balancer) MemberBalancer(members []kmsg.JoinGroupResponseMember) (kgo.GroupMemberBalancer, map[string]struct{}, error) {
	c, err := kgo.NewConsumerBalancer(b, members)
	topics := c.MemberTopics()
	return c, topics, err
}

// Balance runs in the leader.
func (*balancer) Balance(c *kgo.ConsumerBalancer, partitions map[string]int32) kgo.IntoSyncAssignment {
	var members []Member
	var joined []*kmsg.JoinGroupResponseMember
	c.EachMember(func(m *kmsg.JoinGroupResponseMember, meta *kmsg.ConsumerMemberMetadata) {
		members, joined = append(members, memberOf(m, meta)), append(joined, m)
	})
	plan := c.NewPlan()
	for i, tasks := range Assign(members, partitions) {
		for _, id := range tasks {
			plan.AddPartition(joined[i], id.Topic, id.Partition)
		}
	}
	plan.AdjustCooperative(c)
	return plan
}

// memberOf returns a member. Its name is the static one, which outlives a restart.
func memberOf(m *kmsg.JoinGroupResponseMember, meta *kmsg.ConsumerMemberMetadata) Member {
	name := m.MemberID
	if m.InstanceID != nil {
		name = *m.InstanceID
	}
	return NewMember(name, meta)
}

// NewMember returns the member that joined with this metadata.
func NewMember(name string, meta *kmsg.ConsumerMemberMetadata) Member {
	member := Member{Name: name, Topics: meta.Topics, Generation: meta.Generation}
	for _, o := range meta.OwnedPartitions {
		for _, p := range o.Partitions {
			member.Owned = append(member.Owned, app.TaskID{Topic: o.Topic, Partition: p})
		}
	}
	// Data that this build cannot read only makes the member look cold.
	if w, err := decodeWarmth(meta.UserData); err == nil {
		member.Process, member.Standby, member.Positions = w.Process, w.Standby, w.Positions
	}
	return member
}
