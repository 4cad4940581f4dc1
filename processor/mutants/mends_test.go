//go:build mutants

package mutants

// mendList has the defects that were mended at the edges: long stops, cut logs, clocks,
// keys and the ingress.
var mendList = []mutant{
	{
		name:     "deleted-input-skipped",
		hazards:  []string{"G10"},
		does:     "a task continues above records that were deleted before it read them",
		edits:    []edit{{"processor/restore/decide.go", "	case f.next < f.start:\n		return app.InputDeleted,", "	case f.next < 0:\n		return app.InputDeleted,"}},
		aims:     []suite{restoreSuite.aimed("^TestCheckInput$")},
		notInSim: "the aimed test shows it at once",
	},
	{
		name:     "replaced-input-unnoticed",
		hazards:  []string{"C14"},
		does:     "a task continues above records that a new leader replaced with others",
		edits:    []edit{{"processor/restore/decide.go", "f.epochEnd >= 0 && f.epochEnd < f.next", "f.epochEnd > f.next"}},
		aims:     []suite{restoreSuite.aimed("^TestCheckInput$")},
		notInSim: "its broker elects no stale leader",
	},
	{
		name:    "leases-over-a-step-of-broker-time",
		hazards: []string{"T14"},
		does:    "leases that began before a step of broker time are compared with the time after it",
		edits: []edit{
			{"processor/tasks.go", "	t.StartedAt, t.SteppedAt, t.clockSteps = now, now, steps\n", "	t.clockSteps, now = steps, 0\n	_ = now\n"},
		},
		aims:     inProcessor("^TestLeasesBeginAgainAfterAStepOfBrokerTime$"),
		notInSim: "its brokers' clocks do not step",
	},
	{
		name:     "clamped-event-moves-stream-time",
		hazards:  []string{"T4"},
		does:     "an event from the future moves stream time to the end of its skew",
		edits:    []edit{{"dedup/window.go", "	if admitted != t {\n		return streamTime\n", "	if admitted != t {\n		return max(streamTime, admitted)\n"}},
		aims:     inDedup("^Test"),
		notInSim: "the aimed tests show it at once",
	},
	{
		name:     "numbers-share-a-key",
		hazards:  []string{"K2"},
		does:     "two numbers that share a float64 share a key",
		edits:    []edit{{"dedup/rules/number.go", "parseDecimal(scratch[:], d.shortest); !v.equal(&w)", "parseDecimal(scratch[:], d.shortest); f == 0 && !v.equal(&w)"}},
		aims:     []suite{rulesSuite.aimed("^TestIDsThatShareAFloat64AreNotMerged$")},
		notInSim: "its ids are texts",
	},
	{
		name:     "key-of-earlier-sources",
		hazards:  []string{"K1"},
		does:     "a projected payload is hashed together with the texts of earlier sources",
		edits:    []edit{{"dedup/rules/source_payload.go", "raw = d.text[mark:]", "raw = d.text[min(mark, 0):]"}},
		aims:     []suite{rulesSuite.aimed("^TestKeyDoesNotDependOnEarlierSources$")},
		notInSim: "its routes have one source",
	},
	{
		name:     "shared-transactional-id",
		hazards:  []string{"C10"},
		does:     "two apps whose names have dashes share a transactional id",
		edits:    []edit{{"processor/app/place.go", `"%s-%s-%d/%s"`, `"%[1]s-%[4]s-%[2]s-%[3]d"`}},
		aims:     []suite{appSuite.aimed("^TestTransactionalIDsNameOneWorker$")},
		notInSim: "it has one app",
	},
	{
		name:     "one-source-takes-all-requests",
		hazards:  []string{"D16"},
		does:     "one source may have all in-flight requests",
		edits:    []edit{{"processor/ingress/limits.go", "l.sourceMax == 0 && of.requests >= free:", "l.sourceMax == 0 && of.requests >= l.requestsMax:"}},
		aims:     []suite{ingressSuite.aimed("^(TestStrangersLeaveRoomForSenders|TestLimitsAreDivided)$")},
		notInSim: "it has no limit of requests",
	},
	{
		name:     "encoded-path-reaches-outcomes",
		hazards:  []string{"H2"},
		does:     "an encoded path reaches a handler past a proxy's rule",
		edits:    []edit{{"processor/ingress/handler.go", "path := r.URL.EscapedPath()", "path := r.URL.Path"}},
		aims:     []suite{ingressSuite.aimed("^TestOnePathForm$")},
		notInSim: "its requests are well-formed",
	},
	{
		name:     "one-path-fills-the-buffer",
		hazards:  []string{"D19"},
		does:     "the events of one path may use the whole buffer for Kafka",
		edits:    []edit{{"processor/front/buffer.go", "b.paths > 1 && b.over(", "b.paths > 1<<30 && b.over("}},
		aims:     []suite{frontSuite.aimed("^TestBufferIsDivided$")},
		notInSim: "its buffer is never full",
	},
	{
		name:     "short-secret-accepted",
		hazards:  []string{"D15"},
		does:     "a secret is as long as its padding",
		edits:    []edit{{"processor/ingress/signature/signature.go", `len(bytes.TrimRight(key, "\x00"))`, `max(len(bytes.TrimRight(key, "\x00")), secretBytesMin)`}},
		aims:     []suite{signatureSuite.aimed("^TestShortSecretsAreRefused$")},
		notInSim: "its secrets are long",
	},
}
