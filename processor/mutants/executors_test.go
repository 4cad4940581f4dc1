//go:build mutants

package mutants

// executorList has the defects of what an executor learns.
var executorList = []mutant{
	{
		name:    "takeover-not-announced",
		hazards: []string{"D47"},
		does:    "an attempt that a duplicate took over learns it from its next renewal only",
		edits:   []edit{{"processor/judge/supersession.go", "	if route.Claim.Answers == \"\" {\n", "	if route.Claim.Answers == \"\" || attempt > prior.Attempt {\n"}},
		aims:    inScript("starts", "old-attempt-is-superseded"),
	},
	{
		name:    "successor-announced",
		hazards: []string{"D47"},
		does:    "the attempt that took a claim over gets the answer superseded",
		edits:   []edit{{"processor/judge/supersession.go", "	token := dedup.TokenOf(prior, t.ID.Partition)\n", "	successor := *prior\n	successor.Attempt = attempt\n	token := dedup.TokenOf(&successor, t.ID.Partition)\n"}},
		aims:    inScript("starts", "old-attempt-is-superseded"),
	},
	{
		name:    "erasure-not-announced",
		hazards: []string{"D47"},
		does:    "an attempt that is erased while it runs learns it from its next renewal only",
		edits:   []edit{{"processor/judge/claim.go", "	if o.Kind == dedup.OutcomeForget && prior.Status != dedup.Completed &&", "	if o.Kind == dedup.OutcomeForget && prior.Status == dedup.Submitted &&"}},
		aims:    inScript("starts", "erased-attempt-is-announced"),
	},
}
