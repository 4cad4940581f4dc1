package processor

import (
	"context"

	"github.com/twmb/franz-go/pkg/kadm"

	"oncebus/processor/app"
	"oncebus/processor/assign"
	"oncebus/processor/restore"
)

// followedTasks chooses the tasks whose changelogs the process follows. With ONCEBUS_STANDBY
// these are tasks of other processes. While 'oncebus move' prepares another number of
// partitions they are also the new tasks that the process will probably own: without their
// rows on its disk nothing would be emitted until they are read, once the move has acted.
type followedTasks struct {
	*shared

	// prepared is what restores of the new tasks of switch number read from; nil before its
	// topics exist.
	prepared *restore.Source
	number   int64
}

// choose follows the tasks, by a description of the group. following ends that.
func (f *followedTasks) choose(ctx, following context.Context, group *kadm.DescribedGroup) {
	wanted := map[app.TaskID]*restore.Source{}
	members := membersOf(group)
	if f.cfg.Standby {
		for _, id := range assign.Standbys(members)[f.cfg.InstanceID] {
			wanted[id] = f.newest().source
		}
	}
	for _, id := range f.nextTasks(ctx, members) {
		wanted[id] = f.prepared
	}
	f.standbys.Follow(following, wanted)
}

// nextTasks returns the tasks that the process will probably own after the switch that is being
// prepared.
func (f *followedTasks) nextTasks(ctx context.Context, members []assign.Member) []app.TaskID {
	rt, seen := f.newest().rt, f.holds.Switch()
	if !seen.Prepares(rt.Topology.Generation) {
		f.prepared = nil
		return nil
	}
	if f.prepared == nil || f.number != seen.Number {
		f.prepared = nil
		prepared, err := rt.Prepared(ctx, f.admin, seen.Number)
		if err != nil {
			f.log.Debug("describe the topics of a move failed, retrying", "error", err)
		}
		if prepared == nil {
			return nil
		}
		f.prepared, f.number = f.newEdition(prepared).source, seen.Number
	}
	t, partitions := f.prepared.App.Topology, map[string]int32{}
	for _, topic := range t.TaskTopics() {
		if _, closes := f.holds.SwitchOf(topic, false); !closes {
			partitions[topic] = t.Topics[topic].Partitions
		}
	}
	return assign.NextOwners(members, partitions, t.Repartition)[f.cfg.InstanceID]
}

// membersOf returns the members of a group with what each owns. Each process computes the same
// of one description, so a task has one standby. A group with an earlier build has none.
func membersOf(group *kadm.DescribedGroup) (members []assign.Member) {
	if group.Protocol != assign.ProtocolName {
		return nil
	}
	for i := range group.Members {
		m := &group.Members[i]
		meta, joined := m.Join.AsConsumer()
		assigned, synced := m.Assigned.AsConsumer()
		if !joined || !synced {
			continue
		}
		member := assign.NewMember(m.MemberID, meta)
		member.Owned = nil
		for _, t := range assigned.Topics {
			for _, p := range t.Partitions {
				member.Owned = append(member.Owned, app.TaskID{Topic: t.Topic, Partition: p})
			}
		}
		members = append(members, member)
	}
	return members
}
