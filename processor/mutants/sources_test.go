//go:build mutants

package mutants

// sourceList has the defects of stream time that follows the sources of a namespace.
var sourceList = []mutant{
	{
		name:    "time-of-the-fastest-source",
		hazards: []string{"T27"},
		does:    "stream time is the highest event time of all sources",
		edits:   []edit{{"processor/wire/sources.go", "		least = min(least, max(s.Front[i], s.Bound[i]))\n", "		_ = i\n"}},
		aims:    []suite{wireSuite.aimed("^TestLeastOfSources$"), processorSuite.aimed("^TestFirstStartOnATopicWithHistory$")},
	},
	{
		name:    "uncounted-topic-is-read",
		hazards: []string{"T28"},
		does:    "a topic whose partitions no router has counted keeps no other source back",
		edits:   []edit{{"processor/wire/sources.go", "		if s.Topics[i].CountedAt < now-countHolds {\n", "		if i < 0 {\n"}},
		aims:    []suite{wireSuite.aimed("^TestLeastOfSources$")},
	},
	{
		name:    "count-without-a-date",
		hazards: []string{"T28"},
		does:    "partitions that were ever counted keep no time back for one that was added since, while the app was down",
		edits:   []edit{{"processor/wire/sources.go", "		if s.Topics[i].CountedAt < now-countHolds {\n", "		if s.Topics[i].CountedAt == dedup.NoStreamTime {\n"}},
		aims:    []suite{judgeSuite.aimed("^TestPartitionAddedWhileNoRouterCountedIsNotLate$")},
	},
	{
		name:    "count-of-the-future",
		hazards: []string{"T28"},
		does:    "a count holds for longer than a minute if the router's estimate of broker time is ahead",
		edits:   []edit{{"processor/judge/sources.go", "min(in.CountedAt, stored))\n", "in.CountedAt)\n"}},
		aims:    []suite{judgeSuite.aimed("^TestCountIsNoLaterThanItsRecord$")},
	},
	{
		name:    "end-without-a-date",
		hazards: []string{"T29"},
		does:    "a source that was read to a broker time counts as read to the record that says so",
		edits:   []edit{{"processor/judge/sources.go", "			s.ReadTo(i, min(r.To, stored))\n", "			s.ReadTo(i, stored)\n"}},
		aims:    []suite{judgeSuite.aimed("^TestEndOfASourceHasADate$")},
	},
	{
		name:    "aborted-fronts",
		hazards: []string{"T29"},
		does:    "the router says of a source what came of it in an aborted transaction",
		edits:   []edit{{"processor/app/marks.go", "		h.openFronts = append(h.openFronts[:0], h.fronts...)\n", ""}},
		aims:    []suite{appSuite.aimed("^TestFrontsAreOfRoutedRecords$")},
	},
	{
		name:    "future-moves-fronts",
		hazards: []string{"T30"},
		does:    "an event of the far future moves the front of its source",
		edits:   []edit{{"processor/judge/router.go", "	if at > r.now+route.Span.Skew {\n", "	if r.now < 0 {\n"}},
		aims:    []suite{judgeSuite.aimed("^TestFutureEventMovesNoFront$")},
	},
	{
		name:    "own-source-unheeded",
		hazards: []string{"T31"},
		does:    "an event is late by stream time alone, so its verdict depends on how far other sources were read",
		edits:   []edit{{"processor/judge/judge.go", "	c.front = max(c.streamTime, t.front(ev))\n", "	c.front = c.streamTime\n"}},
		aims:    []suite{judgeSuite.aimed("^TestLateByItsOwnSource$")},
	},
	{
		name:    "moved-rows-without-their-time",
		hazards: []string{"T32"},
		does:    "the tasks of another generation do not know how late the copied rows are, so a floor may drop some",
		edits:   []edit{{"processor/wire/firstcheckpoint.go", "			first.SetAhead(c.Sources[n].NamespaceID, c.Sources[n].Highest)\n", "			_ = n\n"}},
		aims:    []suite{wireSuite.aimed("^TestFirstCheckpointKnowsWhatAnyOldTaskKnew$")},
	},
	{
		name:    "polled-offsets",
		hazards: []string{"A21"},
		does:    "a commit has what was polled, so records that wait for those of other partitions are lost",
		edits:   []edit{{"processor/app/marks.go", "				p.Offset, p.LeaderEpoch = h.open, h.openEpoch\n", ""}},
		aims:    []suite{appSuite.aimed("^TestOffsetsAreOfRoutedRecords$")},
	},
	{
		name:    "first-fetch-goes-ahead",
		hazards: []string{"T33"},
		does:    "a partition of which nothing was fetched yet makes no other one wait",
		edits:   []edit{{"processor/timeorder.go", "			until = min(until, later(p.time, o.room))\n", ""}},
		aims:    []suite{processorSuite.aimed("^TestBacklogsGoInTheOrderOfTime$")},
	},
}
