package processor

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"oncebus/processor/app"
	"oncebus/processor/assign"
	"oncebus/processor/restore"
)

// followInterval is the time between two choices of the followed tasks, while a move copies rows.
const followInterval = 500 * time.Millisecond

// followedTasks chooses the tasks whose changelogs the process follows into stores on its disk. With
// ONCEBUS_STANDBY these are tasks of other processes. While 'oncebus move' prepares another number of
// partitions, the new tasks that the process will probably own are followed, too. Without their rows on its
// disk, the process would have to read the rows after the act of the move, and would emit nothing meanwhile. So
// the move acts only when the processes have read what it copied.
type followedTasks struct {
	*shared

	// prepared is the source of the restores of the new tasks, for the switch with this number; nil before the
	// topics of the switch exist.
	prepared *restore.Source
	number   int64
	written  app.Followed // the row that this process wrote last
}

func (f *followedTasks) run(ctx context.Context) {
	for ctx.Err() == nil {
		if err := f.look(ctx); err != nil && ctx.Err() == nil {
			f.log.Debug("choose the followed tasks failed, retrying", "error", err)
		}
		pauseUntilDue(ctx, f.interval(), f.followDue)
	}
}

// prepares reports whether the process may soon run the tasks of another generation.
func (f *followedTasks) prepares() bool {
	return f.holds.Switch().Prepares(f.newest().rt.Topology.Generation)
}

func (f *followedTasks) interval() time.Duration {
	if f.prepares() {
		return min(followInterval, f.ownersInterval)
	}
	return f.ownersInterval
}

// followNow makes the process choose the followed tasks at once.
func (s *shared) followNow() {
	select {
	case s.followDue <- struct{}{}:
	default: // a choice is due already
	}
}

// look chooses the tasks to follow, by the newest description of the group.
func (f *followedTasks) look(ctx context.Context) error {
	if !f.cfg.Standby && !f.prepares() {
		f.prepared = nil
		f.standbys.Follow(ctx, nil)
		return nil
	}
	group, err := f.describeGroup(ctx, app.StageDedup)
	if err != nil || group.State != "Stable" {
		return err
	}
	wanted := map[app.TaskID]*restore.Source{}
	members := membersOf(group)
	if f.cfg.Standby {
		for _, id := range assign.Standbys(members)[f.cfg.InstanceID] {
			wanted[id] = f.newest().source
		}
	}
	next, err := f.nextTasks(ctx, members)
	if err != nil {
		return err
	}
	for _, id := range next {
		wanted[id] = f.prepared
	}
	f.standbys.Follow(ctx, wanted)
	return f.write(ctx, next)
}

// nextTasks returns the tasks that the process will probably own after the switch that is being prepared;
// none if no switch is.
func (f *followedTasks) nextTasks(ctx context.Context, members []assign.Member) ([]app.TaskID, error) {
	if !f.prepares() {
		f.prepared = nil
		return nil, nil
	}
	if number := f.holds.Switch().Number; f.prepared == nil || f.number != number {
		f.prepared = nil
		prepared, err := f.newest().rt.Prepared(ctx, f.admin, number)
		if prepared == nil || err != nil {
			return nil, err
		}
		f.prepared, f.number = f.newEdition(prepared).source, number
	}
	t, partitions := f.prepared.App.Topology, map[string]int32{}
	for _, topic := range t.TaskTopics() {
		if _, closes := f.holds.SwitchOf(topic, false); !closes {
			partitions[topic] = t.Topics[topic].Partitions
		}
	}
	return assign.NextOwners(members, partitions, t.Repartition)[f.cfg.InstanceID], nil
}

// write writes to the manifest topic how far the process is with following the new tasks, when that has
// changed.
func (f *followedTasks) write(ctx context.Context, next []app.TaskID) error {
	if f.prepared == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, f.ownersInterval)
	defer cancel()
	row := app.Followed{Instance: f.cfg.InstanceID, Switch: f.number, Tasks: len(next), Behind: len(next)}
	byTask := map[string]restore.StandbyState{}
	for _, s := range f.standbys.State() {
		byTask[s.Task] = s
	}
	for _, id := range next {
		s, follows := byTask[id.String()]
		if follows && s.CaughtUp {
			row.Behind--
		} else {
			row.Left += max(0, s.Lag)
		}
	}
	if row == f.written {
		return nil
	}
	err := row.Write(ctx, f.newest().source.Client, f.newest().rt.Topology)
	if err == nil {
		f.written = row
	}
	return err
}

// membersOf returns the members of a group with the tasks that each of them owns. Every process computes the
// same result from one description, so each task has one standby. While an earlier build takes part in a group,
// the group's members have no standbys, because the earlier build uses another balancer.
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
