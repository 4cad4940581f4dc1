//go:build mutants

package mutants

const noSetInSim = "its sets change only windows, and a route without events"

// setList has the defects of route sets and levels.
var setList = []mutant{
	{
		name:     "judges-behind-the-checkpoint",
		hazards:  []string{"L1"},
		does:     "a process judges a task that has gone over to a newer route set",
		edits:    []edit{{"processor/judge/routeset.go", "return t.Committed.Set > t.App.Set", "return t.Committed.Set < 0"}},
		aims:     inJudge("^TestTaskNeverGoesBackToAnOlderSet$"),
		notInSim: noSetInSim,
	},
	{
		name:    "goes-back-to-an-older-set",
		hazards: []string{"L2"},
		does:    "a task takes the route set of its process, also an older one",
		edits: []edit{
			{"processor/judge/routeset.go", "	if set <= before {\n", "	if set == before {\n"},
			{"processor/judge/routeset.go", "return t.Committed.Set > t.App.Set", "return t.Committed.Set < 0"},
		},
		aims:     inJudge("^TestTaskNeverGoesBackToAnOlderSet$"),
		notInSim: noSetInSim,
	},
	{
		name:     "retired-route-forgotten",
		hazards:  []string{"L3"},
		does:     "records of a removed route find no route",
		edits:    []edit{{"processor/app/sets.go", "	if current == nil {\n		return nil\n	}\n	has :=", "	if current == nil || current.Number > 0 {\n		return nil\n	}\n	has :="}},
		aims:     []suite{appSuite.aimed("^TestRouteOfAnOlderSetIsKept$")},
		notInSim: noSetInSim,
	},
	{
		name:    "set-after-the-manifest",
		hazards: []string{"L4"},
		does:    "the rows of a set are not in the transaction of the manifest",
		edits: []edit{{"processor/app/join.go", "		_, err := now.reconcile(t, file, s.cfg.KeySecret.Bytes())\n		return err\n	}, rows...)\n",
			"		_, err := now.reconcile(t, file, s.cfg.KeySecret.Bytes())\n		return err\n	}, rows[:0]...)\n	if err == nil {\n" +
				"		err = writeRow(ctx, s.Client, t, setPrefix+fmt.Sprint(set.Number), set)\n	}\n	if err == nil {\n" +
				"		err = writeRow(ctx, s.Client, t, setKey, setInForce{Number: set.Number})\n	}\n"}},
		aims:     inProcessor("^TestSetIsOneTransactionWithTheManifest$"),
		notInSim: noSetInSim,
	},
	{
		name:     "finalizes-by-old-rows",
		hazards:  []string{"L5"},
		does:     "the row of an instance that went back to the build before counts as its answer",
		edits:    []edit{{"processor/app/finalize.go", "		case row.Answers != ask:\n", "		case row.At.IsZero():\n"}},
		aims:     []suite{appSuite.aimed("^TestFinalizeRefusesWhoIsBehind$")},
		notInSim: noSetInSim,
	},
	{
		name:     "finalizes-before-all-read",
		hazards:  []string{"L5"},
		does:     "the level is raised although a process does not read it",
		edits:    []edit{{"processor/app/finalize.go", "		case row.Newest < wire.LevelNewest:\n", "		case row.Newest < wire.LevelOldest:\n"}},
		aims:     []suite{appSuite.aimed("^TestFinalizeRefusesWhoIsBehind$")},
		notInSim: noSetInSim,
	},
	{
		name:     "level-one-without-windows",
		hazards:  []string{"W4"},
		does:     "a task without a transaction since the level was raised has no window, so a change of it is not noted",
		edits:    []edit{{"processor/app/windows.go", "	if c.Set == 0 && rt.Set > 0 {\n", "	if c.Set == 0 && rt.Set < 0 {\n"}},
		aims:     []suite{appSuite.aimed("^(TestHorizonsGoByTheSetOfTheCheckpoint|TestKnownUnderKeepsOtherNamespaces)$")},
		notInSim: noSetInSim,
	},
	{
		name:     "source-in-front-is-appended",
		does:     "a key source in front of those of a route counts as one behind them, so copies of stored events get other keys",
		edits:    []edit{{"dedup/rules/source.go", "if older.Keys = r.Keys[:n]; older", "if older.Keys = r.Keys[len(r.Keys)-n:]; older"}},
		aims:     []suite{rulesSuite.aimed("^TestAppendedSourceChangesNoKey$")},
		notInSim: noSetInSim,
	},
}
