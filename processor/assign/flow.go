package assign

import (
	"cmp"
	"slices"

	"oncebus/processor/app"
)

// A cost says how good an assignment is: lower is better. Its fields are compared in their order: the first one
// is the most important.
type cost struct {
	load  int64 // the sum of the squares of all loads
	moves int64 // tasks that leave their owners, and so stop for two rebalances
	cold  int64 // tasks of which the new owner has no rows
	lag   int64 // changelog records that new owners must read again
}

func (c cost) plus(d cost) cost {
	return cost{c.load + d.load, c.moves + d.moves, c.cold + d.cold, c.lag + d.lag}
}

func (c cost) minus(d cost) cost {
	return cost{c.load - d.load, c.moves - d.moves, c.cold - d.cold, c.lag - d.lag}
}

func (c cost) less(d cost) bool {
	return cmp.Or(cmp.Compare(c.load, d.load), cmp.Compare(c.moves, d.moves), cmp.Compare(c.cold, d.cold), cmp.Compare(c.lag, d.lag)) < 0
}

// A flow is the cheapest assignment of its tasks (minimum-cost flow). add adds a task by the cheapest chain of
// moves: one member gets the task, hands one of its other tasks to a second member, and so on. If each task is
// added by such a cheapest chain, the assignment is the cheapest one after each add.
type flow struct {
	tasks []app.TaskID
	costs [][]cost // by task and member
	may   [][]bool
	of    [][]int // the tasks of each member, as indexes of tasks
	// hand has, for each pair of members, the cheapest step from the first to the second.
	hand [][]step
}

// A step hands a task from one member to another. by is the change of the assignment's cost.
type step struct {
	task int // index of the task; -1 if the member has no task that the other member may get
	by   cost
}

// newFlow returns the cheapest assignment of tasks to n members. price returns what a task costs each member,
// and which members may get it.
func newFlow(n int, tasks []app.TaskID, price func(app.TaskID) (costs []cost, may []bool)) *flow {
	f := &flow{tasks: tasks, of: make([][]int, n), hand: make([][]step, n)}
	for _, id := range tasks {
		costs, may := price(id)
		f.costs, f.may = append(f.costs, costs), append(f.may, may)
	}
	for i := range f.of {
		f.compare(i)
	}
	for task := range tasks {
		f.add(task)
	}
	return f
}

// tasksOf returns the tasks of a member, sorted.
func (f *flow) tasksOf(member int) (ids []app.TaskID) {
	for _, task := range f.of[member] {
		ids = append(ids, f.tasks[task])
	}
	slices.SortFunc(ids, compareTasks)
	return ids
}

// compare finds the cheapest step from a member to each other member, after the member's tasks have changed.
func (f *flow) compare(from int) {
	steps := slices.Repeat([]step{{task: -1}}, len(f.of))
	for _, task := range f.of[from] {
		for to := range steps {
			if by := f.costs[task][to].minus(f.costs[task][from]); f.may[task][to] && (steps[to].task < 0 || by.less(steps[to].by)) {
				steps[to] = step{task, by}
			}
		}
	}
	f.hand[from] = steps
}

// add assigns one more task to the member that makes the assignment cheapest, unless no member may get the
// task.
func (f *flow) add(task int) {
	reach := make([]*path, len(f.of))
	for to := range reach {
		if f.may[task][to] {
			reach[to] = &path{task: task, from: -1, cost: f.costs[task][to]}
		}
	}
	f.relax(reach)
	best, bestCost := -1, cost{}
	for to, way := range reach {
		if way == nil {
			continue
		}
		// With one more task, the square of a member's load rises by 2*load+1.
		if c := way.cost.plus(cost{load: int64(2*len(f.of[to]) + 1)}); best < 0 || c.less(bestCost) {
			best, bestCost = to, c
		}
	}
	for to := best; to >= 0; to = reach[to].from {
		way := reach[to]
		f.of[to] = append(f.of[to], way.task)
		if way.from >= 0 {
			f.of[way.from] = slices.DeleteFunc(f.of[way.from], func(t int) bool { return t == way.task })
		}
	}
	for to := best; to >= 0; to = reach[to].from {
		f.compare(to)
	}
}

// A path is the cheapest way to give a member one more task: the member from hands task over to the member.
type path struct {
	task, from int // from is -1 for the added task
	cost       cost
}

// relax finds the cheapest paths to all members (Bellman-Ford algorithm). It ends, because there is no cycle of
// negative cost: such a cycle would make the assignment cheaper, and the assignment is already the cheapest.
func (f *flow) relax(reach []*path) {
	for changed := true; changed; {
		changed = false
		for from, way := range reach {
			if way == nil {
				continue
			}
			for to, step := range f.hand[from] {
				if step.task < 0 || to == from {
					continue
				}
				if c := way.cost.plus(step.by); reach[to] == nil || c.less(reach[to].cost) {
					reach[to] = &path{step.task, from, c}
					changed = true
				}
			}
		}
	}
}
