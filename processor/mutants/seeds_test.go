//go:build mutants

package mutants

// withoutSeeds says why the simulation cannot find a defect of a seed.
const withoutSeeds = "the simulation seeds nothing"

// seedList has the defects of seeds, and of the files of exports.
var seedList = []mutant{
	{
		name:     "seed-replaces-a-row",
		hazards:  []string{"S2"},
		does:     "a seed is taken although an event of the key was emitted in its window",
		edits:    []edit{{"dedup/seed.go", "verdict == Unique || verdict == AfterWindow:", "verdict != Late:"}},
		aims:     []suite{dedupSuite.aimed("^TestSeedIsAnEventThatWasEmittedElsewhere$")},
		notInSim: withoutSeeds,
	},
	{
		name:     "seed-without-a-window",
		hazards:  []string{"S2"},
		does:     "a seed of a later window replaces a claim that is retained",
		edits:    []edit{{"processor/judge/seed.go", "window: t.window(route), digest", "digest"}, {"processor/judge/seed.go", "c.hasPrior, c.window, c.streamTime", "c.hasPrior, t.window(route), c.streamTime"}},
		aims:     inScript("seeds", "claim-of-a-later-window"),
		notInSim: withoutSeeds,
	},
	{
		name:     "seed-from-the-future",
		hazards:  []string{"S3"},
		does:     "a seed of any time is taken",
		edits:    []edit{{"dedup/seed.go", "case ev.Time > saturate(brokerTime, w.Skew):", "case false && ev.Time > brokerTime:"}},
		aims:     inScript("seeds", "in-future"),
		notInSim: withoutSeeds,
	},
	{
		name:    "seed-moves-stream-time",
		hazards: []string{"S1"},
		does:    "a seed moves the stream time of its namespace",
		edits: []edit{{"processor/judge/seed.go", "			t.Open.SetAhead(route.NamespaceID, row.First)\n",
			"			t.Open.StreamTimes.At[route.NamespaceID], t.Open.StreamTimes.Has[route.NamespaceID] = row.First, true\n"}},
		aims:     inScript("seeds", "stream-time"),
		notInSim: withoutSeeds,
	},
	{
		name:     "seed-counts-of-an-abort",
		hazards:  []string{"S4"},
		does:     "the seeds of an aborted transaction count",
		edits:    []edit{{"processor/judge/state.go", "	t.discardJoins()\n	t.discardPacks()\n	t.discardSeeds()\n", "	t.discardJoins()\n	t.discardPacks()\n"}},
		aims:     inScript("seeds", "aborted"),
		notInSim: withoutSeeds,
	},
	{
		name:     "seed-forgets-what-it-wrote",
		hazards:  []string{"S4"},
		does:     "a seed that goes on writes again what was written after the last progress",
		edits:    []edit{{"processor/transfer/seed.go", "		if s.written[seedKey{one.Number, one.Digest}] {\n			continue\n		}\n", ""}},
		aims:     inProcessor("^TestSeedGoesOnWhereItStopped$"),
		notInSim: withoutSeeds,
	},
	{
		name:     "seed-in-progress-without-a-lease",
		hazards:  []string{"S2"},
		does:     "the lease of a claim that was in progress elsewhere has long ended",
		edits:    []edit{{"dedup/seed.go", "		claim.Since = now\n", "		claim.Since = 1\n"}},
		aims:     []suite{dedupSuite.aimed("^TestLinesOfAnotherTableAreClaims$")},
		notInSim: withoutSeeds,
	},
	{
		name:     "seed-of-a-collision-under-the-first-key",
		hazards:  []string{"S2"},
		does:     "of two seeded operations of one key the second tells its duplicates the key of the first",
		edits:    []edit{{"processor/judge/seed.go", "	if row.Digest != ev.envelope.Digest { //", "	if false { //"}},
		aims:     inScript("seeds", "claims-that-collide"),
		notInSim: withoutSeeds,
	},
	{
		name:     "export-of-a-cut-changelog",
		hazards:  []string{"S7"},
		does:     "an export reads a changelog that has lost rows",
		edits:    []edit{{"processor/transfer/snapshot.go", "s.ran && (c.Incomplete || s.start > c.Floor)", "s.ran && c.Incomplete"}},
		aims:     inProcessor("^TestExportOfACutChangelogIsRefused$"),
		notInSim: withoutSeeds,
	},
	{
		name:    "block-checksum-unchecked",
		hazards: []string{"S8"},
		does:    "a damaged block is read up to the end of the file",
		edits: []edit{{"processor/portable/reader.go", "if end := len(b) - 4; crc32.Update(crc, castagnoli, b[:end]) != binary.BigEndian.Uint32(b[end:]) {",
			"if end := len(b) - 4; crc32.Update(crc, castagnoli, b[:end]) == 1 {"}},
		aims:     []suite{portableSuite.aimed("^TestDamageIsNamed$")},
		notInSim: withoutSeeds,
	},
	{
		name:     "verify-asks-one-task",
		hazards:  []string{"S7"},
		does:     "a key that is not in the task of its digest counts as missing",
		edits:    []edit{{"processor/transfer/verify.go", "		if err != nil || result.Missing+result.Different == 0 {\n", "		if err != nil || result != nil {\n"}},
		aims:     inProcessor("^TestVerifyFindsKeysInEachTask$"),
		notInSim: withoutSeeds,
	},
	{
		name:     "verify-leaves-out-slices",
		hazards:  []string{"S7"},
		does:     "of a task with more keys than fit in memory one slice is compared",
		edits:    []edit{{"processor/transfer/verify.go", "		for slice := range n {\n			all = append(all, portion{group", "		for slice := range min(1, n) {\n			all = append(all, portion{group"}},
		aims:     inProcessor("^TestSeededKeysAreDuplicates$"),
		notInSim: withoutSeeds,
	},
}
