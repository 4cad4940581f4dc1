package assign

import (
	"cmp"
	"maps"
	"slices"

	"oncebus/processor/app"
)

// A Member is a member of the consumer group of the dedup stage, as the group's leader sees it in a rebalance.
type Member struct {
	Name       string // unique in the group; the members are ordered by it
	Topics     []string
	Owned      []app.TaskID // the tasks that the member owned in Generation
	Generation int32
	Process    string // the process that the member is a worker of
	Standby    bool   // whether this process keeps standbys, that is, follows changelogs of tasks that other processes own
	// Positions has, for each task, the changelog offset up to which the member's process has stored the task's
	// rows.
	Positions map[app.TaskID]int64
}

// Assign returns the sorted tasks of each member, in the order of members. partitions is the number of
// partitions of each topic. The algorithm is a minimum-cost flow, see flow.
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

// ownersOf returns the index of the owner of each task. If several members claim a task, the member of the
// newest generation owns it: the other members missed a rebalance (KIP-792).
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

// positionMax bounds changelog positions, so that a sum of positions does not overflow an int64.
const positionMax = 1 << 48

// costsOf returns, for each member, what it costs to assign the task to that member, and whether the member may
// get the task. The owner costs nothing, because its process has all rows. A member without a position must
// read the whole changelog (cold). A member with a position must read at least the changelog records that the
// most advanced member has and this member lacks (lag).
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
