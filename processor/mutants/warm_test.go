//go:build mutants

package mutants

const warmOutsideSim = "to the oracle it is right: the assignment is a preference"

const standbyOutsideSim = "its processes keep no standbys"

// warmList has the defects of the assignment to former owners, and of standbys.
var warmList = []mutant{
	{
		name:     "moves-without-a-revocation",
		hazards:  []string{"B14"},
		does:     "a partition is assigned to its new owner while the old one still has it",
		edits:    []edit{{"processor/assign/balancer.go", "	plan.AdjustCooperative(c)\n", ""}},
		aims:     []suite{assignSuite.aimed("^TestPartitionMovesInTwoRebalances$")},
		notInSim: "the broker fences the old owner by the generation of its commit",
	},
	{
		name:     "old-claim-wins",
		hazards:  []string{"B14"},
		does:     "a member that missed rebalances counts as the owner of what another one has",
		edits:    []edit{{"processor/assign/assign.go", "members[i].Generation > members[other].Generation {", "members[i].Generation < members[other].Generation {"}},
		aims:     []suite{assignSuite.aimed("^TestAssign$")},
		notInSim: warmOutsideSim,
	},
	{
		name:     "foreign-topic-assigned",
		hazards:  []string{"B14"},
		does:     "a member gets a task of a topic that it does not read",
		edits:    []edit{{"processor/assign/assign.go", "may[i] = slices.Contains(members[i].Topics, id.Topic)", "may[i] = true"}},
		aims:     []suite{assignSuite.aimed("^TestAssign")},
		notInSim: "its processes know the same routes",
	},
	{
		name:     "warmest-before-owner",
		hazards:  []string{"B14"},
		does:     "a task leaves its owner for a member that has its rows too",
		edits:    []edit{{"processor/assign/assign.go", "			costs[i].moves = 1\n", "			costs[i].moves = 0\n"}},
		aims:     []suite{assignSuite.aimed("^TestAssign")},
		notInSim: warmOutsideSim,
	},
	{
		name:     "warmth-before-balance",
		hazards:  []string{"B14"},
		does:     "a warm member gets more than its share",
		edits:    []edit{{"processor/assign/flow.go", "cost{load: int64(2*len(f.of[to]) + 1)}", "cost{lag: int64(2*len(f.of[to]) + 1)}"}},
		aims:     []suite{assignSuite.aimed("^TestAssign")},
		notInSim: warmOutsideSim,
	},
	{
		name:     "damaged-warmth-read",
		hazards:  []string{"B14"},
		does:     "user data of another build is read as positions",
		edits:    []edit{{"processor/assign/warmth.go", "len(b) == 0 || b[0] != warmthVersion || len(b) > WarmthBytesMax", "len(b) == 0"}},
		aims:     []suite{assignSuite.aimed("^TestDamagedWarmthLooksCold$")},
		notInSim: warmOutsideSim,
	},
	{
		name:     "earlier-builds-refused",
		hazards:  []string{"B14"},
		does:     "a member offers the new balancer only, so no earlier build can join its group",
		edits:    []edit{{"processor/client.go", "return []kgo.GroupBalancer{watchedBalancer{warm, w.member.assign}, sticky}", "return []kgo.GroupBalancer{watchedBalancer{warm, w.member.assign}}"}},
		aims:     inProcessor("^TestBuildsWithAndWithoutTheBalancerShareAGroup$"),
		notInSim: "its processes are of one build",
	},
	{
		name:     "directories-not-sent",
		hazards:  []string{"B14"},
		does:     "a member sends the leader nothing of the directories of its process",
		edits:    []edit{{"processor/restore/stores.go", "			if position > 0 {\n", "			if position < 0 {\n"}},
		aims:     inProcessor("^TestFormerOwnerGetsItsTasksAgain$"),
		notInSim: warmOutsideSim,
	},
	{
		name:     "standby-keeps-the-store",
		hazards:  []string{"B15"},
		does:     "a task that needs the store does not ask the standby for it, and waits for ever",
		edits:    []edit{{"processor/restore/leases.go", "			held.yield()\n", "			_ = held.yield\n"}},
		aims:     []suite{restoreSuite.aimed("^TestLeaseOfAStandbyIsYielded$")},
		notInSim: standbyOutsideSim,
	},
	{
		name:     "standby-takes-a-taken-store",
		hazards:  []string{"B15"},
		does:     "a standby opens the directory of a task that runs in the same process",
		edits:    []edit{{"processor/restore/leases.go", "	if held := d.taken[id]; held != nil {\n", "	if held := d.taken[id]; held != nil && yield == nil {\n"}},
		aims:     []suite{restoreSuite.aimed("^TestLeaseOfAStandbyIsYielded$")},
		notInSim: standbyOutsideSim,
	},
	{
		name:     "standby-of-a-cut-changelog",
		hazards:  []string{"B15"},
		does:     "a standby reads what is left of a changelog, and the restore takes its rows for all rows",
		edits:    []edit{{"processor/restore/standby.go", "	case chosen == rebuild && f.position <= end+1:\n", "	case chosen == rebuild || chosen == refuse:\n"}},
		aims:     inProcessor("^TestStandbyDoesNotFollowACutChangelog$"),
		notInSim: standbyOutsideSim,
	},
	{
		name:     "standby-of-itself",
		hazards:  []string{"B15"},
		does:     "a process is the standby of its own task, and no other process is",
		edits:    []edit{{"processor/assign/standby.go", "may[i] = may[i] && processes[i].Name != owner[id]", "may[i] = may[i] && owner[id] != \"\""}},
		aims:     []suite{assignSuite.aimed("^TestStandby")},
		notInSim: standbyOutsideSim,
	},
	{
		name:     "next-owners-not-known",
		hazards:  []string{"B15"},
		does:     "no process follows the new tasks of a move",
		edits:    []edit{{"processor/assign/standby.go", "append(slices.Clone(reading[i].Topics), topic)", "slices.Clone(reading[i].Topics)"}},
		aims:     []suite{assignSuite.aimed("^TestNextOwnersAreTheOwners$")},
		notInSim: standbyOutsideSim,
	},
	{
		name:     "tasks-of-an-undone-move-followed",
		hazards:  []string{"B15"},
		does:     "a process follows the tasks of a move that was undone",
		edits:    []edit{{"processor/switchover/switchover.go", "return s.Number > generation && s.Phase != None && s.Phase != Aborted", "return s.Number > generation && s.Phase != None"}},
		aims:     []suite{switchoverSuite.aimed("^TestPrepares$")},
		notInSim: standbyOutsideSim,
	},
	{
		name:     "standby-evicts-by-another-set",
		hazards:  []string{"B15"},
		does:     "a standby drops rows by windows that its task has replaced by longer ones",
		edits:    []edit{{"processor/restore/standby.go", "	return c, c.Set == src.App.Set\n", "	return c, true\n"}},
		aims:     []suite{restoreSuite.aimed("^TestStandbyEvictsByItsOwnRouteSetOnly$")},
		notInSim: standbyOutsideSim,
	},
}
