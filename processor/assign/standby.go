package assign

import (
	"cmp"
	"maps"
	"slices"

	"oncebus/processor/app"
)

// Standbys returns, for each process, the tasks whose changelogs it follows. Each task that has an owner gets
// one standby: the warmest other process that keeps standbys. Processes follow the same number of tasks where
// that is possible. Member.Owned must have the tasks that each member owns now. Every process computes the same
// result from the same members, so the processes need no messages to agree.
func Standbys(members []Member) map[string][]app.TaskID {
	processes := processesOf(members)
	owner := map[app.TaskID]string{}
	for i := range members {
		for _, id := range members[i].Owned {
			owner[id] = members[i].Process
		}
	}
	tasks := slices.SortedFunc(maps.Keys(owner), compareTasks)
	f := newFlow(len(processes), tasks, func(id app.TaskID) ([]cost, []bool) {
		costs, may := costsOf(processes, id, -1)
		for i := range processes {
			may[i] = may[i] && processes[i].Name != owner[id]
		}
		return costs, may
	})
	standbys := map[string][]app.TaskID{}
	for i := range processes {
		standbys[processes[i].Name] = f.tasksOf(i)
	}
	return standbys
}

// NextOwners returns which process will get which task of a topic that no member reads yet, once all members
// read the topic. partitions has the topics that will have tasks then, and their numbers of partitions.
func NextOwners(members []Member, partitions map[string]int32, topic string) map[string][]app.TaskID {
	reading := slices.Clone(members)
	for i := range reading {
		reading[i].Topics = append(slices.Clone(reading[i].Topics), topic)
	}
	owners := map[string][]app.TaskID{}
	for i, tasks := range Assign(reading, partitions) {
		for _, id := range tasks {
			if id.Topic == topic && members[i].Process != "" {
				owners[members[i].Process] = append(owners[members[i].Process], id)
			}
		}
	}
	return owners
}

// processesOf merges the members of each process that keeps standbys into one member, and returns these by
// name.
func processesOf(members []Member) []Member {
	byName := map[string]*Member{}
	for i := range members {
		m := &members[i]
		if !m.Standby || m.Process == "" {
			continue
		}
		p := byName[m.Process]
		if p == nil {
			p = &Member{Name: m.Process, Positions: map[app.TaskID]int64{}}
			byName[m.Process] = p
		}
		p.Topics = append(p.Topics, m.Topics...)
		for id, position := range m.Positions {
			p.Positions[id] = max(p.Positions[id], position)
		}
	}
	var processes []Member
	for _, p := range byName {
		processes = append(processes, *p)
	}
	slices.SortFunc(processes, func(a, b Member) int { return cmp.Compare(a.Name, b.Name) })
	return processes
}
