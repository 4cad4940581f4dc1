//go:build mutants

package mutants

// oracleSuite has the tests of the oracle and its ledger, which judge the other ones.
var oracleSuite = suite{name: "oracle", pkg: "processor/oracle", skip: "^(Bench|Fuzz)"}

func inLedger(run string) []suite { return []suite{oracleSuite.aimed(run)} }

// ledgerList has the defects of the audit of a running app: a violation that it misses, or one
// that it invents.
var ledgerList = []mutant{
	{
		name:     "audit-ignores-what-waits",
		hazards:  []string{"V1"},
		does:     "an audit counts records as judged that were only routed, and finds them lost",
		edits:    []edit{{"processor/selfaudit/cut.go", "				if !e.FromIngress && !e.IsProgress && e.Outcome == nil && !e.IsSeed {\n", "				if e.FromIngress && !e.IsProgress && e.Outcome == nil && !e.IsSeed {\n"}},
		aims:     inProcessor("^TestSelfAuditLeavesWhatWaits$"),
		notInSim: "the simulation has no audit",
	},
	{
		name:     "audit-goes-on-after-a-deletion",
		hazards:  []string{"V2"},
		does:     "an audit says that the promise held although records were deleted before it read them",
		edits:    []edit{{"processor/selfaudit/position.go", "	if len(deleted) > 0 {\n		return nil, fmt.Errorf(\"records were", "	if len(deleted) > 1<<30 {\n		return nil, fmt.Errorf(\"records were"}},
		aims:     inProcessor("^TestSelfAuditBeginsWhereRecordsWereDeleted$"),
		notInSim: "the simulation has no audit",
	},
	{
		name:     "audit-forgets-former-first-events",
		hazards:  []string{"V1"},
		does:     "an audit that read rows further than inputs finds duplicates of a former first event lost",
		edits:    []edit{{"processor/oracle/ledger.go", "		for _, row := range l.former[d] {\n", "		for _, row := range l.former[d][:0] {\n"}},
		aims:     inLedger("^TestLedgerFindsNothingInCleanPages$"),
		notInSim: "the simulation has no audit",
	},
	{
		name:     "audit-judges-by-the-window-in-force",
		hazards:  []string{"V1"},
		does:     "an audit across a longer window finds what the shorter one allowed",
		edits:    []edit{{"processor/oracle/ledgertask.go", "			if s.Number == set && w.NamespaceID == space {\n				return w.Window\n", "			if s.Number >= set && w.NamespaceID == space {\n				return l.spaces[space].longest\n"}},
		aims:     inLedger("^TestLedgerFollowsAChangedWindow$"),
		notInSim: "the simulation has no audit",
	},
	{
		name:     "audit-wants-the-output-of-a-seed",
		hazards:  []string{"V1"},
		does:     "an audit finds each seeded key lost",
		edits:    []edit{{"processor/oracle/ledgerrow.go", "NeedsOut: !seeded,", "NeedsOut: true,"}},
		aims:     inLedger("^TestLedgerTakesSeeds$"),
		notInSim: "the simulation has no audit",
	},
	{
		name:     "audit-checks-by-other-policies",
		hazards:  []string{"V1"},
		does:     "an audit of a range in which a policy changed judges all of it by the new one",
		edits:    []edit{{"processor/selfaudit/sets.go", "			if !isFollowed(&c) {\n", "			if !isFollowed(&c) && c.Field == \"key\" {\n"}},
		aims:     inProcessor("^TestSelfAuditOverChangedRoutes$"),
		notInSim: "the simulation has no audit",
	},
	{
		name:     "audit-believes-each-late-event",
		hazards:  []string{"V2"},
		does:     "an audit finds nothing if an event is dead-lettered as late that was not late",
		edits:    []edit{{"processor/oracle/ledgerclose.go", "		case !l.isLate(in):\n", "		case !l.isLate(in) && !in.Keyed:\n"}},
		aims:     inLedger("^TestLedgerFindsWhatIsPlanted$"),
		notInSim: "the simulation has no audit",
	},
	{
		name:     "audit-takes-an-output-twice",
		hazards:  []string{"V2"},
		does:     "an audit finds nothing if an output comes twice",
		edits:    []edit{{"processor/oracle/ledgerclose.go", "			if out.done {\n", "			if _, known := l.keys[out.Digests[0]]; known || out.done {\n"}},
		aims:     inLedger("^TestLedgerFindsWhatIsPlanted$"),
		notInSim: "the simulation has no audit",
	},
	{
		name:     "audit-believes-each-drop",
		hazards:  []string{"V2"},
		does:     "an audit finds nothing if an event is dropped as a duplicate that has no first event",
		edits:    []edit{{"processor/oracle/ledgerinput.go", "	case in.caused && route.Duplicates == Drop && !l.mayBeOther(in, route):\n", "	case route.Duplicates == Drop && !l.mayBeOther(in, route):\n"}},
		aims:     inLedger("^TestLedgerFindsWhatIsPlanted$"),
		notInSim: "the simulation has no audit",
	},
	{
		name:     "audit-knows-one-route-of-an-output",
		hazards:  []string{"V1"},
		does:     "an audit compares a record of an output with the key of one of its routes alone",
		edits:    []edit{{"processor/oracle/ledgerrow.go", "	for _, k := range out.Keys {\n", "	for _, k := range out.Keys[:min(1, len(out.Keys))] {\n"}},
		aims:     inLedger("^TestLedgerMatchesAnOutputOfTwoRoutes$"),
		notInSim: "the simulation has no audit",
	},
	{
		name:     "audit-knows-no-event-that-was-set-back",
		hazards:  []string{"V1"},
		does:     "an audit finds the duplicates of an event from the far future lost, whose route clamps it",
		edits:    []edit{{"processor/oracle/ledgerclamp.go", "	return in.caused && l.decide(f)\n", "	in.caused = false\n	return false\n"}},
		aims:     inLedger("^TestLedgerTakesDuplicatesOfAnEventThatWasSetBack$"),
		notInSim: "the simulation has no audit",
	},
	{
		name:     "audit-excuses-what-may-be-set-back",
		hazards:  []string{"V2"},
		does:     "an audit takes each event of a known key for a duplicate where a route clamps events",
		edits:    []edit{{"processor/oracle/ledgerclamp.go", "	return min(in.Time, add(list[i-1].first, -disorderMax-skews))\n", "	_ = skews\n	return math.MinInt64\n"}},
		aims:     inLedger("^TestLedgerFindsWhatIsPlantedWhereEventsAreSetBack$"),
		notInSim: "the simulation has no audit",
	},
	{
		name:     "audit-takes-any-output-of-a-key",
		hazards:  []string{"V1"},
		does:     "an audit compares an event that was set back with the output of another event of its key",
		edits:    []edit{{"processor/oracle/ledgerrow.go", "(out.anyTime || time == k.Time)", "(out.anyTime || l.spaces[row.Space].clamp || time == k.Time)"}},
		aims:     inLedger("^TestLedgerMatchesOutputsOfEventsThatWereSetBack$"),
		notInSim: "the simulation has no audit",
	},
	{
		name:     "audit-forgets-a-shorter-window",
		hazards:  []string{"V1"},
		does:     "an audit across a longer window finds events without a reason that were late for their own source by the shorter one",
		edits:    []edit{{"processor/oracle/ledgerclose.go", "in.Time < add(front, -shortest)", "in.Time < add(front, -max(span, shortest))"}},
		aims:     inLedger("^TestLedgerFollowsAChangedWindow$"),
		notInSim: "the simulation has no audit",
	},
	{
		name:     "audit-loses-what-it-carries",
		hazards:  []string{"V1"},
		does:     "the next audit does not know the records whose counterpart follows",
		edits:    []edit{{"processor/oracle/ledgerstate.go", "		l.fates[at] = x\n", "		_, _ = at, x\n"}},
		aims:     inLedger("^TestLedgerCarriesDeadLettersAheadOfTheirEvents$"),
		notInSim: "the simulation has no audit",
	},
}
