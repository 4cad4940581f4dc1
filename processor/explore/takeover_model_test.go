package explore_test

import (
	"errors"
	"fmt"
	"math"

	"oncebus/dedup"
	"oncebus/processor/explore"
	"oncebus/processor/wire"
)

// takeoverModel explores one key of claim mode. There are events and duplicates, two executors of one consumer group,
// the outcomes topic with a partition for each executor, and two processes, each of which routes and observes one
// partition of that topic. The model calls dedup.DecideClaim, ApplyOutcome and wire.Progress.
//
// What a process observes is a fact about the past, so the model has no separate observer: at any time a process may
// write the strongest fact that is true then, as often and as late as it wants. Therefore the death of a process
// changes nothing here, because everything that its task and its router have done is in the log. A record of the
// repartition topic, except for an event, is written and judged in one step. The model loses no case by this: only
// the order of the log counts, so a record that is judged later could as well have been written later.
type takeoverModel struct {
	rule    dedup.ClaimRule
	asks    bool // the executors ask for the start before they run
	fails   bool // an executor may report a failure
	events  int8
	crashes int8
	until   int8 // the broker time at which the model ends
	mistake takeoverMistake

	rowOf     map[string]int16 // number of each row, by its encoding
	rows      []dedup.Row
	progressO map[string]int16 // number of each progress, by its encoding
	progress  []wire.Progress
	merged    map[progressFact]int16
	claimed   map[claimInput]claimOutput
	applied   map[outcomeInput]outcomeOutput
}

type takeoverMistake int

const (
	takesOverRight      takeoverMistake = iota
	leaseByClock                        // the lease ends by the clock alone, without progress that proves which outcomes were read
	progressBeforeRead                  // progress is written before the outcomes up to it were read
	progressOfOne                       // the progress of one outcomes partition counts for all partitions
	oldTokenAccepted                    // an outcome counts for the current attempt, whatever token it has
	startedTakenOver                    // a claim is taken over although its executor has started
	groupNotAsked                       // the offset of the executor's group is not asked for
	executorWithoutTime                 // the executor gets no time: the claim ends as soon as the executor has passed the event
)

const (
	takeoverRoute = "orders"
	takeoverTopic = 7
	queueMax      = 1 // events that the task has not judged yet
	attemptsMax   = 2
	unreadMax     = 1 // outcomes of a partition that are not routed yet
)

type takeoverState struct {
	now      int8           // broker time
	sent     int8           // number of events sent
	received [queueMax]int8 // the broker times of the events that are not judged yet
	queued   int8
	row      int16
	known    int16 // number of the progress that the task knows

	parts [2]outcomesPartition

	dispatched [attemptsMax]dispatch
	attempts   int8
	consumer   int8 // the executor to which the group assigns the output
	position   int8 // the next offset that the consumer reads
	committed  int8 // the offset that the group has committed
	executors  [2]executor

	accepted int8 // number of outcomes that completed a claim
	crashes  int8 // crashes that may still happen
}

// outcome is the outcome of a dispatch, sent by an executor. life says in which of its lives the executor sent it.
type outcome struct {
	kind     dedup.OutcomeKind
	dispatch int8
	life     int8
	at       int8
}

type outcomesPartition struct {
	unread [unreadMax]outcome
	n      int8
}

type dispatch struct {
	attempt, at int8 // at is the number of the event that made the claim
	since       int8 // broker time of the dispatch
	passed      int8 // broker time at which the group committed the offset after the dispatch; -1 if it has not
}

// executor is working on the dispatch holds; -1 for none. It continues with this dispatch even when the group assigns
// the output to the other executor. life counts its starts.
type executor struct {
	holds          int8
	asked, granted bool
	life           int8
}

