package assign

import (
	"maps"
	"slices"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/processor/app"
)

// ProtocolName is the name under which members offer the balancer to the broker. The broker's group coordinator
// chooses it only if all members of the group offer it.
const ProtocolName = "oncebus-warm"

// metadataVersion is the version of the consumer protocol that has owned partitions and their generation.
const metadataVersion = 3

// A balancer is a cooperative balancer that uses Assign: in the rebalance that decides to move a partition, the
// old owner only revokes the partition, and the new owner gets it in the next rebalance.
type balancer struct {
	warmth func() Warmth
}

// NewBalancer returns the balancer of a member. The balancer calls warmth at each join of the group: warmth
// must not block.
func NewBalancer(warmth func() Warmth) kgo.GroupBalancer { return &balancer{warmth} }

func (*balancer) ProtocolName() string { return ProtocolName }

func (*balancer) IsCooperative() bool { return true }

// JoinGroupMetadata returns what the member tells the leader: its partitions, and the warmth of its process.
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

// Balance computes the assignment of all members. It runs in the group's leader only.
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

// memberOf returns a member under its static name (group.instance.id), if it has a static name, because that
// name stays the same after a restart.
func memberOf(m *kmsg.JoinGroupResponseMember, meta *kmsg.ConsumerMemberMetadata) Member {
	name := m.MemberID
	if m.InstanceID != nil {
		name = *m.InstanceID
	}
	return NewMember(name, meta)
}

// NewMember returns the member that joined with this consumer protocol metadata.
func NewMember(name string, meta *kmsg.ConsumerMemberMetadata) Member {
	member := Member{Name: name, Topics: meta.Topics, Generation: meta.Generation}
	for _, o := range meta.OwnedPartitions {
		for _, p := range o.Partitions {
			member.Owned = append(member.Owned, app.TaskID{Topic: o.Topic, Partition: p})
		}
	}
	// If this build cannot read the member's warmth, the member only looks cold: it gets tasks, but is not
	// preferred.
	if w, err := decodeWarmth(meta.UserData); err == nil {
		member.Process, member.Standby, member.Positions = w.Process, w.Standby, w.Positions
	}
	return member
}
