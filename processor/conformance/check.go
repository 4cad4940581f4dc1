package conformance

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"
)

// Check judges a run by every rule, in the order of Rules.
func Check(s *Scenario, t *Timeline) []Verdict {
	c := &checker{scenario: s, offsetsRead: t.OffsetsRead, attempts: map[string]*attempt{}, findings: map[Rule][]string{}, judged: map[Rule]bool{}, next: map[int32]int64{}, bookings: map[string][]int{}}
	for i := range t.Entries {
		c.take(&t.Entries[i])
	}
	c.conclude()
	verdicts := make([]Verdict, len(Rules))
	for i, rule := range Rules {
		found := c.findings[rule.Rule]
		if more := len(found) - findingsMax; more > 0 {
			found = append(found[:findingsMax:findingsMax], fmt.Sprintf("and %d more", more))
		}
		verdicts[i] = Verdict{Rule: rule.Rule, Demands: rule.Demands, Judged: c.judged[rule.Rule], Held: c.judged[rule.Rule] && len(found) == 0, Findings: found}
	}
	return verdicts
}

// checker goes through a timeline and collects, for each rule, the entries that break the rule.
type checker struct {
	scenario    *Scenario
	offsetsRead bool
	attempts    map[string]*attempt // by token
	dispatched  []*Dispatch
	commits     []*Entry
	next        map[int32]int64 // next offset that the consumer group reads, by partition
	kills       int
	bookings    map[string][]int // for each reference, its bookings: each is the number of kills before the booking
	tokenless   int              // outcomes and questions without a token
	findings    map[Rule][]string
	judged      map[Rule]bool
}

// attempt is the state of an attempt while the checker goes through the timeline. Each attempt has a separate
// token.
type attempt struct {
	*Dispatch

	at           time.Time // of the dispatch or of the grant; later of the last renewal
	granted      bool
	startID      string
	grantedKills int // number of kills before the grant
	supersededAt time.Time
	outcomes     []*Entry
	outcomeKills []int // number of kills before each outcome
}

func (c *checker) judge(rule Rule) { c.judged[rule] = true }

func (c *checker) find(rule Rule, format string, args ...any) {
	c.judge(rule)
	c.findings[rule] = append(c.findings[rule], fmt.Sprintf(format, args...))
}

func (c *checker) take(e *Entry) {
	switch e.What {
	case Dispatched:
		c.dispatched = append(c.dispatched, e.Dispatch)
		if e.Dispatch.name() != "" {
			c.attempts[e.Dispatch.name()] = &attempt{Dispatch: e.Dispatch, at: e.At}
		}
	case Asked:
		c.asked(e)
	case Answered:
		c.answered(e)
	case Superseded:
		if a := c.attempts[e.Token]; a != nil {
			a.supersededAt = e.At
		}
	case Outcome:
		c.outcome(e)
	case Committed:
		c.commits = append(c.commits, e)
		c.next[e.Partition] = max(c.next[e.Partition], e.Offset)
	case Killed:
		c.kills++
	case Booked:
		c.booked(e)
	case IdleOpen:
		c.find(IdleFree, "a transaction is open on partition %d of the outcomes topic, and no event is: commit or abort it", e.Partition)
	case GroupLost:
		c.find(IdleFree, "the group lost its member while no event came: send heartbeats, and poll more often than the session timeout")
	case Missed:
		c.find(OutcomeForEach, "%s", e.Note)
	}
}

// known returns the attempt of the token in e. If no committed event has this token, known records a broken
// rule.
func (c *checker) known(e *Entry) *attempt {
	a := c.attempts[cmp.Or(e.Token, e.ReplyTo)]
	switch {
	case e.ReplyTo != "" && (a == nil || a.ReplyTo != e.ReplyTo):
		c.find(KnownToken, "%s with oncebus-reply-to %q, which no event without a token had", e.Kind, e.ReplyTo)
		return nil
	case e.ReplyTo != "":
	case e.Token == "":
		c.tokenless++
		c.find(KnownToken, "%s without the header oncebus-claim-token: an event without a claim gets no outcome, unless it has oncebus-reply-to", e.Kind)
	case a == nil:
		c.find(KnownToken, "%s with token %q, which no event had", e.Kind, e.Token)
	case a.Aborted:
		c.find(ReadsCommitted, "%s for %v: its transaction was aborted, so read with isolation.level=read_committed", e.Kind, a)
		return nil
	}
	return a
}

func (c *checker) asked(e *Entry) {
	a := c.known(e)
	switch {
	case a == nil:
	case e.Kind == "start" && e.StartID == "":
		c.find(AsksStart, "start for %v without the header oncebus-start-id", a)
	case e.Kind == "start" && a.granted && a.startID != e.StartID && a.grantedKills < c.kills:
		c.find(KeepsStartID, "%v was granted to %q, and asked for with %q after the crash", a, a.startID, e.StartID)
	case e.Kind == "renew":
		c.gap(a, e.At, "renewed")
		a.at = e.At
	}
}

