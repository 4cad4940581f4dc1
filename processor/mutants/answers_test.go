//go:build mutants

package mutants

// noSenders says why the simulation cannot find a defect of the answers by HTTP.
const noSenders = "its senders ask for no outcome by HTTP"

// noKept says why the simulation cannot find a defect of kept events.
const noKept = "its routes keep no events while Kafka is away"

// answerList has the defects of the answers for first senders.
var answerList = []mutant{
	{
		name:     "answered-before-it-is-kept",
		does:     "the ingress answers an event as kept although its disk does not have it",
		edits:    []edit{{"processor/front/kept.go", "		return fmt.Errorf(\"%w: the event is not kept: %w\", why, err)\n", "		return ErrKept\n"}},
		aims:     inIngress("^TestKeptIsBounded$"),
		notInSim: noKept,
	},
	{
		name:     "taken-before-its-acknowledgement",
		does:     "a kept event is removed from its file before a broker has it",
		edits:    []edit{{"processor/front/kept.go", "failed := d.await(ctx, f)", "failed := ctx.Err()"}},
		aims:     inIngress("^TestKeptWhenTheAcknowledgementIsLost$"),
		notInSim: noKept,
	},
	{
		name:     "damage-of-a-kept-event-is-a-torn-tail",
		does:     "kept events behind a damaged length are dropped as if they had never been answered",
		edits:    []edit{{"processor/front/shelf.go", "return nil, size, errDamaged // where", "return nil, size, errTorn // where"}},
		aims:     []suite{frontSuite.aimed("^TestShelfWithDamage$")},
		notInSim: noKept,
	},
	{
		name:     "kept-event-is-late",
		does:     "an event that was kept for longer than its window and grace is a dead letter",
		edits:    []edit{{"processor/front/kept.go", "d.derived.Time = judgedAt(", "_ = judgedAt("}},
		aims:     inIngress("^TestKeptLongerThanTheWindow$"),
		notInSim: noKept,
	},
	{
		name:  "every-transaction-ends-at-once",
		does:  "a transaction that no request waits for ends when its input is empty: each costs the brokers as much as one with many records",
		edits: []edit{{"processor/due.go", "x.emitter.Awaited && x.dueAwaited", "x.dueAwaited"}},
		aims:  []suite{processorSuite.aimed("^TestDueOfATransaction$")},
	},
	{
		name:  "requests-under-load-end-transactions",
		does:  "requests end transactions at once also under load",
		edits: []edit{{"processor/due.go", "min(x.cfg.CommitInterval, time.Duration(x.records)*awaitedShare)", "0"}},
		aims:  []suite{processorSuite.aimed("^TestDueOfATransaction$")},
	},
	{
		name:     "first-sender-without-address",
		hazards:  []string{"D49"},
		does:     "the claim has no address of the first request, unless duplicates wait too",
		edits:    []edit{{"dedup/rules/route.go", "return r.Claim.Wait || r.HTTP != nil && r.HTTP.Answer != nil", "return r.Claim.Wait"}},
		aims:     inIngress("^TestFirstSenderGetsItsOutcome$"),
		notInSim: noSenders,
	},
	{
		name:     "location-is-a-capability",
		hazards:  []string{"D50"},
		does:     "a client that knows a location gets the outcome, without the path's secret",
		edits:    []edit{{"processor/ingress/answer.go", "	if rejected := s.receiveLookup(w, r, rq, e, &e.lookup, r.URL.EscapedPath()); rejected != nil {\n", "	if rejected := s.receiveLookup(w, r, rq, e, &e.lookup, r.URL.EscapedPath()); rejected != nil && name == \"\" {\n"}},
		aims:     inIngress("^TestOutcomesAreTheSendersOwn$"),
		notInSim: noSenders,
	},
	{
		name:     "target-is-not-signed",
		hazards:  []string{"D50"},
		does:     "the signature of one GET is good for all",
		edits:    []edit{{"processor/ingress/authenticator.go", "Body: []byte(target)}", "Body: nil}"}},
		aims:     inIngress("^TestOutcomesAreTheSendersOwn$"),
		notInSim: noSenders,
	},
	{
		name:     "captured-question-is-an-event",
		hazards:  []string{"D50"},
		does:     "a captured GET is sent as an event, with its signed text as the body",
		edits:    []edit{{"processor/ingress/authenticator.go", "			if ok && (len(rest) == 0 ||", "			if ok && len(rest) < 0 && (len(rest) == 0 ||"}},
		aims:     inIngress("^TestSignedQuestionIsNoEvent$"),
		notInSim: noSenders,
	},
	{
		name:     "header-of-a-rule-twice",
		hazards:  []string{"D50"},
		does:     "two values of a header become one, such as another tenant",
		edits:    []edit{{"processor/ingress/endpoint.go", "		if c.from != headerIdempotency && e.once[c.to] && len(values) > 1 {\n", "		if c.from != headerIdempotency && e.once[c.to] && len(values) > 2 {\n"}},
		aims:     inIngress("^TestHeaderThatARuleReadsComesOnce$"),
		notInSim: noSenders,
	},
	{
		name:     "query-of-another-order",
		hazards:  []string{"D50"},
		does:     "a question gets the outcome of another event that has its key",
		edits:    []edit{{"processor/judge/query.go", "	case c.event.Collides(row, c.window, c.streamTime):\n", "	case c.event.Collides(row, c.window, c.streamTime) && row.First == 0:\n"}},
		aims:     inScript("queries", "another-order-has-the-key"),
		notInSim: noSenders,
	},
	{
		name:     "query-of-the-next-operation",
		hazards:  []string{"D51"},
		does:     "a question about an operation gets the state of the one after its window",
		edits:    []edit{{"processor/judge/query.go", "	case !c.window.Covers(row.First, env.EventTime):\n", "	case !c.window.Covers(row.First, row.First):\n"}},
		aims:     inScript("queries", "next-operation-of-the-key"),
		notInSim: noSenders,
	},
	{
		name:     "query-makes-an-attempt",
		hazards:  []string{"D51"},
		does:     "a question is judged as an event",
		edits:    []edit{{"processor/judge/judge.go", "	if env.IsQuery {\n", "	if env.IsQuery && t.Blind {\n"}},
		aims:     inScript("queries", "states"),
		notInSim: noSenders,
	},
	{
		name:     "waiting-senders-block-questions",
		hazards:  []string{"D52"},
		does:     "requests that wait use up those that ask",
		edits:    []edit{{"processor/ingress/server.go", "	s.lookups, s.followers = newRequestLimits(cfg, len(es.events), s.metrics), newRequestLimits(", "	s.lookups, s.followers = s.events, newRequestLimits("}},
		aims:     inIngress("^TestWaitingSendersDoNotBlockQuestions$"),
		notInSim: noSenders,
	},
	{
		name:     "follower-begins-at-the-end",
		hazards:  []string{"D53"},
		does:     "a client that connects again gets what comes from now on",
		edits:    []edit{{"processor/front/replies.go", "	if position == \"\" {\n		return nil\n	}\n	if err := r.decode", "	if position != \"-\" {\n		return nil\n	}\n	if err := r.decode"}},
		aims:     inIngress("^TestFollowerGetsItsOutcomes$"),
		notInSim: noSenders,
	},
	{
		name:     "follower-gets-all-replies",
		hazards:  []string{"D53"},
		does:     "a client gets the outcomes of events that others sent by Kafka",
		edits:    []edit{{"processor/front/replies.go", " && app.GenerationOf(r.app.App, topic) > 0\n", " && topic != \"\"\n"}},
		aims:     inIngress("^TestFollowerGetsNoOneElsesOutcomes$"),
		notInSim: noSenders,
	},
	{
		name:     "caller-without-an-id-gets-no-outcome",
		does:     "the sender of an event without a key is not said to wait for the outcome",
		edits:    []edit{{"processor/judge/emit.go", "ev.outcomeFollows = e.emit(ev, ev.route.Output) && ev.awaitsUnclaimed()", "ev.outcomeFollows = !e.emit(ev, ev.route.Output) && ev.awaitsUnclaimed()"}},
		aims:     []suite{judgeSuite.aimed("^TestScripts$/^shipped$")},
		notInSim: noSenders,
	},
	{
		name:     "reused-key-pages",
		does:     "a client that uses a key again counts as a collision that pages",
		edits:    []edit{{"processor/judge/collision.go", "if ev.route.Collision != rules.Reject {", "if ev.route.Collision != rules.Drop {"}},
		aims:     []suite{judgeSuite.aimed("^TestScripts$/^claims$")},
		notInSim: "it reads no alert",
	},
}
