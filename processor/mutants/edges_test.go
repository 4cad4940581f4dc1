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
}