// gap judges whether the executor renewed an attempt in time: it looks at the time since the dispatch, the
// grant or the last renewal.
func (c *checker) gap(a *attempt, now time.Time, what string) {
	if !a.Renewed || len(a.outcomes) > 0 {
		return
	}
	c.judge(RenewsInTime)
	if since := now.Sub(a.at); since > c.scenario.Lease {
		c.find(RenewsInTime, "%v was %s %v after the last sign of its executor, the lease is %v", a, what, since.Round(time.Millisecond), c.scenario.Lease)
	}
}

func (c *checker) answered(e *Entry) {
	a := c.attempts[e.Token]
	if a == nil || e.Kind != "start" {
		return
	}
	c.judge(HonoursStart)
	if e.Granted && !a.granted {
		a.granted, a.startID, a.grantedKills, a.at = true, e.StartID, c.kills, e.At
	}
}

// outcome judges an outcome that the executor has written.
func (c *checker) outcome(e *Entry) {
	a := c.known(e)
	if a == nil {
		return
	}
	if c.scenario.Start && !a.Refused && a.Token != "" {
		c.judge(AsksStart)
		if !a.granted {
			c.find(AsksStart, "%s for %v, whose start was not granted before", e.Kind, a)
		}
	}
	c.gap(a, e.At, "answered")
	switch over := a.supersededAt; {
	case a.Refused:
		c.find(HonoursStart, "%s for %v, whose start was superseded", e.Kind, a)
		return
	case !over.IsZero():
		if late := e.At.Sub(over); late > c.scenario.Lease {
			c.find(StopsWhenOver, "%s for %v, %v after it was superseded", e.Kind, a, late.Round(time.Millisecond))
		}
	case e.Kind != a.Event.Outcome:
		c.find(Result, "%s for %v, want %s", e.Kind, a, a.Event.Outcome)
	case a.Event.Result != nil && *a.Event.Result != string(e.Value):
		c.find(Result, "%s for %v has the value %q, want %q", e.Kind, a, e.Value, *a.Event.Result)
	}
	a.outcomes, a.outcomeKills = append(a.outcomes, e), append(a.outcomeKills, c.kills)
}

// conclude judges the rules that can be judged only after the whole run.
func (c *checker) conclude() {
	if c.scenario.has(StepAbort) {
		c.judge(ReadsCommitted)
	}
	if c.scenario.has(StepIdle) {
		c.judge(IdleFree)
	}
	if c.scenario.Start && c.kills > 0 {
		c.judge(KeepsStartID)
	}
	c.judge(KnownToken)
	for _, token := range slices.Sorted(maps.Keys(c.attempts)) {
		if a := c.attempts[token]; !a.Aborted {
			c.concludeAttempt(a)
		}
	}
	c.concludeEffects()
	for _, d := range c.dispatched {
		if d.Aborted {
			continue
		}
		c.judge(EveryOffset)
		if c.next[d.Partition] <= d.Offset {
			c.find(EveryOffset, "the group committed offset %d of partition %d, which does not include %v", c.next[d.Partition], d.Partition, d)
		}
	}
}

// concludeAttempt judges an attempt by all of its outcomes.
func (c *checker) concludeAttempt(a *attempt) {
	switch {
	case !a.supersededAt.IsZero():
		c.judge(StopsWhenOver)
	case a.Refused:
	case len(a.outcomes) == 0:
		c.find(OutcomeForEach, "%v has no outcome", a)
	default:
		c.judge(OutcomeForEach)
		c.judge(Result)
	}
	if len(a.outcomes) == 0 {
		return
	}
	c.judge(OutcomeOnce)
	if n := len(a.outcomes); n > 1 {
		where := ""
		if a.outcomeKills[0] < a.outcomeKills[n-1] {
			where = ", before the crash and after it"
		}
		c.find(OutcomeOnce, "%v has %d outcomes%s", a, n, where)
	}
	if c.scenario.Transaction {
		c.transaction(a)
	}
}

// transaction judges whether the first outcome of an attempt was written in the same transaction as the offset
// of its event.
func (c *checker) transaction(a *attempt) {
	c.judge(OneTransaction)
	by := a.outcomes[0].Producer
	if !by.Transactional {
		c.find(OneTransaction, "the outcome of %v is in no transaction", a)
		return
	}
	if !c.offsetsRead {
		return
	}
	covers := func(e *Entry) bool { return e.Partition == a.Partition && e.Offset > a.Offset }
	same := func(e *Entry) bool { return covers(e) && e.Producer == by }
	switch {
	case slices.ContainsFunc(c.commits, same):
	case slices.ContainsFunc(c.commits, func(e *Entry) bool { return covers(e) && !e.Producer.Transactional }):
		c.find(OneTransaction, "the offset of %v was committed without a transaction", a)
	default:
		c.find(OneTransaction, "no commit of an offset has the transaction of the outcome of %v (producer %d, epoch %d)", a, by.ID, by.Epoch)
	}
}
