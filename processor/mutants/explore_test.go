//go:build mutants

package mutants

const exploredOnly = "it needs an order of steps that the exploration visits and a run rarely has"

// exploreList has defects of the decisions that explorations drive.
var exploreList = []mutant{
	{
		name:     "explored-floor-includes-the-horizon",
		hazards:  []string{"T10"},
		does:     "a fence is due although its latest row lies at the horizon and decides",
		edits:    []edit{{"processor/wire/fences.go", "return e.At >= horizons[e.NamespaceID] })", "return e.At > horizons[e.NamespaceID] })"}},
		aims:     []suite{restoreSuite.aimed("^TestTrimExplored$")},
		notInSim: purgeOutsideSim,
	},
	{
		name:     "explored-progress-of-one-partition",
		does:     "outcomes count as read up to the time of the partition that was read the farthest",
		edits:    []edit{{"processor/wire/progress.go", "return min(o.CountedAt, slices.Min(o.ReadTo))", "return min(o.CountedAt, slices.Max(o.ReadTo))"}},
		aims:     []suite{exploreSuite.aimed("^TestTakeoverExplored$")},
		notInSim: exploredOnly,
	},
	{
		name:     "explored-started-claim-taken-over",
		does:     "the lease of a started claim ends",
		edits:    []edit{{"dedup/evidence.go", "	case claim.StartID != nil:\n		return false // no lease ends a started claim\n", ""}},
		aims:     []suite{exploreSuite.aimed("^TestTakeoverExplored$")},
		notInSim: exploredOnly,
	},
	{
		name:     "explored-lease-without-the-executor",
		does:     "a lease ends although the executor's group has not passed the event",
		edits:    []edit{{"dedup/evidence.go", "return !rule.HasGroup || began < e.ExecutorPassedTo", "return true"}},
		aims:     []suite{exploreSuite.aimed("^TestTakeoverExplored$")},
		notInSim: exploredOnly,
	},
	{
		name:     "explored-change-forgets-since",
		does:     "a window that became longer does not note since when its rows are known",
		edits:    []edit{{"dedup/windowchange.go", "return next.Known(w.Horizon(streamTime), late)", "return next.Known(math.MinInt64/4, late)"}, {"dedup/windowchange.go", "package dedup\n", "package dedup\n\nimport \"math\"\n"}},
		aims:     []suite{exploreSuite.aimed("^TestSetsExplored$")},
		notInSim: exploredOnly,
	},
	{
		name:     "explored-seed-over-a-row",
		does:     "a seed is taken although a row decides on its key",
		edits:    []edit{{"dedup/seed.go", "	verdict, row := Decide(ev, prior, found, w, streamTime)\n", "	verdict, row := Decide(ev, prior, false, w, streamTime)\n"}},
		aims:     []suite{exploreSuite.aimed("^TestSeedsExplored$")},
		notInSim: exploredOnly,
	},
}
