//go:build mutants

package mutants

// edgeList has defects that only the oracle of the simulation finds: no other test combines
// what they need.
var edgeList = []mutant{
	{
		name:    "bypass-stores-beyond-the-limit",
		hazards: []string{"D20"},
		does:    "after a bypass the task stores the keys beyond live_keys that it forwarded",
		edits: []edit{{"processor/judge/bypass.go",
			"verdict != dedup.AfterWindow || t.overLimit(ev.route, c) {",
			"verdict != dedup.AfterWindow {"}},
		aims: inScript("bypass", "limit-of-keys-after-a-bypass"),
	},
	{
		name:  "unique-events-have-headers",
		does:  "a unique event gets headers that its route does not ask for",
		edits: []edit{{"processor/judge/emit.go", "		return ev.route.Headers\n", "		return allHeaders\n"}},
		aims:  inScript("headers", "none"),
	},
	{
		name:  "other-events-lose-headers",
		does:  "an event that is emitted after its window, or as a duplicate, is as a unique one",
		edits: []edit{{"processor/judge/emit.go", "	if ev.verdict == dedup.Unique && ev.route.Mode != rules.ClaimMode {\n", "	if ev.route.Mode != rules.ClaimMode {\n"}},
		aims:  inScript("headers", "none"),
	},
	{
		name:    "ingress-produces-again",
		hazards: []string{"D21"},
		does:    "the ingress produces an event again after an error, although the broker may have it",
		edits: []edit{{"processor/front/submit.go", "		case err := <-sent:\n", `		case err := <-sent:
			if next := f.sender.Load(); err != nil && next != nil {
				twin := *rec
				next.TryProduce(context.Background(), &twin, nil)
			}
`}},
	},
	{
		name:     "lost-producer-unnamed",
		hazards:  []string{"A14"},
		does:     "a worker whose producer another process fenced does not say so",
		edits:    []edit{{"processor/twins.go", "	w.log.Error(\"fenced by another", "	w.log.Debug(\"fenced by another"}},
		aims:     inProcessor("^TestOtherProducerIsNamed$"),
		notInSim: "no two processes have one name",
	},
	{
		name:     "restart-is-a-twin",
		does:     "doctor takes a restart for a second process of the instance id",
		edits:    []edit{{"processor/app/twins.go", "		if len(names) == 1 && p != names[0] {", "		if len(names) <= 1 && !slices.Contains(names, p) {"}},
		aims:     []suite{appSuite.aimed("^TestTwinsAreNamed$")},
		notInSim: "it runs no doctor",
	},
}
