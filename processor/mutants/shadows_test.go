//go:build mutants

package mutants

const noShadowInSim = "the simulation has no shadow"

// shadowList has the defects of key rules on trial, and of their promotion.
var shadowList = []mutant{
	{
		name:     "shadow-row-of-a-copy",
		hazards:  []string{"N1"},
		does:     "a copy that the rule in force dropped makes a row",
		edits:    []edit{{"dedup/shadow.go", "	if !emitted || !w.Retains(", "	if !w.Retains("}},
		aims:     inDedup("^TestShadowFates$"),
		notInSim: noShadowInSim,
	},
	{
		name:     "shadow-keeps-the-first-row",
		hazards:  []string{"N2"},
		does:     "the row of a new key stays that of its first emitted event",
		edits:    []edit{{"dedup/shadow.go", "|| has && prior.First >= ev.Time {", "|| has {"}},
		aims:     inDedup("^TestPromotedRowsEmitEachKeyOnce$"),
		notInSim: noShadowInSim,
	},
	{
		name:     "promoted-early",
		hazards:  []string{"N3"},
		does:     "a shadow is promoted that has not seen two windows",
		edits:    []edit{{"processor/app/shadowstate.go", "	if s.WaitMS > 0 {\n		s.Reason", "	if s.WaitMS < 0 {\n		s.Reason"}},
		aims:     []suite{appSuite.aimed("^TestShadowIsPromotableAfterTwoWindows$")},
		notInSim: noShadowInSim,
	},
	{
		name:     "promoted-without-late-before",
		hazards:  []string{"N3"},
		does:     "a copy of an event from before the shadow is emitted",
		edits:    []edit{{"processor/app/shadow.go", "	rt.addPromoted(c, before)\n", "	_ = before\n"}},
		aims:     []suite{appSuite.aimed("^TestShadowBeginsWithTheSet$")},
		notInSim: noShadowInSim,
	},
	{
		name:     "hold-ends-before-the-join",
		hazards:  []string{"N4"},
		does:     "the hold of a promotion ends while a task judges by the old rule",
		edits:    []edit{{"processor/app/promote.go", "Unjoined(ctx, c, t, hold.Set); err != nil || len(left) > 0 {", "Unjoined(ctx, c, t, 0); err != nil || len(left) > 0 {"}},
		aims:     inProcessor("^TestPromotionWaitsForEveryTask$"),
		notInSim: noShadowInSim,
	},
	{
		name:     "former-record-under-the-hold",
		hazards:  []string{"N4"},
		does:     "a record with an old key is forwarded while other tasks judge by the old rule",
		edits:    []edit{{"processor/judge/former_key.go", "	case j.Held:\n", "	case j.Held && false:\n"}},
		aims:     inProcessor("^TestFormerRecordWaitsUnderTheHold$"),
		notInSim: noShadowInSim,
	},
	{
		name:     "former-key-judged",
		hazards:  []string{"N5"},
		does:     "a record with an old key is judged in the namespace of the new rule",
		edits:    []edit{{"processor/judge/judge.go", "	if !bytes.Equal(route.WireName, env.Route) {\n		return t.forwardFormer", "	if bytes.Equal(nil, env.Route) {\n		return t.forwardFormer"}},
		aims:     inProcessor("^TestPromotionUnderTraffic$"),
		notInSim: noShadowInSim,
	},
}