func newTakeoverModel(asks, fails bool, events, crashes, until int8, mistake takeoverMistake) *takeoverModel {
	m := &takeoverModel{
		rule: dedup.ClaimRule{Lease: 1, HasGroup: true, ResultBytes: 100}, asks: asks, fails: fails, events: events, crashes: crashes, until: until, mistake: mistake,
		rowOf: map[string]int16{}, progressO: map[string]int16{}, merged: map[progressFact]int16{},
		claimed: map[claimInput]claimOutput{}, applied: map[outcomeInput]outcomeOutput{},
	}
	m.internProgress(wire.Progress{})
	m.rows = append(m.rows, dedup.Row{}) // number 0 is no row
	return m
}

func (m *takeoverModel) model(name string) explore.Model[takeoverState] {
	s := takeoverState{crashes: m.crashes, executors: [2]executor{{holds: -1}, {holds: -1}}}
	return explore.Model[takeoverState]{Name: name, Start: []takeoverState{s}, Next: m.next}
}

func (m *takeoverModel) internRow(r *dedup.Row) int16 {
	key := string(r.AppendValue(nil))
	at, known := m.rowOf[key]
	if !known {
		at = int16(len(m.rows))
		m.rowOf[key] = at
		m.rows = append(m.rows, *r)
	}
	return at
}

func (m *takeoverModel) internProgress(p wire.Progress) int16 {
	key := string(p.Append(nil))
	at, known := m.progressO[key]
	if !known {
		at = int16(len(m.progress))
		m.progressO[key] = at
		m.progress = append(m.progress, p)
	}
	return at
}

// next returns the steps of a state. Before that, it forgets times that decide nothing any more, so that states which
// differ only in such times become one state.
func (m *takeoverModel) next(s takeoverState, steps []explore.Step[takeoverState]) []explore.Step[takeoverState] {
	steps = m.steps(s, steps)
	for i := range steps {
		to := &steps[i].To
		for d := range to.attempts {
			sent := &to.dispatched[d]
			if sent.passed >= 0 {
				sent.since = 0
			}
			if d < to.attempts-1 {
				sent.passed = min(sent.passed, 0)
			}
		}
		for p := range to.parts {
			for o := range to.parts[p].n {
				if out := &to.parts[p].unread[o]; out.dispatch < to.attempts-1 && !m.inProgress(to) {
					out.at = 0
				}
			}
		}
	}
	return steps
}

// inProgress reports whether there is a lease that may not have ended. A process observes only in that case.
func (m *takeoverModel) inProgress(s *takeoverState) bool {
	return m.rows[s.row].Status == dedup.ClaimInProgress
}

func (m *takeoverModel) steps(s takeoverState, steps []explore.Step[takeoverState]) []explore.Step[takeoverState] {
	if to := s; s.now < m.until {
		to.now++
		steps = append(steps, explore.To(to, "it is %d", int(to.now)))
	}
	if to := s; s.queued < queueMax && s.sent < m.events {
		to.received[s.queued] = s.now
		to.queued++
		to.sent++
		steps = append(steps, explore.To(to, "event %d arrives", int(s.sent)))
	}
	if s.queued > 0 {
		steps = append(steps, m.judgeEvent(s))
	}
	for p := range int8(2) {
		steps = m.route(s, p, steps)
		steps = m.execute(s, p, steps)
	}
	return m.group(s, steps)
}

// route has the steps of the routing stage of process p, which routes partition p of the outcomes topic.
func (m *takeoverModel) route(s takeoverState, p int8, steps []explore.Step[takeoverState]) []explore.Step[takeoverState] {
	part := &s.parts[p]
	if to := s; part.n > 0 {
		q := &to.parts[p]
		copy(q.unread[:], q.unread[1:])
		q.n--
		q.unread[q.n] = outcome{}
		steps = append(steps, m.judgeOutcome(to, p, part.unread[0]))
	}
	if !m.inProgress(&s) {
		return steps
	}
	at := s.now
	if part.n > 0 && m.mistake != progressBeforeRead {
		at = min(at, part.unread[0].at)
	}
	to := s
	to.known = m.merge(&s, progressFact{s.known, s.now, at, p})
	return append(steps, explore.To(to, "process %d writes that its outcomes are read up to %d", int(p), int(at)))
}

