//go:build mutants

package mutants

// checkpointList has the defects of partial checkpoints.
var checkpointList = []mutant{
	{
		name:     "partial-relative-to-aborted",
		hazards:  []string{"T17"},
		does:     "the counts that an aborted transaction changed stay, and the next partial checkpoint is relative to others",
		edits:    []edit{{"processor/judge/state.go", "	t.Counts.Discard(&t.OpenCounts)\n", ""}},
		aims:     inJudge("^TestFoldIsTheState$"),
		notInSim: "its oracle sees it only after a restore of a task that aborted",
	},
	{
		name:    "partial-numbered-at-its-abort",
		hazards: []string{"T17"},
		does:    "an aborted transaction uses up a number, so the next partial checkpoint follows none",
		edits: []edit{{"processor/judge/checkpoint.go", "	t.openWritten = t.written\n	t.openWritten.number++\n",
			"	t.written.number++\n	t.openWritten = t.written\n"}},
		aims:     inJudge("^TestFoldIsTheState$"),
		notInSim: "its oracle sees it only after a restore of a task that aborted",
	},
	{
		name:    "bypass-writes-partial-checkpoints",
		hazards: []string{"T20"},
		does:    "a task that bypasses its store writes partial checkpoints, which no restore that ended meanwhile can add",
		edits:   []edit{{"processor/judge/checkpoint.go", "return t.Blind || w.wholeBytes == 0", "return w.wholeBytes == 0"}},
		aims:    inJudge("^TestRestoreThatEndsDuringABypass$"),
	},
	{
		name:    "trim-deletes-the-whole-checkpoint",
		hazards: []string{"T19"},
		does:    "a new floor comes with a partial checkpoint, and the whole one below it is trimmed",
		edits: []edit{
			{"processor/judge/checkpoint.go", "		t.Open.Floor != t.Committed.Floor || ", "		"},
			{"processor/judge/trim.go", "return min(t.Committed.Floor, t.written.wholeAt)", "return t.Committed.Floor"},
		},
		aims:     inJudge("^TestFoldIsTheState$"),
		notInSim: purgeOutsideSim,
	},
	{
		name:     "fold-over-a-gap",
		hazards:  []string{"T18"},
		does:     "a partial checkpoint is folded onto an older one than that before it",
		edits:    []edit{{"processor/wire/fold.go", "return f.IsWhole() && sequence == f.newest.Sequence+1 && number == f.number+1", "return f.IsWhole()"}},
		aims:     []suite{wireSuite.aimed("^TestFoldRefusesAGap$")},
		notInSim: "its changelogs have no gap",
	},
	{
		name:     "restore-goes-on-after-a-gap",
		hazards:  []string{"T18"},
		does:     "a restore that reads a checkpoint after a gap moves the store's position past it",
		edits:    []edit{{"processor/restore/checkpoint.go", " && (!r.fold.Has() || r.fold.IsWhole())", ""}},
		aims:     []suite{restoreSuite.aimed("^TestCheckpointOfARestore$")},
		notInSim: "its changelogs have no gap",
	},
	{
		name:     "restore-renumbers-the-checkpoint",
		hazards:  []string{"T21"},
		does:     "a restore stores the checkpoint that it read as a whole one, to which the former owner's next is relative",
		edits:    []edit{{"processor/restore/checkpoint.go", "r.fold.Sequence() == r.Checkpoint.Sequence && r.keepsUp()", "r.fold.Sequence() < 0"}},
		aims:     []suite{restoreSuite.aimed("^TestFormerOwnerGoesOnAfterARestore$")},
		notInSim: "a task must come back to a process while its former owner goes on: one of 400 seeds",
	},
	{
		name:     "decide-believes-a-partial-checkpoint",
		hazards:  []string{"T19"},
		does:     "a changelog without its newest whole checkpoint counts as whole",
		edits:    []edit{{"processor/restore/decide.go", " && !(c == f.logged && f.loggedLacks)", ""}},
		aims:     []suite{restoreSuite.aimed("^TestDecideNames$")},
		notInSim: "its changelogs keep their whole checkpoint",
	},
	{
		name:     "aborted-senders-count",
		hazards:  []string{"T22"},
		does:     "the senders of the duplicates of an aborted transaction count, and count again when it is repeated",
		edits:    []edit{{"processor/app/countchanges.go", "	c.senders.discard()\n", ""}},
		aims:     inScript("senders", "an-abort-counts-nothing"),
		notInSim: "its tasks restore after an abort, and read the counts of the checkpoint",
	},
	{
		name:    "senders-lost-with-the-process",
		hazards: []string{"T22"},
		does:    "a partial checkpoint lacks the senders of its duplicates, so they are lost with the process",
		edits:   []edit{{"processor/judge/checkpoint.go", "	t.senders = t.OpenCounts.AppendSenders(t.senders[:0])\n", ""}},
		aims:    inScript("senders", "counts-survive"),
	},
}

func inJudge(run string) []suite { return []suite{judgeSuite.aimed(run)} }
