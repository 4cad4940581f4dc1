//go:build mutants

package mutants

// claimChangeList has the defects of claims that are open while the routes change.
var claimChangeList = []mutant{
	{
		name:     "outcomes-by-the-count",
		hazards:  []string{"L7"},
		does:     "a route that is removed loses its outcomes topic, as no claim is open when the command counts",
		edits:    []edit{{"processor/app/change.go", "		if r.Mode == rules.ClaimMode {\n			add(", "		if r.Mode == rules.ClaimMode && o.OpenClaims == nil {\n			add("}},
		aims:     inProcessor("^TestClaimOpenedAfterTheCountGetsItsOutcome$"),
		notInSim: noSetInSim,
	},
	{
		name:     "outcomes-of-the-last-removal-only",
		hazards:  []string{"L7"},
		does:     "the outcomes topic of a route that an earlier command removed is not read on",
		edits:    []edit{{"processor/app/change.go", "open == nil || route != nil && open[route.Namespace] > 0 {", "route != nil && open[route.Namespace] > 1<<40 {"}},
		aims:     inProcessor("^TestOutcomesOfAnEarlierRemovalAreRead$"),
		notInSim: noSetInSim,
	},
	{
		name:     "former-outcomes-not-routed",
		hazards:  []string{"L7"},
		does:     "a process does not read the outcomes topics of former routes",
		edits:    []edit{{"processor/app/sets.go", "		return current.Outcomes\n", "		return current.Outcomes[:0]\n"}},
		aims:     []suite{appSuite.aimed("^TestOutcomesOfFormerRoutesAreRead$")},
		notInSim: noSetInSim,
	},
	{
		name:     "uncounted-claims-ignored",
		hazards:  []string{"L7"},
		does:     "right after a move of the keys, a command takes the claims that no task has counted as none",
		edits:    []edit{{"processor/front/changer.go", "		if t.uncounted {\n", "		if t.uncounted && err != nil {\n"}},
		aims:     inProcessor("^TestUnknownCountKeepsTheOutcomes$"),
		notInSim: noSetInSim,
	},
}