// group has the steps of the executors' consumer group and of its observer.
func (m *takeoverModel) group(s takeoverState, steps []explore.Step[takeoverState]) []explore.Step[takeoverState] {
	if m.inProgress(&s) {
		at := s.now
		if s.committed < s.attempts {
			at = min(at, s.dispatched[s.committed].since)
		}
		to := s
		to.known = m.merge(&s, progressFact{s.known, s.now, at, -1})
		steps = append(steps, explore.To(to, "process 0 writes that the executor has passed %d", int(at)))
	}
	if to := s; s.committed < s.position {
		for i := s.committed; i < s.position; i++ {
			to.dispatched[i].passed = s.now
		}
		to.committed = s.position
		steps = append(steps, explore.To(to, "executor %d commits its offset", int(s.consumer)))
	}
	if to := s; s.crashes > 0 {
		to.crashes--
		to.consumer, to.position = 1-s.consumer, s.committed
		steps = append(steps, explore.To(to, "the group assigns the output to executor %d", int(to.consumer)))
	}
	return steps
}

// execute has the steps of an executor.
func (m *takeoverModel) execute(s takeoverState, x int8, steps []explore.Step[takeoverState]) []explore.Step[takeoverState] {
	e := &s.executors[x]
	if to := s; e.holds < 0 && s.consumer == x && s.position < s.attempts {
		to.executors[x].holds = s.position
		to.position++
		steps = append(steps, explore.To(to, "executor %d gets attempt %d", int(x), int(s.dispatched[s.position].attempt)))
	}
	if e.holds < 0 || s.parts[x].n == unreadMax {
		return steps
	}
	attempt := int(s.dispatched[e.holds].attempt)
	send := func(to takeoverState, kind dedup.OutcomeKind, name string) {
		part := &to.parts[x]
		part.unread[part.n] = outcome{kind, e.holds, e.life, s.now}
		part.n++
		if !kind.Asks() {
			to.executors[x] = executor{holds: -1, life: e.life}
		}
		steps = append(steps, explore.To(to, name, int(x), attempt))
	}
	if to := s; m.asks && !e.asked {
		to.executors[x].asked = true
		send(to, dedup.OutcomeStart, "executor %d asks to start attempt %d")
	}
	if !m.asks || e.granted {
		send(s, dedup.OutcomeCompleted, "executor %d completes attempt %d")
		if m.fails {
			send(s, dedup.OutcomeFailed, "executor %d fails in attempt %d")
		}
	}
	if to := s; s.crashes > 0 {
		to.crashes--
		to.executors[x] = executor{holds: -1, life: e.life + 1}
		steps = append(steps, explore.To(to, "executor %d dies in attempt %d", int(x), attempt))
	}
	return steps
}

// progressFact is a progress record that the broker stores now, together with the progress that the task knew before.
type progressFact struct {
	known     int16
	now, to   int8
	partition int8 // partition of the outcomes topic; -1 for progress of the executor
}

// merge adds a progress record to what the task knows.
func (m *takeoverModel) merge(s *takeoverState, f progressFact) int16 {
	known, merged := m.merged[f]
	if merged {
		return known
	}
	p := wire.Progress{Executors: []wire.ExecutorProgress{{Route: takeoverRoute, Passed: []wire.Passed{{To: int64(f.to)}}}}}
	if f.partition >= 0 {
		o := wire.NewOutcomesProgress(takeoverTopic, int64(f.to), 2)
		o.ReadTo[f.partition] = int64(f.to)
		p = wire.Progress{Outcomes: []wire.OutcomesProgress{o}}
	}
	known = m.internProgress(m.progress[s.known].Merge(&p, int64(s.now), func(string) (int64, uint16) { return m.rule.Lease, takeoverTopic }))
	m.merged[f] = known
	return known
}

