//go:build mutants

package mutants

// transferSuite is the suite of package transfer.
var transferSuite = suite{name: "transfer", pkg: "processor/transfer", skip: "^(Bench|Fuzz)"}

// withoutMoves says why the simulation cannot find a defect of a move to another cluster.
const withoutMoves = "the simulation has one cluster"

// clusterList has the defects of a move to another cluster.
var clusterList = []mutant{
	{
		name:     "stream-time-not-taken",
		hazards:  []string{"X1"},
		does:     "a task takes no stream time of the other cluster",
		edits:    []edit{{"processor/judge/streamtime.go", "	if t.streamTime(id) != dedup.NoStreamTime {\n", "	if true || t.streamTime(id) != dedup.NoStreamTime {\n"}},
		aims:     inScript("streamtimes", "late-stays-late"),
		notInSim: withoutMoves,
	},
	{
		name:     "stream-time-raised",
		hazards:  []string{"X2"},
		does:     "a stream time of the other cluster raises that of a task",
		edits:    []edit{{"processor/judge/streamtime.go", "	if t.streamTime(id) != dedup.NoStreamTime {\n", "	if t.streamTime(id) > max(ev.envelope.EventTime, dedup.NoStreamTime) {\n"}},
		aims:     inScript("streamtimes", "moves-none"),
		notInSim: withoutMoves,
	},
	{
		name:    "changed-window-left-behind",
		hazards: []string{"X1"},
		does:    "a task takes the stream time without what its changed window is known to have",
		edits:   []edit{{"processor/judge/streamtime.go", "	if s.Changed {\n", "	if false && s.Changed {\n"}},
		aims:    inScript("streamtimes", "changed-window"), notInSim: withoutMoves,
	},
	{
		name:    "stream-times-left-behind",
		hazards: []string{"X1"},
		does:    "an app arrives without its stream times",
		edits: []edit{
			{"processor/transfer/streamtimes.go", "			if !ok {\n", "			if ok || !ok {\n"},
			{"processor/transfer/streamtimes.go", "			if ok && (!newest", "			if false && ok && (!newest"},
		},
		aims:     inProcessor("^TestAppMovesToAnotherCluster$"),
		notInSim: withoutMoves,
	},
	{
		name:     "start-behind-the-held-offset",
		hazards:  []string{"X3"},
		does:     "an app starts behind the copy of the held offset",
		edits:    []edit{{"processor/transfer/mirror.go", "			s.start = offset + 1\n", "			s.start = offset + 2\n"}},
		aims:     []suite{transferSuite.aimed("^TestMirroredStartErrsBackwardsOnly$")},
		notInSim: withoutMoves,
	},
	{
		name:     "start-skips-the-unproven",
		hazards:  []string{"X3"},
		does:     "an app skips a record of the mirror that is not one of the tail",
		edits:    []edit{{"processor/transfer/mirror.go", "	if s.start < 0 && !s.tail[sum] {\n", "	if false && !s.tail[sum] {\n"}},
		aims:     []suite{transferSuite.aimed("^TestMirroredStartErrsBackwardsOnly$")},
		notInSim: withoutMoves,
	},
	{
		name:     "release-without-seeds",
		hazards:  []string{"X4"},
		does:     "an app that arrives is released before it has its keys",
		edits:    []edit{{"processor/app/residence.go", "	case !a.Seeded:\n		return r, kafka", "	case !a.Seeded && a.Released:\n		return r, kafka"}},
		aims:     inProcessor("^TestAppMovesToAnotherCluster$"),
		notInSim: withoutMoves,
	},
	{
		name:     "leaving-app-released",
		hazards:  []string{"X5"},
		does:     "an app that leaves is released as any other",
		edits:    []edit{{"processor/app/residence.go", "	case h.Leaving:\n		return r, h.refuseRelease()\n", ""}},
		aims:     inProcessor("^TestAppIsTakenBack$"),
		notInSim: withoutMoves,
	},
	{
		name:     "left-app-taken-back",
		hazards:  []string{"X5"},
		does:     "an app that has left is taken back",
		edits:    []edit{{"processor/app/residence.go", "	if h.Left {\n		return r, h.refuseRelease()\n", "	if h.Left && h.Arriving {\n		return r, h.refuseRelease()\n"}},
		aims:     inProcessor("^TestAppIsTakenBack$"),
		notInSim: withoutMoves,
	},
	{
		name:     "rows-without-their-tasks",
		hazards:  []string{"X6"},
		does:     "a moved row goes to the task of its digest",
		edits:    []edit{{"processor/transfer/seed.go", "		partition := one.placed\n", "		partition := int32(-1)\n"}},
		aims:     inProcessor("^TestMovedOrdersAreReplayed$"),
		notInSim: withoutMoves,
	},
	{
		name:     "another-partitioning-secret",
		hazards:  []string{"X6"},
		does:     "an app arrives with another partitioning secret",
		edits:    []edit{{"processor/app/arrive.go", "	m.HashSecret = bytes.Clone(a.HashSecret)\n", "	_ = bytes.Clone(a.HashSecret)\n"}},
		aims:     inProcessor("^TestAppMovesToAnotherCluster$"),
		notInSim: withoutMoves,
	},
	{
		name:     "export-of-an-incomplete-hold",
		hazards:  []string{"X7"},
		does:     "the file of a leaving app is written before the hold is complete",
		edits:    []edit{{"processor/transfer/leave.go", "	if len(missing)+len(undrained) > 0 {\n", "	if len(missing)+len(undrained) < 0 {\n"}},
		aims:     inProcessor("^TestFileOfAnIncompleteHoldIsRefused$"),
		notInSim: withoutMoves,
	},
	{
		name:     "export-without-its-ends",
		hazards:  []string{"X8"},
		does:     "the file of a leaving app is taken although an event was judged while it was written",
		edits:    []edit{{"processor/transfer/leave.go", "		} else if n > 0 {\n", "		} else if n < 0 {\n"}},
		aims:     inProcessor("^TestFileMissesNoEventOfTheIngress$"),
		notInSim: withoutMoves,
	},
	{
		name:     "start-at-the-last-copy",
		hazards:  []string{"X3"},
		does:     "an app starts behind the last copy of the record before the held offset",
		edits:    []edit{{"processor/transfer/mirror.go", "	if s.found {\n		return true\n	}\n", ""}, {"processor/transfer/mirror.go", "		s.found = true\n		if s.start < 0 {\n", "		s.found = true\n		if true {\n"}, {"processor/transfer/mirror.go", "	return s.found\n", "	return false\n"}},
		aims:     []suite{transferSuite.aimed("^TestClusterMoveExplored$")},
		notInSim: withoutMoves,
	},
	{
		name:     "export-after-the-app-left",
		hazards:  []string{"X7"},
		does:     "an app that leaves is exported although it has left",
		edits:    []edit{{"processor/app/residence.go", "	if err == nil && h.Left {\n", "	if err == nil && h.Left && h.Arriving {\n"}},
		aims:     inProcessor("^TestAppIsTakenBack$"),
		notInSim: withoutMoves,
	},
}
