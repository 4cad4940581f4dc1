package assign

import (
	"fmt"
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"pgregory.net/rapid"

	"oncebus/processor/app"
)

// A groupMember is a member as the broker sees it: it joins with metadata, and gets an
// assignment.
type groupMember struct {
	name       string
	id         string // new at each start
	topics     []string
	owned      map[string][]int32
	generation int32
	positions  map[app.TaskID]int64
	raw        []byte // user data of another build, in place of positions
}

func (m *groupMember) join() kmsg.JoinGroupResponseMember {
	b := NewBalancer(func() Warmth { return Warmth{Positions: m.positions} })
	joined := kmsg.NewJoinGroupResponseMember()
	joined.MemberID, joined.InstanceID = m.id, &m.name
	joined.ProtocolMetadata = b.JoinGroupMetadata(m.topics, m.owned, m.generation)
	if m.raw != nil {
		var meta kmsg.ConsumerMemberMetadata
		if err := meta.ReadFrom(joined.ProtocolMetadata); err != nil {
			panic(err)
		}
		meta.UserData = m.raw
		joined.ProtocolMetadata = meta.AppendTo(nil)
	}
	return joined
}

// rebalance runs one rebalance as the broker and the leader do. It returns how many
// partitions were revoked: then another one follows.
func rebalance(tb interface{ Fatalf(string, ...any) }, generation int32, partitions map[string]int32, members ...*groupMember) (revoked int) {
	b := NewBalancer(func() Warmth { return Warmth{} })
	var joined []kmsg.JoinGroupResponseMember
	for _, m := range members {
		joined = append(joined, m.join())
	}
	slices.SortFunc(joined, func(a, b kmsg.JoinGroupResponseMember) int {
		return slices.Compare([]byte(*a.InstanceID), []byte(*b.InstanceID))
	})
	g, _, err := b.MemberBalancer(joined)
	if err != nil {
		tb.Fatalf("%v", err)
	}
	into, err := g.(kgo.GroupMemberBalancerOrError).BalanceOrError(partitions)
	if err != nil {
		tb.Fatalf("%v", err)
	}
	for _, a := range into.IntoSyncAssignment() {
		for _, m := range members {
			if m.id != a.MemberID {
				continue
			}
			now, err := b.ParseSyncAssignment(a.MemberAssignment)
			if err != nil {
				tb.Fatalf("%v", err)
			}
			for topic, ps := range m.owned {
				for _, p := range ps {
					if !slices.Contains(now[topic], p) {
						revoked++
					}
				}
			}
			m.owned, m.generation = now, generation
		}
	}
	return revoked
}

func owned(m *groupMember) int {
	n := 0
	for _, ps := range m.owned {
		n += len(ps)
	}
	return n
}

// TestPartitionMovesInTwoRebalances: a process that comes back gets its partitions after
// their owner has revoked them, and no partition has two owners at any time.
func TestPartitionMovesInTwoRebalances(t *testing.T) {
	partitions := map[string]int32{"routed": 6}
	a := &groupMember{name: "a", id: "a1", topics: []string{"routed"}, owned: map[string][]int32{"routed": {0, 1, 2, 3, 4, 5}}, generation: 4, positions: at(1000, tasks("routed", 0, 1, 2, 3, 4, 5)...)}
	b := &groupMember{name: "b", id: "b1", topics: []string{"routed"}, generation: -1, positions: at(900, tasks("routed", 1, 2, 5)...)}
	if n := rebalance(t, 5, partitions, a, b); n != 3 || owned(b) != 0 || !slices.Equal(a.owned["routed"], []int32{0, 3, 4}) {
		t.Fatalf("first rebalance: %d revoked, %v and %v", n, a.owned, b.owned)
	}
	if n := rebalance(t, 6, partitions, a, b); n != 0 || !slices.Equal(b.owned["routed"], []int32{1, 2, 5}) || owned(a) != 3 {
		t.Fatalf("second rebalance: %d revoked, %v and %v", n, a.owned, b.owned)
	}
}

// TestRestartedMembersKeepTheirPartitions: both processes restart, and neither claims what
// it had. Their directories tell.
func TestRestartedMembersKeepTheirPartitions(t *testing.T) {
	partitions := map[string]int32{"routed": 4}
	a := &groupMember{name: "a", id: "a2", topics: []string{"routed"}, generation: -1, positions: at(1000, tasks("routed", 0, 3)...)}
	b := &groupMember{name: "b", id: "b2", topics: []string{"routed"}, generation: -1, positions: at(1000, tasks("routed", 1, 2)...)}
	rebalance(t, 5, partitions, a, b)
	if !slices.Equal(a.owned["routed"], []int32{0, 3}) || !slices.Equal(b.owned["routed"], []int32{1, 2}) {
		t.Errorf("%v and %v", a.owned, b.owned)
	}
}

// TestDataOfAnotherBuildIsIgnored: its member gets its share.
func TestDataOfAnotherBuildIsIgnored(t *testing.T) {
	partitions := map[string]int32{"routed": 4}
	a := &groupMember{name: "a", id: "a1", topics: []string{"routed"}, raw: []byte{9, 9, 9}, generation: -1}
	b := &groupMember{name: "b", id: "b1", topics: []string{"routed"}, generation: -1, positions: at(10, tasks("routed", 0, 1, 2, 3)...)}
	rebalance(t, 5, partitions, a, b)
	if owned(a) != 2 || owned(b) != 2 {
		t.Errorf("%v and %v", a.owned, b.owned)
	}
}

// TestEachPartitionGetsOneOwner: members that missed rebalances claim partitions that
// others have. After at most two rebalances that revoke, each partition has one owner.
func TestEachPartitionGetsOneOwner(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		partitions := map[string]int32{"routed": rapid.Int32Range(1, 12).Draw(t, "partitions")}
		members := make([]*groupMember, rapid.IntRange(1, 5).Draw(t, "members"))
		for i := range members {
			m := &groupMember{name: fmt.Sprint("m", i), id: fmt.Sprint("id", i), topics: []string{"routed"}, generation: rapid.Int32Range(-1, 4).Draw(t, "generation"), positions: map[app.TaskID]int64{}, owned: map[string][]int32{}}
			for p := range partitions["routed"] {
				if rapid.Bool().Draw(t, "claims") {
					m.owned["routed"] = append(m.owned["routed"], p)
				}
				m.positions[app.TaskID{Topic: "routed", Partition: p}] = rapid.Int64Range(0, 9).Draw(t, "position")
			}
			members[i] = m
		}
		rebalances := 1
		for ; rebalance(t, int32(10+rebalances), partitions, members...) > 0; rebalances++ {
			if rebalances > 2 {
				t.Fatalf("a rebalance revokes for the third time")
			}
		}
		var all []int32
		for _, m := range members {
			all = append(all, m.owned["routed"]...)
		}
		slices.Sort(all)
		if len(all) != int(partitions["routed"]) || len(slices.Compact(all)) != len(all) {
			t.Fatalf("after %d rebalances %v are owned", rebalances, all)
		}
	})
}
