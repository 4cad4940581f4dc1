//go:build mutants

package mutants

// moveList has the defects of holds and moves.
var moveList = []mutant{
	{
		name:    "assigned-without-the-hold",
		hazards: []string{"M1"},
		does:    "a process that gets a partition does not look for a hold",
		edits: []edit{
			{"processor/routestart.go", "r.on.Load().rt.Topology, r.holds)\n	if err", "r.on.Load().rt.Topology, nil)\n	if err"},
			{"processor/hold.go", "w.holds.Read(ctx, w.source.Client, w.rt.Topology)", "ctx.Err()"},
		},
		aims:     inProcessor("^TestHeldPartitionMovesHeld$"),
		notInSim: "it holds nothing",
	},
	{
		name:     "held-without-drain",
		hazards:  []string{"M1"},
		does:     "a hold counts as complete while the tasks still judge",
		edits:    []edit{{"processor/front/hold.go", "len(s.NotHeld) == 0 && len(s.Undrained) == 0", "len(s.NotHeld) == 0"}},
		aims:     []suite{frontSuite.aimed("^TestHoldIsComplete$")},
		notInSim: "it holds nothing",
	},
	{
		name:     "abort-after-the-act",
		does:     "a switch may be aborted after its act",
		edits:    []edit{{"processor/switchover/switchover.go", "Acted:     {Done},", "Acted:     {Done, Aborted},"}},
		aims:     []suite{switchoverSuite.aimed("^TestActAndAbortExcludeEachOther$")},
		notInSim: "it switches nothing",
	},
	{
		name:     "closed-task-judges",
		does:     "an old task that has closed judges what a front sends to it",
		edits:    []edit{{"processor/switchover/switchover.go", "	return Wait\n", "	return Judge\n"}},
		aims:     []suite{switchoverSuite.aimed("^TestSwitch$")},
		notInSim: "it switches nothing",
	},
}
