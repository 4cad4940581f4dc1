//go:build mutants

package mutants

import "slices"

// inScript aims at a scenario of processor/judge/testdata.
func inScript(file, scenario string) []suite {
	return []suite{judgeSuite.aimed("^TestScripts$/^" + file + "$/^" + scenario + "$")}
}

func inDedup(run string) []suite { return []suite{dedupSuite.aimed(run)} }

// claimList has the defects of claim mode; most have no id in HAZARDS.md.
var claimList = []mutant{
	{
		name:  "old-token-accepted",
		does:  "the outcome of an older attempt is applied to the current one: a zombie executor overwrites its result",
		edits: []edit{{"dedup/claim.go", "	if !o.Token.fits(prior) {\n", "	if o.Token.Digest != prior.Digest {\n"}},
		aims:  inScript("claims", "failure-frees-the-key"),
	},
	{
		name:  "taker-is-a-duplicate",
		does:  "the sender whose event took a claim over gets its outcome as a replay of the dead attempt's request",
		edits: []edit{{"dedup/claim.go", "			current.Taker, current.Original = &taker, ev.Request.ID\n", "			_ = taker\n"}},
		aims:  inScript("leases", "taken-over-after-the-lease"),
	},
	{
		name:  "rejected-claim-dispatched",
		does:  "an event after the window of its claim runs, although its route rejects such events",
		edits: []edit{{"processor/judge/claim.go", "	case c.Verdict == dedup.AfterWindow && route.RejectsAfterWindow:\n", "	case c.Verdict == dedup.AfterWindow && route.RejectsAfterWindow && found.replaced == nil:\n"}},
		aims:  inScript("switches", "rejected-after-the-window-of-a-claim"),
	},
	{
		name:  "off-only-with-a-key",
		does:  "of a route that is switched off only the events with a key are forwarded: the others become dead letters",
		edits: []edit{{"processor/judge/emit.go", "	if ev.route.Off && !derived.Unmatched {\n		e.passOff(ev)\n		return\n	}\n", ""}},
		aims:  inScript("switches", "off-and-on-again"),
	},
	{
		name:  "forget-of-any-row",
		does:  "forget erases the row of a key, whatever its event and attempt: applied again, it erases a later one",
		edits: []edit{{"processor/app/erasure.go", "&& *r == RefOf(row) }", "&& r.Digest == row.Digest.String() }"}},
		aims:  slices.Concat(inScript("erasures", "applied-again"), inScript("erasures_claims", "later-attempt")),
	},
	{
		name:  "erased-row-counted",
		does:  "an erased row still counts as a live key: live_keys and the statistics are wrong",
		edits: []edit{{"processor/judge/erase.go", "&change{row: &freed, replaced: &row}", "&change{row: &freed}"}},
		aims:  inScript("erasures", "unique-again"),
	},
	{
		name:  "erasure-removed-before-the-commit",
		does:  "a request to erase rows is removed although its transaction aborted: the key stays",
		edits: []edit{{"processor/tasks.go", "		t.dropErasures() // they stay pending\n", "		s.erasuresCommitted(t)\n"}},
		aims:  []suite{processorSuite.aimed("^TestForgetSurvivesAnAbort$")},
	},
	{
		name:  "former-claim-forgotten",
		does:  "a claim whose key is claimed again after its window is forgotten: its senders get no reply, and its outcome is refused",
		edits: []edit{{"dedup/claim.go", "		verdict, former = AfterWindow, formerOf(prior, current)\n", "		verdict = AfterWindow\n"}},
		aims:  inScript("former", "each-gets-its-own-outcome"),
	},
	{
		name:  "former-requests-carried",
		does:  "the requests of a claim go to the event that claims its key after its window: they get the outcome of another operation",
		edits: []edit{{"dedup/claim.go", "	claim.Requests = []Request{ev.Request.dispatched()}\n", "	if former != nil {\n		claim.Requests, former.Claim.Requests = former.Claim.Requests, nil\n		former.Row.setClaim(&former.Claim)\n	}\n	claim.Requests = append(claim.Requests, ev.Request.dispatched())\n"}},
		aims:  inScript("former", "each-gets-its-own-outcome"),
	},
	{
		name:  "foreign-namespace-accepted",
		does:  "an outcome whose token names another namespace is applied to that namespace's claim",
		edits: []edit{{"dedup/claim.go", "!found || prior.NamespaceID != o.Token.NamespaceID || !w.Retains", "!found || !w.Retains"}},
		aims:  inDedup("^TestTokenOfAnotherNamespace$"),
	},
	{
		name:  "foreign-app-accepted",
		does:  "an outcome whose token names another app is applied to the claim of this one",
		edits: []edit{{"processor/app/outcome.go", "if read.Token.App != 0 && read.Token.App != rt.TokenApp {", "if read.Token.App == 1 {"}},
		aims:  inScript("outcomes", "token-of-another-app"),
	},
	{
		name:  "token-without-app-accepted",
		does:  "a token without an app is applied to a claim whose token has it: another app of an earlier build ends it",
		edits: []edit{{"dedup/claim.go", "if claim.AppToken && o.Token.App == 0 {", "if claim.AppToken && o.Token.App == 1 {"}},
		aims:  inDedup("^TestTokenWithoutAnApp$"),
	},
	{
		name:  "second-result-repeated",
		does:  "an attempt that is completed with another result counts as a repeat: a second execution goes unnoticed",
		edits: []edit{{"dedup/claim.go", "&& next == prior.Status && !claim.completedWith(o):", "&& next == prior.Status && o == nil:"}},
		aims:  inScript("outcomes", "completed-with-another-result"),
	},
	{
		name:  "collision-without-its-claim",
		does:  "an event that collides ignores the row of its second key once the other event's row is gone: it runs again",
		edits: []edit{{"dedup/collision.go", "	case hasSecond && w.Retains(second.First, streamTime), collides:\n", "	case collides:\n"}},
		aims:  inScript("collisions", "first-order-fails"),
	},
	{
		name:  "collision-past-the-edge",
		does:  "the second keys of adjacent buckets are not looked up: a duplicate of a colliding order runs past the edge",
		edits: []edit{{"processor/judge/judge.go", "		if ev.route.ForwardsCollisions() {\n			if adjacent", "		if ev.route == nil {\n			if adjacent"}},
		aims:  inScript("collisions", "duplicates-of-a-colliding-order"),
	},
	{
		name: "submitted-runs-again",
		does: "a submitted claim is claimed again when its lease expires",
		edits: []edit{
			{"dedup/claim.go", "	case ClaimInProgress:\n		if ev.Evidence.over(", "	case ClaimInProgress, Submitted:\n		if ev.Evidence.over("},
			{"dedup/claim.go", "	case Submitted:\n		if current.Forwarded() {\n			return ClaimDecision{Verdict: Duplicate, Row: prior, Claim: current, Reply: true}, nil\n		}\n	case Seen, Freed:\n", "	case Seen, Freed:\n"},
		},
		aims: inDedup("^TestClaimPlays$"),
	},
	{
		name:  "waiting-copy-forgotten",
		does:  "only the first requester gets the outcome; waiting duplicates get no reply",
		edits: []edit{{"dedup/claim.go", "s.Recipients, s.Claim.Requests = claim.Requests, nil\n		s.Claim.setResult", "s.Recipients, s.Claim.Requests = claim.Requests[:1], nil\n		s.Claim.setResult"}},
		aims:  inScript("waiting", "answered-once"),
	},
	{
		name: "waiting-copy-answered-twice",
		does: "all requesters get submitted as an outcome, and then wait for another one",
		edits: []edit{{"dedup/claim.go", "	if next == Completed {\n		s.Recipients", `	if next == Submitted {
		s.Recipients = claim.Requests
	}
	if next == Completed {
		s.Recipients`}},
		aims: inDedup("^TestClaimPlays$"),
	},
	{
		name:  "waiting-copy-in-memory",
		does:  "a duplicate that waits is in the store but not in the changelog: a takeover loses it",
		edits: []edit{{"processor/judge/joining.go", "		t.put(e, &change{row: &row, claim: &open.claim, replaced: &open.row}) // join counted the requests\n", "		t.Store.Put(row)\n"}},
		aims:  inScript("waiting", "answered-once"),
	},
	{
		name:  "gone-client-keeps-its-place",
		does:  "the ingress stores no request whose client is gone: a client that polls uses all places of a key",
		edits: []edit{{"processor/front/submit.go", "|| errors.Is(err, ErrKafkaUnavailable) || answer.Waits() {", "&& answer.Waits() {"}},
		aims:  []suite{processorSuite.aimed("^TestRequestThatComesAgainTakesItsPlace$")},
	},
	{
		name:  "timeout-frees-no-place",
		does:  "a request keeps its place after its timeout: that of an ingress that ended stays until the outcome",
		edits: []edit{{"dedup/place.go", "r.Until != 0 && r.Until < ev.ReceivedAt", "r.Until < 0"}},
		aims:  inDedup("^TestPlaces$"),
	},
	{
		name:  "replaced-without-a-reply",
		does:  "a request whose place another took gets no reply",
		edits: []edit{{"processor/judge/claim.go", "		j.reply(t.App.ClaimRoute(gone.to.Route, ev.route), &gone)\n", ""}},
		aims:  inScript("places", "after-the-timeout"),
	},
	{
		name:  "replaced-still-counted",
		does:  "a request whose place another took still counts as one that waits, until no duplicate of the namespace may wait",
		edits: []edit{{"processor/judge/claim.go", "		left = 1\n", "		left = 0\n"}},
		aims:  inScript("places", "after-the-timeout"),
	},
	{
		name:  "unchecked-retry-called-safe",
		does:  "after a timeout the response says that a retry is safe, on a route that may forward both events unchecked",
		edits: []edit{{"processor/ingress/event.go", "if perhapsStored && derived.Finding == rules.Keyed && route", "if perhapsStored && derived == nil && route"}},
		aims:  []suite{ingressSuite.aimed("^TestRetryOfAnUncheckedEventIsNotCalledSafe$")},
	},
	{
		name: "lease-by-the-machines-clock",
		does: "the age of a claim comes from this machine's clock at the time of judging, not from broker time",
		edits: []edit{
			{"processor/judge/claim.go", "Key: key, ReceivedAt: ev.brokerTime,", "Key: key, ReceivedAt: time.Now().UnixMilli(),"},
		},
	},
	{
		name:  "lease-never-ends",
		does:  "a claim whose executor died is never dispatched again",
		edits: []edit{{"dedup/claim.go", "if ev.Evidence.over(&ev, &current, &rule) {", "if false {"}},
		aims:  inDedup("^TestClaimPlays$"),
	},
	{
		name:  "lease-in-a-backlog",
		does:  "a lease begins when its event arrives at the task, not at the dispatch: after a backlog event and duplicate are both dispatched",
		edits: []edit{{"dedup/claim.go", "Since: max(ev.ReceivedAt, ev.DispatchedAt), Original", "Since: ev.ReceivedAt, Original"}},
		aims:  []suite{dedupSuite.aimed("^TestClaimPlays$")},
	},
	{
		name:  "lease-by-the-clock-alone",
		does:  "a lease ends by the time of the duplicate, whatever was read: an outcome that was stored in time does not count",
		edits: []edit{{"dedup/evidence.go", "	case e.OutcomesReadTo == NoStreamTime || e.OutcomesReadTo-began <= rule.Lease:\n", "	case ev.ReceivedAt-began <= rule.Lease:\n"}},
		aims:  inScript("progress", "no-progress-no-takeover"),
	},
	{
		name:  "lease-of-one-partition",
		does:  "the outcomes count as read when one partition is: those behind an open transaction in another come too late",
		edits: []edit{{"processor/wire/progress.go", "min(o.CountedAt, slices.Min(o.ReadTo))", "min(o.CountedAt, slices.Max(o.ReadTo))"}},
		aims:  inScript("progress", "every-partition-counts"),
	},
	{
		name:  "progress-from-the-future",
		does:  "a progress record counts as its worker estimated it, though the broker stored it before that time",
		edits: []edit{{"processor/wire/progress.go", "merged.ReadTo[partition] = min(to, stored)", "merged.ReadTo[partition] = to"}, {"processor/wire/progress.go", "NewOutcomesProgress(record.Topic, min(record.CountedAt, stored), ", "NewOutcomesProgress(record.Topic, record.CountedAt, "}},
		aims:  inScript("progress", "progress-is-not-from-the-future"),
	},
	{
		name:  "lease-of-an-absent-executor",
		does:  "a lease ends although the executor's group has not committed the event: an executor that was away finds many attempts",
		edits: []edit{{"dedup/evidence.go", "	return !rule.HasGroup || began < e.ExecutorPassedTo\n", "	return true\n"}},
		aims:  inScript("progress", "executor-away"),
	},
	{
		name:  "lease-begins-again-with-the-task",
		does:  "a lease begins again at every restart: with restarts more often than the lease, a dead executor's key never runs again",
		edits: []edit{{"dedup/claim.go", "		return max(claim.Since, ev.Evidence.SteppedAt)\n", "		return max(claim.Since, ev.Evidence.SteppedAt, ev.TaskStartedAt)\n"}},
		aims:  inScript("leases", "restarts-end-no-lease-late"),
	},
	{
		name:    "waiting-after-the-lease",
		hazards: []string{"D42"},
		does:    "requests of a dead executor's claim wait until another duplicate comes",
		edits:   []edit{{"processor/judge/progress.go", "	return t.answerLeases(j.Emitter, rec.Timestamp.UnixMilli())\n", "	return nil\n"}},
		aims:    inScript("waiting", "answered-when-the-lease-is-over"),
	},
	{
		name:    "waiting-at-the-eviction",
		hazards: []string{"D42"},
		does:    "requests that wait for a submitted claim vanish with its row",
		edits:   []edit{{"processor/judge/streamtime.go", "	if err := t.answerEvicted(e, route, next); err != nil {\n		return err\n	}\n", ""}},
		aims:    inScript("waiting", "answered-before-the-eviction"),
	},
	{
		name:    "waiting-forgotten-at-an-abort",
		hazards: []string{"D42"},
		does:    "requests that an aborted transaction answered get no reply",
		edits:   []edit{{"processor/app/waiting.go", "		w.add(digest, *c)\n", ""}},
		aims:    inScript("waiting", "answered-once-after-an-abort"),
	},
	{
		name:    "waiting-forgotten-at-a-restart",
		hazards: []string{"D42"},
		does:    "a task that restarts does not know who waits",
		edits:   []edit{{"processor/restore/waiting.go", "	if waiting == 0 {\n", "	if true {\n"}},
		aims:    inScript("waiting", "answered-before-the-eviction"),
	},
	{
		name:    "step-ahead-unseen",
		hazards: []string{"T14"},
		does:    "a lease ends at a step of broker time that happened while no process observed it",
		edits:   []edit{{"processor/judge/progress.go", "last != 0 && (stored > last+progressGapMax || stored < last-setBackMin)", "last != 0 && stored < last-setBackMin"}},
		aims:    inScript("leases", "step-ahead-unseen"),
	},
	{
		name:    "read-before-the-clock-was-set-back",
		hazards: []string{"T14"},
		does:    "what was read before the broker's clock was set back ends leases after it",
		edits:   []edit{{"dedup/evidence.go", "	case e.OutcomesReadTo > ev.ReceivedAt:\n", "	case false:\n"}},
		aims:    inScript("leases", "step-back-unseen"),
	},
	{
		name:  "open-transaction-counts-as-read",
		does:  "the outcomes behind an open transaction count as read",
		edits: []edit{{"processor/progress/ends.go", "			return false, nil // a committed record, or an open transaction\n", "			return true, nil\n"}},
		aims:  inProcessor("^TestHangingTransactionInTheOutcomesHoldsLeases$"),
	},
	{
		name:  "added-partition-counts-as-read",
		does:  "a partition that was added to the outcomes counts as read before a router knows of it",
		edits: []edit{{"processor/progress/outcomes.go", "wire.NewOutcomesProgress(o.App.TopicNumbers[topic], now, count)", "wire.NewOutcomesProgress(o.App.TopicNumbers[topic], now, min(count, int(o.App.Topology.Topics[topic].Partitions)))"}},
		aims:  inProcessor("^TestAddedPartitionOfTheOutcomesHoldsLeases$"),
	},
	{
		name: "re-claim-without-row",
		does: "a claim whose lease is over is dispatched again without a stored row: its outcome is refused, and every duplicate is dispatched",
		edits: []edit{{"processor/judge/claim.go", "	t.put(j.Emitter, &change{row: &c.Row, claim: &c.Claim, replaced: found.replaced, left: left, joined: c.Added})\n	ev.setOutcomeFollows(c)\n", `	if !c.LeaseExpired {
		t.put(j.Emitter, &change{row: &c.Row, claim: &c.Claim, replaced: found.replaced, left: left, joined: c.Added})
	}
	ev.setOutcomeFollows(c)
`}},
		aims: inProcessor("^TestClaimsAreLinearizable$"),
	},
	{
		name:  "reply-without-row",
		does:  "an outcome gets its replies, but its row reaches only the store: the next owner dispatches the event again",
		edits: []edit{{"processor/judge/claim.go", "	t.put(j.Emitter, &change{row: &s.Row, claim: &s.Claim, replaced: prior, left: len(s.Recipients)})\n	j.countOutcome", "	t.Store.Put(s.Row)\n	j.countOutcome"}},
		aims:  inScript("claims", "duplicate-gets-the-outcome-of-the-first"),
	},
	{
		name:  "forwarded-duplicate-waits",
		does:  "a duplicate of an event that was forwarded without a claim waits for an outcome that cannot arrive",
		edits: []edit{{"dedup/claim.go", "		if current.Forwarded() {\n			return ClaimDecision", "		if current.Forwarded() && rule.Wait == 0 {\n			return ClaimDecision"}},
		aims:  inScript("bypass", "bypassed-order-is-not-run-again"),
	},
	{
		name:  "kept-key-called-free",
		does:  "an attempt fails whose event was also forwarded unchecked: those who wait get failed, as if the key were free",
		edits: []edit{{"processor/judge/claim.go", "		if s.KeyKept {\n", "		if s.KeyKept && o.Kind == dedup.OutcomeForget {\n"}},
		aims:  inScript("bypass", "waiting-twin-of-a-bypassed-event"),
	},
	{
		name:  "failed-forwarded-claim-waits",
		does:  "after the failure of a claim whose event was also forwarded unchecked, a retry waits for an outcome that cannot arrive",
		edits: []edit{{"dedup/claim.go", "true, s.Claim.Requests, nil\n	s.Claim.setForwarded()\n", "true, s.Claim.Requests, nil\n"}},
		aims:  inScript("bypass", "waiting-twin-of-a-bypassed-event"),
	},
	{
		name:  "no-reply-without-a-claim",
		does:  "an event of claim mode that claims no key gets no reply: its sender waits for ever",
		edits: []edit{{"processor/judge/emit.go", "	if ev.route.Mode == rules.ClaimMode && !ev.verdict.HasClaim()", "	if ev.route.Mode == rules.ClaimMode && ev.key != nil && !ev.verdict.HasClaim()"}},
		aims:  inScript("replies", "missing-key"),
	},
	{
		name:  "no-reply-from-the-judge",
		does:  "a late event of claim mode gets no reply: its sender waits for ever",
		edits: []edit{{"dedup/decide.go", "	case Late, MissingKey, Invalid, Limited:\n	}\n	return false", "	case MissingKey, Invalid, Limited:\n		return false\n	case Late:\n	}\n	return true"}},
		aims:  inScript("replies", "late-dead-letter"),
	},
	{
		name:  "late-retry-runs-again",
		does:  "a late retry of a completed operation is not looked up: on_late: forward executes it again",
		edits: []edit{{"processor/judge/judge.go", "	if verdict == dedup.Late && (c.replaced == nil || c.window.Over(c.replaced.First, admitted)) {", "	if verdict == dedup.Late {"}},
		aims:  inScript("replies", "late-retry-of-a-completed-operation"),
	},
	{
		name:  "row-without-reply",
		does:  "failed and rejected free the key, and no requester gets a reply",
		edits: []edit{{"dedup/claim.go", "		s.Recipients, s.Claim.Requests = claim.Requests, nil\n		s.Row.Result", "		s.Claim.Requests = nil\n		s.Row.Result"}},
		aims:  inScript("claims", "failure-frees-the-key"),
	},
	{
		name:  "failed-keeps-the-key",
		does:  "failed and rejected are stored like a result and replayed forever",
		edits: []edit{{"dedup/claim.go", "StepComplete: Completed, StepFree: Freed, StepForget: Freed},\n	Submitted:", "StepComplete: Completed, StepFree: Completed, StepForget: Freed},\n	Submitted:"}},
		aims:  inScript("claims", "failure-frees-the-key"),
	},
	{
		name:    "request-that-cannot-join-lost",
		hazards: []string{"D44"},
		does:    "a request is lost that cannot join its claim, because too many joined others",
		edits:   []edit{{"processor/judge/claim.go", "	} else {\n		t.put(j.Emitter, &change{row: &c.Row, claim: &c.Claim, replaced: found.replaced, left: left, joined: 1})\n	}\n", "	}\n"}},
		aims:    inJudge("^TestRequestsThatJoinInOneTransaction$"),
	},
	{
		name:    "joined-requests-lost",
		hazards: []string{"D44"},
		does:    "requests that joined a claim are not written at the end of the transaction: they get no reply",
		edits:   []edit{{"processor/judge/state.go", "	t.writeAllJoined(e)\n	t.sendPack(e)\n", "	t.sendPack(e)\n"}},
		aims:    inJudge("^TestRequestsThatJoinInOneTransaction$"),
	},
	{
		name:    "joined-requests-unread",
		hazards: []string{"D44"},
		does:    "an outcome does not see the requests that joined its claim in the same transaction",
		edits:   []edit{{"processor/judge/former.go", "row, found, err = t.row(e, token.Digest)", "row, found, err = t.Store.Get(token.Digest)"}},
		aims:    inJudge("^TestRequestsThatJoinInOneTransaction$"),
	},
	{
		name:    "joined-requests-overwritten",
		hazards: []string{"D44"},
		does:    "an event that ends the lease of a claim overwrites the requests that joined it in the same transaction",
		edits:   []edit{{"processor/judge/joining.go", "	return nil, t.writeFound(j.Emitter, found)\n", "	return nil, nil\n"}},
		aims:    inJudge("^TestRequestsThatJoinInOneTransaction$"),
	},
	{
		name:    "start-granted-twice",
		hazards: []string{"D31"},
		does:    "a start is granted to each start id that asks: two executors run one attempt",
		edits:   []edit{{"dedup/start.go", "	case started && !bytes.Equal(claim.StartID, o.StartID):", "	case started && bytes.Equal(nil, o.StartID):"}},
		aims:    inScript("starts", "one-start-is-granted"),
	},
	{
		name:    "started-attempt-taken-over",
		hazards: []string{"D31"},
		does:    "the lease ends a started attempt: the next event under the key runs too",
		edits:   []edit{{"dedup/evidence.go", "	case claim.StartID != nil:\n", "	case claim.StartID != nil && claim.Since < 0:\n"}},
		aims:    inScript("starts", "one-start-is-granted"),
	},
	{
		name:    "start-of-an-ended-attempt",
		hazards: []string{"D31"},
		does:    "a start is granted for a key that was completed or freed",
		edits:   []edit{{"dedup/start.go", "	case !legal:", "	case !legal && s.Row.Status == Submitted:"}},
		aims:    inScript("starts", "one-start-is-granted|old-attempt-is-superseded"),
	},
	{
		name:  "renewal-without-effect",
		does:  "a renewal is granted, and the lease goes on as before",
		edits: []edit{{"dedup/start.go", "			claim.Since = o.ReceivedAt\n", "			claim.Since = max(claim.Since, 0)\n"}},
		aims:  inScript("starts", "renewed-lease"),
	},
	{
		name:    "answer-to-another-token",
		hazards: []string{"D32"},
		does:    "a request that asks for a start takes the answer to another token",
		edits:   []edit{{"processor/front/waiters.go", "a.Token != q.token || q.token", "q.token"}},
		aims:    []suite{frontSuite.aimed("^TestAnswerOfAnotherTokenIsIgnored$")},
	},
	{
		name:    "evicted-claims-answer",
		hazards: []string{"D42"},
		does:    "after a restore the requests in older rows of evicted claims are answered again",
		edits:   []edit{{"processor/restore/waiting.go", "	known.Evict(&before)\n", "	_ = before\n"}},
		aims:    inScript("waiting", "nothing-for-an-evicted-claim"),
	},
	{
		name:  "verdict-without-a-request",
		does:  "a record that waits for an outcome gets a verdict as a request by HTTP does",
		edits: []edit{{"processor/judge/verdict.go", "	if !a.To.IsSet() {\n", "	if !a.To.IsSet() && a.HasOutcome {\n"}},
		aims:  inScript("verdicts", "lease-over-for-a-request-and-a-record"),
	},
	{
		// An outcome must be in the task's partition, after the claim. One
		// that is routed by its record key may reach a task without the claim.
		name:  "outcome-by-its-own-key",
		does:  "an outcome goes to the partition of its record key, not to that of its claim",
		edits: []edit{{"processor/judge/router.go", "reason = r.send(e, rec, &env, r.App.OutcomePartition(route, &read.Token))", "reason = r.send(e, rec, &env, int32(len(rec.Key))%r.App.Topology.Topics[r.App.Topology.Repartition].Partitions)"}},
		aims:  inScript("claims", "duplicate-gets-the-outcome-of-the-first"),
	},
	{
		name:  "token-of-the-attempt-before",
		does:  "an event that is dispatched after a failure has the former attempt: the old executor's token is valid again",
		edits: []edit{{"dedup/claim.go", "row.Attempt = max(row.Attempt, prior.Attempt+1) // an old", "row.Attempt = max(row.Attempt, prior.Attempt) // an old"}},
		aims:  inScript("claims", "failure-frees-the-key"),
	},
	{
		name:     "adjacent-order-with-other-details-is-a-duplicate",
		does:     "an order is judged a duplicate of one in the adjacent bucket, whose details differ",
		edits:    []edit{{"dedup/adjacent.go", " < step && !ev.collides(r)", " < step"}},
		aims:     inDedup("^TestAdjacentRowsDecide$"),
		notInSim: "its events have ids",
	},
	{
		name:     "own-key-before-the-first",
		does:     "an order that was a duplicate of one in the adjacent bucket becomes a duplicate of a later one with its own key: one request gets two verdicts",
		edits:    []edit{{"dedup/adjacent.go", "case !decided || r.before(&prior):", "case !decided:"}},
		aims:     inDedup("^TestOrderIsAnsweredByOneRow$"),
		notInSim: "its events have ids",
	},
	{
		name:     "orders-apart-by-event-time",
		does:     "the time between two orders is that of their records, not of their own timestamps",
		edits:    []edit{{"dedup/adjacent.go", "	at := r.First + r.Shift\n	return max(at-ev.orderTime(), ev.orderTime()-at)", "	return max(r.First-ev.Time, ev.Time-r.First)"}},
		aims:     inDedup("^TestAdjacentRowsDecide$"),
		notInSim: "its events have ids",
	},
}