// evidence returns what the task knows, in the form in which package judge passes it to dedup.
func (m *takeoverModel) evidence(known int16) dedup.LeaseEvidence {
	p := &m.progress[known]
	e := dedup.LeaseEvidence{Written: m.mistake != leaseByClock, OutcomesReadTo: p.OutcomesReadTo(takeoverTopic), ExecutorPassedTo: dedup.NoStreamTime}
	if m.mistake == progressOfOne && len(p.Outcomes) > 0 {
		e.OutcomesReadTo = max(p.Outcomes[0].ReadTo[0], p.Outcomes[0].ReadTo[1])
	}
	lease := m.rule.Lease
	if m.mistake == executorWithoutTime {
		lease = -1
	}
	if e.OutcomesReadTo != dedup.NoStreamTime {
		e.ExecutorPassedTo = p.ExecutorPassedTo(takeoverRoute, lease, 0, e.OutcomesReadTo)
	}
	return e
}

var takeoverWindow = dedup.Window{Size: math.MaxInt64 / 4, Skew: math.MaxInt64 / 4}

// judgeEvent judges the next event, in one transaction.
func (m *takeoverModel) judgeEvent(s takeoverState) explore.Step[takeoverState] {
	number, to := s.sent-s.queued, s
	copy(to.received[:], s.received[1:])
	to.queued--
	to.received[to.queued] = 0
	d := m.claim(claimInput{s.row, s.known, number, s.received[0], s.now})
	switch {
	case !d.dispatch:
		return explore.To(to, "the task judges event %d, which is a duplicate", int(number))
	case s.attempts == attemptsMax:
		return explore.To(s, "the task judges event %d, which is beyond the bounds", int(number))
	}
	to.row = d.row
	row := &m.rows[d.row]
	to.dispatched[to.attempts] = dispatch{attempt: int8(row.Attempt), at: int8(row.At.Offset), since: s.now, passed: -1}
	to.attempts++
	step := explore.To(to, "the task judges event %d and dispatches attempt %d", int(number), int(row.Attempt))
	if d.takesOver {
		step.Err = m.checkTakeover(&s)
	}
	return step
}

// claimInput is everything that the verdict on an event depends on.
type claimInput struct {
	row, known            int16
	number, received, now int8
}

type claimOutput struct {
	row                 int16
	dispatch, takesOver bool
}

// claim decides an event. It caches its decisions by their input.
func (m *takeoverModel) claim(in claimInput) claimOutput {
	if out, known := m.claimed[in]; known {
		return out
	}
	ev := dedup.ClaimEvent{
		Event:      dedup.Event{Digest: dedup.Digest{1}, NamespaceID: 1, At: dedup.Position{Offset: int64(in.number)}},
		ReceivedAt: int64(in.received), DispatchedAt: int64(in.now), Evidence: m.evidence(in.known), AppToken: true,
	}
	ev.Request = dedup.Request{At: ev.At}
	prior, rule := m.rows[in.row], m.rule
	if m.mistake == groupNotAsked {
		rule.HasGroup = false
	}
	if m.mistake == startedTakenOver {
		prior = withoutStart(prior)
	}
	d, err := dedup.DecideClaim(ev, prior, in.row != 0, takeoverWindow, rule, 0)
	if err != nil {
		panic(err) // the model encoded the row
	}
	out := claimOutput{in.row, d.Dispatch, d.LeaseExpired}
	if d.Dispatch {
		d.Row.DropRequests(&d.Claim) // these requests get replies and change nothing else
		out.row = m.internRow(&d.Row)
	}
	m.claimed[in] = out
	return out
}

func withoutStart(r dedup.Row) dedup.Row {
	if c, err := dedup.DecodeClaim(r.Result); err == nil && r.HasResult {
		c.StartID = nil
		r.Result = c.Append(nil)
	}
	return r
}

