package assign

import (
	"cmp"
	"maps"
	"slices"

	"oncebus/processor/app"
)

// A Member is one member of the group, as the leader sees it.
type Member struct {
	Name       string // unique in the group; orders the members
	Topics     []string
	Owned      []app.TaskID // what it had in Generation
	Generation int32
	Process    string // it is a worker of
	Standby    bool   // its process follows changelogs
	// Positions has the changelog offset up to which its process has the rows of a task.
	Positions map[app.TaskID]int64
}

// Assign returns the tasks of each member, in the order of the members, sorted. partitions
// is the number of partitions of each topic.
func Assign(members []Member, partitions map[string]int32) [][]app.TaskID {
	order := make([]int, len(members))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(members[a].Name, members[b].Name) })
	sorted := make([]Member, len(members))
	for at, i := range order {
		sorted[at] = members[i]
	}
	owners := ownersOf(sorted)
	f := newFlow(len(sorted), tasksOf(partitions), func(id app.TaskID) ([]cost, []bool) {
		owner, owned := owners[id]
		if !owned {
			owner = -1
		}
		return costsOf(sorted, id, owner)
	})
	assigned := make([][]app.TaskID, len(members))
	for at, i := range order {
		assigned[i] = f.tasksOf(at)
	}
	return assigned
}

func tasksOf(partitions map[string]int32) []app.TaskID {
	var tasks []app.TaskID
	for _, topic := range slices.Sorted(maps.Keys(partitions)) {
		for p := range partitions[topic] {
			tasks = append(tasks, app.TaskID{Topic: topic, Partition: p})
		}
	}
	return tasks
}

func compareTasks(a, b app.TaskID) int {
	return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
}

// ownersOf returns the index of the owner of each task. If several members claim it, the
// one of the newest generation owns it: the others missed rebalances (KIP-792).
func ownersOf(members []Member) map[app.TaskID]int {
	owners := map[app.TaskID]int{}
	for i := range members {
		for _, id := range members[i].Owned {
			if other, claimed := owners[id]; !claimed || members[i].Generation > members[other].Generation {
				owners[id] = i
			}
		}
	}
	return owners
}

// positionMax bounds positions, so that sums of them do not overflow.
const positionMax = 1 << 48

// costsOf returns what it costs each member to get a task, and which of them may. An owner
// has all rows. Another one without a position reads the whole changelog. One with a
// position lacks at least the changelog records that another member has.
func costsOf(members []Member, id app.TaskID, owner int) (costs []cost, may []bool) {
	costs, may = make([]cost, len(members)), make([]bool, len(members))
	var best int64
	for i := range members {
		may[i] = slices.Contains(members[i].Topics, id.Topic)
		best = max(best, min(members[i].Positions[id], positionMax))
	}
	for i := range members {
		if i == owner {
			continue
		}
		position := max(0, min(members[i].Positions[id], positionMax))
		costs[i].lag = best - position
		if position == 0 {
			costs[i].cold = 1
		}
		if owner >= 0 && may[owner] {
			costs[i].moves = 1
		}
	}
	return costs, may
}
