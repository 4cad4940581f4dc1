package hanging

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/kafka"
)

// offsetsTopic is where Kafka keeps the offsets of groups.
const offsetsTopic = "__consumer_offsets"

// Group is a consumer group, with the partitions for which it has offsets.
type Group struct {
	Name string
	Of   map[string][]int32
	// Commits reports whether transactions of a transactional id commit offsets of this group.
	Commits func(id string) bool
}

// GroupSight is the result of one look at the offsets of a group that are part of open transactions.
type GroupSight struct {
	Pending map[Partition]int64 // the committed offset before each pending one; if empty, the look ended there
	log     *offsetsLog
	ours    map[began]bool // transactions that may commit such offsets and that are open for their coordinator
}

// began identifies a transaction for its coordinator.
type began struct {
	id       string
	producer int64
	epoch    int16
	at       int64
}

// offsetsLog is the partition of __consumer_offsets that has the offsets of a group.
type offsetsLog struct {
	Partition

	hidden bool // the user may not read the partition, so open is empty
	open   []Open
}

// Pending is an offset of a group that is part of a transaction which no coordinator will end.
type Pending struct {
	Partition // the partition that the offset belongs to

	Group  string
	Before int64 // the group's committed offset before it; -1 for none
	// By has the transactions that the offset may be part of. If Hidden is true they are not known,
	// because the user may not read __consumer_offsets.
	By     []Hang
	Hidden bool
	Broker int32 // coordinator of the group; -1 if not known
}

func (p *Pending) String() string {
	var by []string
	for _, h := range p.By {
		by = append(by, h.String())
	}
	switch {
	case p.Hidden:
		by = []string{"this user may not read " + offsetsTopic + ", which shows the producer"}
	case len(by) == 0:
		by = []string{"no transaction is open in " + offsetsTopic + ", so only the coordinator of the group keeps it"}
	}
	return fmt.Sprintf("the offset of %s in group %s is part of a transaction that no coordinator ends, since offset %d: %s", p.Partition, p.Group, p.Before, strings.Join(by, "; "))
}

// Command returns the command that an administrator has to run.
func (p *Pending) Command() string {
	broker := "B of each broker"
	if p.Broker >= 0 {
		broker = strconv.Itoa(int(p.Broker))
	}
	switch {
	case p.Hidden:
		return "kafka-transactions.sh find-hanging --broker-id " + broker + ", and then kafka-transactions.sh abort of what it shows in " + offsetsTopic
	case len(p.By) == 0:
		return "restart the coordinator of the group, broker " + broker
	}
	var aborts []string
	for _, h := range p.By {
		aborts = append(aborts, h.Abort())
	}
	return strings.Join(aborts, " or ")
}

// LookAtGroup looks at the offsets of a group that are part of open transactions.
func LookAtGroup(ctx context.Context, client *kgo.Client, admin *kadm.Client, g Group) (*GroupSight, error) {
	s := &GroupSight{Pending: map[Partition]int64{}}
	if len(g.Of) == 0 {
		return s, nil
	}
	stable, err := kafka.StableOffsets(ctx, client, g.Name, g.Of)
	if errors.Is(err, kerr.GroupIDNotFound) {
		return s, nil
	} else if err != nil {
		return nil, err
	}
	left := kafka.Unstable(g.Of, stable)
	if len(left) == 0 {
		return s, nil
	}
	committed, err := kafka.CommittedOffsets(ctx, client, g.Name, left)
	if err != nil {
		return nil, err
	}
	for topic, numbers := range left {
		for _, n := range numbers {
			s.Pending[Partition{topic, n}] = committed[topic][n].At
		}
	}
	if s.log, err = lookAtOffsets(ctx, client, admin, g.Name); err != nil {
		return nil, err
	}
	s.ours, err = openOf(ctx, admin, g.Commits)
	return s, err
}