// checkTakeover returns an error unless the evidence that ends a claim is true: every outcome that was stored during
// the lease has been read, and the executor has had the time of a lease since it passed the event. A started claim is
// never taken over.
func (m *takeoverModel) checkTakeover(s *takeoverState) error {
	row := &m.rows[s.row]
	claim, err := dedup.DecodeClaim(row.Result)
	switch {
	case err != nil:
		return err
	case claim.StartID != nil:
		return errors.New("a started claim was taken over")
	}
	current := s.attempts - 1
	ends := claim.Since + m.rule.Lease
	for _, part := range s.parts {
		for _, o := range part.unread[:part.n] {
			if o.dispatch == current && int64(o.at) <= ends {
				return fmt.Errorf("taken over while an outcome that was stored at %d is unread: the lease ended at %d", o.at, ends)
			}
		}
	}
	switch passed := s.dispatched[current].passed; {
	case passed < 0:
		return errors.New("taken over before the executor's group has passed the event")
	case int64(passed)+m.rule.Lease >= int64(s.now):
		return fmt.Errorf("taken over at %d, and the executor's group has passed the event at %d", s.now, passed)
	}
	return nil
}

// judgeOutcome judges an outcome of executor x, in one transaction.
func (m *takeoverModel) judgeOutcome(to takeoverState, x int8, read outcome) explore.Step[takeoverState] {
	sent := to.dispatched[read.dispatch]
	d := m.apply(outcomeInput{to.row, x, to.now, sent.at, sent.attempt, read})
	before := m.rows[to.row].Attempt
	if d.applied && read.kind.Asks() {
		if e := &to.executors[x]; e.life == read.life && e.holds == read.dispatch {
			e.granted = true
		}
	}
	if to.row = d.row; d.applied && !d.repeated && read.kind == dedup.OutcomeCompleted {
		to.accepted++
	}
	step := explore.To(to, "the task judges outcome %d of attempt %d", int(read.kind), int(sent.attempt))
	switch {
	case !d.applied && m.asks && !read.kind.Asks():
		step.Err = errors.New("the outcome of a granted start was refused")
	case d.applied && uint32(sent.attempt) != before:
		step.Err = fmt.Errorf("the outcome of attempt %d was accepted, and the current one is %d", sent.attempt, before)
	case to.accepted > 1:
		step.Err = errors.New("two outcomes of one claim were accepted")
	}
	return step
}

// outcomeInput is everything that the decision on an outcome depends on.
type outcomeInput struct {
	row                  int16
	executor             int8
	now, claimedAt, sent int8 // claimedAt is the number of the event that made the claim, sent is the attempt of the outcome
	outcome              outcome
}

type outcomeOutput struct {
	row               int16
	applied, repeated bool
}

// apply decides an outcome. It caches its decisions by their input.
func (m *takeoverModel) apply(in outcomeInput) outcomeOutput {
	if out, known := m.applied[in]; known {
		return out
	}
	prior := m.rows[in.row]
	token := dedup.Token{NamespaceID: 1, App: 1, Digest: dedup.Digest{1}, At: dedup.Position{Offset: int64(in.claimedAt)}, Attempt: uint32(in.sent)}
	if m.mistake == oldTokenAccepted {
		token.At, token.Attempt = prior.At, prior.Attempt
	}
	o := dedup.Outcome{Kind: in.outcome.kind, Token: token, Value: []byte{byte(in.outcome.dispatch)}, ReceivedAt: int64(in.now)}
	if o.Kind.Asks() {
		o.StartID = []byte{byte(in.executor), byte(in.outcome.life)}
	}
	d, err := dedup.ApplyOutcome(&o, prior, in.row != 0, takeoverWindow, m.rule, 0)
	if err != nil {
		panic(err) // the model encoded the row
	}
	out := outcomeOutput{in.row, d.Refused == "", d.Repeated}
	if out.applied && !out.repeated {
		out.row = m.internRow(&d.Row)
	}
	m.applied[in] = out
	return out
}
