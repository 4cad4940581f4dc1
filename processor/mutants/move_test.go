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
		name:     "acts-before-the-copies",
		hazards:  []string{"M3"},
		does:     "a switch acts before the rows of the closed tasks are copied",
		edits:    []edit{{"processor/switchover/switchover.go", "p == Closing && f.Closed && f.Copied", "p == Closing && f.Closed"}},
		aims:     []suite{switchoverSuite.aimed("^TestSwitch$")},
		notInSim: "it switches nothing",
	},
	{
		name:     "copies-passed-no-closed-checkpoint",
		hazards:  []string{"M3"},
		does:     "the copier does not read on after it has read the closed checkpoints",
		edits:    []edit{{"processor/move/move.go", "if err := r.copier.pass(ctx, r.watch); err != nil { // after", "if err := ctx.Err(); err != nil { // after"}, {"processor/move/move.go", "	if err := r.copier.pass(ctx, r.watch); err != nil {\n", "	if err := ctx.Err(); err != nil {\n"}},
		aims:     inProcessor("^TestMove$"),
		notInSim: "it moves nothing",
	},
	{
		name:     "replaced-run-acts",
		hazards:  []string{"M5"},
		does:     "a run of the command that was replaced writes the next phase",
		edits:    []edit{{"processor/app/switch.go", " || now.Leader != s.Leader:\n\t\t\treturn nil, ErrReplaced", ":\n\t\t\treturn nil, ErrReplaced"}},
		aims:     inProcessor("^TestReplacedRunMayNotAct$"),
		notInSim: "it moves nothing",
	},
	{
		name:     "forwards-nothing",
		hazards:  []string{"M6"},
		does:     "what reaches the old repartition topic after the act is skipped",
		edits:    []edit{{"processor/judge/forward.go", "		e.produce(out, from)\n", "		_ = out\n"}},
		aims:     inProcessor("^TestSleepingFrontIsForwarded$"),
		notInSim: "it moves nothing",
	},
	{
		name:     "stale-router-routes",
		hazards:  []string{"M7"},
		does:     "a process that has not gone over to the new partitions routes to the old ones",
		edits:    []edit{{"processor/app/hold.go", "if h.hold == nil && generation < h.change.Number {", "if h.hold == nil && generation < 0 {"}},
		aims:     []suite{appSuite.aimed("^TestStaleRouterIsHeld$")},
		notInSim: "it moves nothing",
	},
	{
		name:     "moves-with-another-set",
		hazards:  []string{"M8"},
		does:     "a switch acts although the routes have changed since the tasks closed",
		edits:    []edit{{"processor/app/switch.go", "if set.Number != act.Set {", "if false {"}},
		aims:     inProcessor("^TestRoutesChangedDuringMove$"),
		notInSim: "it moves nothing",
	},
	{
		name:     "closed-task-judges",
		does:     "an old task that has closed judges what a front sends to it",
		edits:    []edit{{"processor/switchover/switchover.go", "			return Judge\n		}\n		return Wait\n", "			return Judge\n		}\n		return Judge\n"}},
		aims:     []suite{switchoverSuite.aimed("^TestSwitch$")},
		notInSim: "it switches nothing",
	},
}
