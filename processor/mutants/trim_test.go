//go:build mutants

package mutants

const purgeOutsideSim = "a bubble ends before the first deletion, so its changelogs keep all records"

// trimList has the defects of trimming a changelog.
var trimList = []mutant{
	{
		name:    "trim-before-the-floor-commits",
		hazards: []string{"T10"},
		does:    "the changelog is deleted below its newest fence, which no checkpoint states as floor",
		edits: []edit{{"processor/board.go", "		d.floor = t.TrimTo()\n", `		if n := len(t.Committed.Fences); n > 0 {
			d.floor = t.Committed.Fences[n-1].Offset
		}
`}},
		aims:     inProcessor("^TestKillBetweenFloorAndTrim$|^TestClampedRowStaysInTheChangelog$"),
		notInSim: purgeOutsideSim,
	},
	{
		name:     "fence-without-clamped-rows",
		hazards:  []string{"T11"},
		does:     "a fence takes stream time for the latest first seen time, although a clamped event is ahead of it",
		edits:    []edit{{"processor/judge/judge.go", "		t.Open.SetAhead(route.NamespaceID, admitted) // its source is not read least far, or it was clamped\n", ""}},
		aims:     inProcessor("^TestClampedRowStaysInTheChangelog$"),
		notInSim: purgeOutsideSim,
	},
	{
		name:     "sweep-keeps-fences",
		hazards:  []string{"T12"},
		does:     "after a sweep the fences stay that omit what the dropped ones said",
		edits:    []edit{{"processor/wire/fences.go", "	c.SetFloor(max(began, c.Floor), max(rows, c.FloorRows))\n", "	c.Floor, c.FloorRows = max(began, c.Floor), max(rows, c.FloorRows)\n	c.Fences = slices.DeleteFunc(slices.Clone(c.Fences), func(f Fence) bool { return f.Offset <= c.Floor })\n"}},
		aims:     []suite{wireSuite.aimed("^TestFencesAgainstAModel$")},
		notInSim: purgeOutsideSim,
	},
	{
		name:     "sweep-writes-applied-rows",
		hazards:  []string{"T12"},
		does:     "a sweep does not see the open transaction, and writes an older row after a newer one",
		edits:    []edit{{"state/rows.go", "newHeapSource(s.active, d)", "newHeapSource(s.active.appliedRows(), d)"}},
		aims:     inState("^TestRowsFromReadsTheOpenTransaction$"),
		notInSim: "the simulation's changelogs are too short for a sweep",
	},
	{
		name:    "packs-with-one-key",
		hazards: []string{"T16"},
		does:    "packs of two transactions have the same key, so compaction removes one of them",
		edits:   []edit{{"processor/wire/rows.go", "uint64(offset))", "uint64(offset*0))"}},
		aims:    []suite{judgeSuite.aimed("^TestPacksAreInOrder$")},
	},
	{
		name:    "aborted-pack-is-sent",
		hazards: []string{"T16"},
		does:    "the rows of an aborted transaction are in the first pack of the next one",
		edits:   []edit{{"processor/judge/pack.go", "func (t *State) discardPacks() {\n	t.packs.pack.Reset()\n", "func (t *State) discardPacks() {\n"}},
		aims:    []suite{judgeSuite.aimed("^TestPacksAreInOrder$")},
	},
	{
		name:    "pack-before-its-rows",
		hazards: []string{"T16"},
		does:    "the checkpoint is in the changelog before the last rows of its transaction",
		edits:   []edit{{"processor/judge/state.go", "	t.sendPack(e)\n	t.writeSeedCounts(e)\n", "	defer t.sendPack(e)\n	t.writeSeedCounts(e)\n"}},
	},
	{
		name:    "recycled-too-early",
		hazards: []string{"A20"},
		does:    "the memory of polled records is used again while the transaction still produces them",
		edits:   []edit{{"processor/transaction.go", "		fetches = x.poll(ctx, wait,", "		x.recycle()\n		fetches = x.poll(ctx, wait,"}},
	},
}