// lookAtOffsets returns which transactions are open in the partition that has the offsets of a group.
func lookAtOffsets(ctx context.Context, client *kgo.Client, admin *kadm.Client, group string) (*offsetsLog, error) {
	listed, err := admin.ListTopicsWithInternal(ctx, offsetsTopic)
	if err != nil {
		return nil, fmt.Errorf("describe %s: %w", offsetsTopic, err)
	}
	partitions := len(listed[offsetsTopic].Partitions)
	if partitions == 0 {
		return &offsetsLog{hidden: true}, nil
	}
	id := Partition{offsetsTopic, offsetsPartition(group, int32(partitions))}
	sight := Look(ctx, client, kadm.TopicsSet{id.Topic: {id.Number: {}}}, nil)
	if why := sight.Unknown(); why != "" {
		return nil, waitError(why + ", so it is not known whose the pending offsets of group " + group + " are")
	}
	return &offsetsLog{id, sight.Denied[offsetsTopic], sight.Open}, nil
}

// offsetsPartition returns the partition of __consumer_offsets in which Kafka keeps the offsets of a
// group. It computes Java's String.hashCode over bytes, because the names of our groups are ASCII.
func offsetsPartition(group string, partitions int32) int32 {
	var hash int32 // like Java's String.hashCode
	for _, c := range []byte(group) {
		hash = 31*hash + int32(c)
	}
	if hash == math.MinInt32 {
		return 0
	}
	return max(hash, -hash) % partitions
}

// openOf returns the transactions that their coordinator has open, of the transactional ids that
// commits accepts.
func openOf(ctx context.Context, admin *kadm.Client, commits func(id string) bool) (map[began]bool, error) {
	listed, err := admin.ListTransactions(ctx, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("list the transactions: %w", err)
	}
	ids := slices.DeleteFunc(listed.TransactionalIDs(), func(id string) bool {
		return !commits(id) || phaseOf(&state{Name: listed[id].State}) == over
	})
	if len(ids) == 0 {
		return nil, nil
	}
	described, err := admin.DescribeTransactions(ctx, ids...)
	if err != nil {
		return nil, fmt.Errorf("describe transactions %v: %w", ids, err)
	}
	open := map[began]bool{}
	for id, d := range described {
		if d.Err == nil && phaseOf(&state{Name: d.State}) != over {
			open[began{id, d.ProducerID, d.ProducerEpoch, d.StartTimestamp}] = true
		}
	}
	return open, nil
}

// Staying returns the offsets that are pending now, were pending before, and have not moved. The caller
// leaves enough time between the two looks for the transactions of live workers to end.
func (s *GroupSight) Staying(before *GroupSight) (all []Partition) {
	if before == nil {
		return nil
	}
	for id, at := range s.Pending {
		if was, pended := before.Pending[id]; pended && was == at {
			all = append(all, id)
		}
	}
	return all
}

// Hangs returns the offsets that have been pending since the look before although no coordinator will end their
// transaction. It returns none while any transaction that commits offsets of the group is open for its
// coordinator, because each pending offset may be part of that transaction.
func (s *GroupSight) Hangs(ctx context.Context, client *kgo.Client, admin *kadm.Client, g Group, before *GroupSight) (all []Pending, err error) {
	staying := s.Staying(before)
	if len(staying) == 0 {
		return nil, nil
	}
	for t := range s.ours {
		if before.ours[t] {
			return nil, nil
		}
	}
	var by []Hang
	if open := Staying(before.log.open, s.log.open); len(open) > 0 {
		if by, err = Owned(ctx, client, admin, open); err != nil {
			return nil, err
		}
		by = slices.DeleteFunc(by, func(h Hang) bool { return h.ID != "" && !g.Commits(h.ID) })
		if len(by) == 0 {
			return nil, nil // the coordinator will end the transaction, or the transaction was closed meanwhile
		}
	}
	broker := int32(-1)
	if found := admin.FindGroupCoordinators(ctx, g.Name)[g.Name]; found.Err == nil {
		broker = found.NodeID
	}
	for _, id := range staying {
		all = append(all, Pending{Partition: id, Group: g.Name, Before: s.Pending[id], By: by, Hidden: s.log.hidden, Broker: broker})
	}
	slices.SortFunc(all, func(a, b Pending) int { return strings.Compare(a.Partition.String(), b.Partition.String()) })
	return all, nil
}
