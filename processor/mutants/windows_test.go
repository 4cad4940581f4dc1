//go:build mutants

package mutants

const noWindowInSim = "in most of its seeds few events come at the edges of a changed window"

// windowList has the defects of windows that change while the app runs, and of keys with several
// windows.
var windowList = []mutant{
	{
		name:     "ended-keys-of-a-restart",
		does:     "keys whose window ends with the first stream time after a restart are not counted",
		edits:    []edit{{"processor/app/counts.go", "			known.GoOn(known.Window, of.StreamTimes.Of(namespaceID))\n", ""}},
		aims:     inScript("windows", "ended-keys"),
		notInSim: "the simulation reads no such metric",
	},
	{
		name:     "lines-over-the-rate",
		does:     "a flood of duplicates fills the disk with a line for each",
		edits:    []edit{{"processor/app/sampledline.go", "	if l.logged >= cmp.Or(l.Max, linesMax) {", "	if l.logged >= 1<<20*cmp.Or(l.Max, linesMax) {"}},
		aims:     []suite{judgeSuite.aimed("^TestDuplicatesOfTopicsAreLogged$")},
		notInSim: "the simulation counts no lines of a log",
	},
	{
		name:     "hits-of-the-last-duplicate",
		does:     "the row of a key counts its last duplicate only",
		edits:    []edit{{"dedup/hits.go", "Hits: claim.Hits + 1,", "Hits: 1,"}},
		aims:     []suite{dedupSuite.aimed("^TestHitsAreInTheRow$")},
		notInSim: "the simulation counts no hits",
	},
	{
		name:     "window-without-since",
		hazards:  []string{"W1"},
		does:     "a row that the former window had let go decides, if the store still has it",
		edits:    []edit{{"dedup/window.go", "		return max(horizon, w.Since)\n", "		return horizon\n"}},
		aims:     []suite{dedupSuite.aimed("^TestChang"), judgeSuite.aimed("^TestScripts$/^window_changes$")},
		notInSim: noWindowInSim,
	},
	{
		name:     "window-without-late-before",
		hazards:  []string{"W2"},
		does:     "an event that the former window refused as late is judged by the new one",
		edits:    []edit{{"dedup/window.go", "	return w.Changed && t < w.LateBefore || streamTime", "	return streamTime"}},
		aims:     []suite{dedupSuite.aimed("^TestChang"), judgeSuite.aimed("^TestScripts$/^window_changes$")},
		notInSim: noWindowInSim,
	},
	{
		name:     "known-since-the-new-window",
		hazards:  []string{"W1"},
		does:     "the rows count as known for the retention of the new window",
		edits:    []edit{{"dedup/windowchange.go", "	return next.Known(w.Horizon(streamTime), late)\n", "	return next.Known(saturate(streamTime, -next.Retention()), late)\n"}},
		aims:     []suite{dedupSuite.aimed("^TestChang")},
		notInSim: noWindowInSim,
	},
	{
		name:     "late-before-by-the-last-window",
		hazards:  []string{"W3"},
		does:     "two lengthenings in a row make every event late for as long as the first one reaches",
		edits:    []edit{{"dedup/windowchange.go", "		late = max(late, w.LateBefore)\n", "		late = max(late, saturate(w.Since, w.Size))\n"}},
		aims:     []suite{dedupSuite.aimed("^TestLongerTwiceMakesNoEventInOrderLate$")},
		notInSim: noWindowInSim,
	},
	{
		name:     "evicts-by-a-set-ahead",
		hazards:  []string{"W4"},
		does:     "a process evicts and trims by its own route set, before the task has gone over to it",
		edits:    []edit{{"processor/app/windows.go", "	if rt.setOf(c) != rt.Set {\n", "	if c.Set < 0 {\n"}},
		aims:     []suite{appSuite.aimed("^TestHorizonsGoByTheSetOfTheCheckpoint$")},
		notInSim: noWindowInSim,
	},
	{
		name:     "change-dropped-too-early",
		hazards:  []string{"W5"},
		does:     "what is known of a changed window is dropped one window after the change",
		edits:    []edit{{"dedup/windowchange.go", "w.Since <= saturate(streamTime, -w.Retention())", "w.Since <= saturate(streamTime, -w.Size)"}},
		aims:     []suite{dedupSuite.aimed("^TestChang"), judgeSuite.aimed("^TestScripts$/^window_changes$")},
		notInSim: noWindowInSim,
	},
	{
		name:     "shorter-window-answers-no-one",
		hazards:  []string{"W6"},
		does:     "a shorter window evicts claims whose requests wait for ever",
		edits:    []edit{{"processor/judge/waiting.go", "	if t.Open.Set == t.Committed.Set || t.Waiting == nil {\n", "	if t.Open.Set > 0 || t.Waiting == nil {\n"}},
		aims:     []suite{judgeSuite.aimed("^TestScripts$/^window_changes_claims$")},
		notInSim: noWindowInSim,
	},
	{
		name:     "late-event-claims-again",
		hazards:  []string{"W7"},
		does:     "a late event behind the window of a retained claim is dispatched",
		edits:    []edit{{"processor/judge/judge.go", "(c.replaced == nil || c.window.Over(c.replaced.First, admitted))", "c.replaced == nil"}},
		aims:     []suite{judgeSuite.aimed("^TestScripts$/^window_changes_claims$")},
		notInSim: noWindowInSim,
	},
	{
		name:    "earlier-window-forgotten",
		hazards: []string{"T24"},
		does:    "the row of a window is lost when the key gets a later one",
		edits:   []edit{{"processor/judge/earlier.go", "		t.put(e, &change{row: &earlier})\n", "		_ = earlier\n"}},
		aims:    []suite{judgeSuite.aimed("^TestScripts$/^earlier$")},
	},
	{
		name:    "window-before-not-linked",
		hazards: []string{"T24"},
		does:    "the row above one of an earlier window does not lead to it",
		edits:   []edit{{"processor/judge/earlier.go", "		t.put(e, &change{row: &above, replaced: c.descent.Above})\n", "		_ = above\n"}},
		aims:    []suite{judgeSuite.aimed("^TestScripts$/^earlier$")},
	},
	{
		name:     "first-before-an-unlinked-row",
		hazards:  []string{"T25"},
		does:     "before a row that may have replaced another one an event is unique",
		edits:    []edit{{"dedup/earlier.go", "	return ev.Time < r.First && r.Link != LinkUnknown && !w.Covers", "	return ev.Time < r.First && !w.Covers"}},
		aims:     []suite{dedupSuite.aimed("^TestUnlinkedRowMakesEarlierEventsLate$"), judgeSuite.aimed("^TestScripts$/^seeds$")},
		notInSim: "few of its events are before the rows of seeds",
	},
	{
		name:     "earlier-window-left-behind",
		hazards:  []string{"T26"},
		does:     "a move puts the row of an earlier window where no event of its key comes",
		edits:    []edit{{"processor/move/copier.go", "		key := row.Key()\n", "		key := row.Digest\n"}},
		aims:     []suite{processorSuite.aimed("^TestEarlierWindowsMoveAndAreForgotten$")},
		notInSim: "its apps do not move",
	},
}
