//go:build mutants

package mutants

// notOfOncebus says why the simulation cannot find a defect of the kit.
const notOfOncebus = "the simulation has no executor of other people"

func inCheck(run string) []suite { return []suite{conformSuite.aimed(run)} }

// executorList has the defects of what an executor learns, and of the kit that judges it.
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
	{
		name:     "kit-without-the-aborted",
		hazards:  []string{"D48"},
		does:     "the kit takes what was read of an aborted transaction for an event",
		edits:    []edit{{"processor/conformance/check.go", "	case a.Aborted:\n", "	case a.Aborted && a.Refused:\n"}},
		aims:     inCheck("^TestCheck$"),
		notInSim: notOfOncebus,
	},
	{
		name:     "kit-without-the-offset",
		hazards:  []string{"D48"},
		does:     "the kit is content with an outcome in some transaction, whatever commits the offset",
		edits:    []edit{{"processor/conformance/check.go", "	if !c.offsetsRead {\n", "	if by.Transactional {\n"}},
		aims:     inCheck("^TestCheck$"),
		notInSim: notOfOncebus,
	},
	{
		name:     "kit-counts-no-outcomes",
		hazards:  []string{"D48"},
		does:     "the kit does not see the second outcome of an event",
		edits:    []edit{{"processor/conformance/check.go", "	if n := len(a.outcomes); n > 1 {\n", "	if n := len(a.outcomes); n > 2 {\n"}},
		aims:     inCheck("^TestCheck$"),
		notInSim: notOfOncebus,
	},
	{
		name:     "kit-overlooks-a-start",
		hazards:  []string{"D48"},
		does:     "the kit does not see an outcome whose start was superseded",
		edits:    []edit{{"processor/conformance/check.go", "		c.find(HonoursStart, \"%s for %v, whose start was superseded\", e.Kind, a)\n", ""}},
		aims:     inCheck("^TestCheck$"),
		notInSim: notOfOncebus,
	},
	{
		name:     "kit-overlooks-the-last-lease",
		hazards:  []string{"D48"},
		does:     "the kit judges the time between renewals, and not that to the outcome",
		edits:    []edit{{"processor/conformance/check.go", "	c.gap(a, e.At, \"answered\")\n", ""}},
		aims:     inCheck("^TestCheck$"),
		notInSim: notOfOncebus,
	},
	{
		name:     "kit-overlooks-superseded-work",
		hazards:  []string{"D48"},
		does:     "the kit takes the outcome of a superseded attempt, whenever it comes",
		edits:    []edit{{"processor/conformance/check.go", "late > c.scenario.Lease {\n", "late > 1000*c.scenario.Lease {\n"}},
		aims:     inCheck("^TestCheck$"),
		notInSim: notOfOncebus,
	},
	{
		name:     "kit-passes-what-it-did-not-see",
		hazards:  []string{"D48"},
		does:     "the kit says that a rule holds for which there was no occasion",
		edits:    []edit{{"processor/conformance/check.go", "Held: c.judged[rule.Rule] && len(found) == 0,", "Held: len(found) == 0,"}},
		aims:     inCheck("^TestCheckJudgesWhatItHasSeen$"),
		notInSim: notOfOncebus,
	},
	{
		name:     "kit-counts-no-charges",
		hazards:  []string{"D48"},
		does:     "the kit does not see the second charge for an event",
		edits:    []edit{{"processor/conformance/effects.go", "	if n > 1 {\n		where := \"\"\n", "	if n > 2 {\n		where := \"\"\n"}},
		aims:     inCheck("^TestCheckEffects$"),
		notInSim: notOfOncebus,
	},
	{
		name:     "kit-overlooks-a-missing-charge",
		hazards:  []string{"D48"},
		does:     "the kit takes an event as completed that has no charge",
		edits:    []edit{{"processor/conformance/effects.go", "a.completed() && a.supersededAt.IsZero() &&", "a.completed() && a.Refused &&"}},
		aims:     inCheck("^TestCheckEffects$"),
		notInSim: notOfOncebus,
	},
	{
		name:     "kit-overlooks-a-refused-charge",
		hazards:  []string{"D48"},
		does:     "the kit does not see a charge for an event whose start was superseded",
		edits:    []edit{{"processor/conformance/effects.go", "	if d.Refused {\n", "	if d.Refused && d.Aborted {\n"}},
		aims:     inCheck("^TestCheckEffects$"),
		notInSim: notOfOncebus,
	},
	{
		name:     "kit-overlooks-a-skipped-event",
		hazards:  []string{"D48"},
		does:     "the kit takes an event without a claim as run that the executor skipped",
		edits:    []edit{{"processor/conformance/effects.go", "	if booked != unclaimed {\n", "	if booked > unclaimed {\n"}},
		aims:     inCheck("^TestCheckEffects$"),
		notInSim: notOfOncebus,
	},
	{
		name:     "kit-books-what-it-holds",
		hazards:  []string{"D48"},
		does:     "the gateway of the kit books a charge before it holds it, so that no crash comes before the booking",
		edits:    []edit{{"processor/conformance/gateway.go", "		if !g.held.booked {\n", "		if g.note == nil {\n"}},
		aims:     inCheck("^TestGatewayHolds$"),
		notInSim: notOfOncebus,
	},
	{
		name:     "kit-knows-keys-when-asked",
		hazards:  []string{"D48"},
		does:     "the gateway of the kit knows idempotency keys where it should not, so that an executor need not ask",
		edits:    []edit{{"processor/conformance/gateway.go", "	if g.kind == GatewayKeys && key != \"\" {\n", "	if key != \"\" {\n"}},
		aims:     inCheck("^TestGateway$"),
		notInSim: notOfOncebus,
	},
	{
		name:     "executor-runs-begun-work-again",
		hazards:  []string{"D54"},
		does:     "an executor runs the work again that a crash cut off, so that its effect may happen twice",
		edits:    []edit{{"deployments/executor/starter.go", "	case a.State == stateBegun && !st.repeatable:\n", "	case a.State == stateBegun && st.repeatable:\n"}},
		aims:     []suite{executorSuite.aimed("^TestStartsAcrossCrashes$")},
		notInSim: notOfOncebus,
	},
	{
		name:     "executor-notes-after-the-work",
		hazards:  []string{"D54"},
		does:     "an executor does not note an event before its work",
		edits:    []edit{{"deployments/executor/starter.go", "&attempt{State: stateBegun, Token: a.Token}", "&attempt{State: stateAsked, Token: a.Token}"}},
		aims:     []suite{executorSuite.aimed("^TestWorkIsNotedBefore$")},
		notInSim: notOfOncebus,
	},
}
