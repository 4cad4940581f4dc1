package conformance

import (
	"maps"
	"slices"
)

// booked records a booking of the gateway, with the number of kills before it.
func (c *checker) booked(e *Entry) {
	c.bookings[e.Reference] = append(c.bookings[e.Reference], c.kills)
}

// concludeEffects judges what the gateway has booked. If there is no booking, the executor does not charge at
// the gateway, and nothing is judged.
func (c *checker) concludeEffects() {
	if len(c.bookings) == 0 {
		return
	}
	c.judge(EffectOnce)
	keys := map[string]bool{"": true}
	for _, d := range c.dispatched {
		if !keys[d.Key] {
			c.concludeKey(d)
		}
		keys[d.Key] = true
		if a := c.attempts[d.Token]; a != nil && a.completed() && a.supersededAt.IsZero() && len(c.bookings[d.Key]) == 0 {
			c.find(EffectOnce, "%v is completed, and no charge at the gateway has its oncebus-key as the reference", d)
		}
	}
	c.concludeUnclaimed(keys)
}

// concludeKey judges the bookings whose reference is the key of an event.
func (c *checker) concludeKey(d *Dispatch) {
	kills := c.bookings[d.Key]
	n := len(kills)
	if n == 0 {
		return
	}
	if n > 1 {
		where := ""
		if kills[0] < kills[n-1] {
			where = ", before the crash and after it"
		}
		c.find(EffectOnce, "the gateway booked %d charges for %v%s", n, d, where)
	}
	if d.Refused {
		c.find(HonoursStart, "the gateway booked a charge for %v, whose start was superseded", d)
	}
	if d.Aborted {
		c.find(ReadsCommitted, "the gateway booked a charge for %v: its transaction was aborted, so read with isolation.level=read_committed", d)
	}
}

// concludeUnclaimed judges the bookings whose reference is not the key of any event: they belong to events
// without a claim.
func (c *checker) concludeUnclaimed(keys map[string]bool) {
	unclaimed, booked := 0, 0
	for _, d := range c.dispatched {
		if d.Key == "" && d.Event.Outcome == completed {
			unclaimed++
		}
	}
	rule := EffectOnce
	if c.scenario.has(StepUnclaimed) || c.scenario.has(StepReply) {
		rule = UnclaimedOnce
		c.judge(rule)
	}
	for _, reference := range slices.Sorted(maps.Keys(c.bookings)) {
		if keys[reference] {
			continue
		}
		n := len(c.bookings[reference])
		if booked += n; n > 1 {
			c.find(rule, "the gateway booked %d charges with the reference %q, which is no oncebus-key", n, reference)
		}
	}
	if booked != unclaimed {
		c.find(rule, "charges at the gateway with a reference that is no oncebus-key: %d, want one for each event without a claim: %d", booked, unclaimed)
	}
	if rule == UnclaimedOnce && c.tokenless > 0 {
		c.find(rule, "records without a token on the outcomes topic: %d", c.tokenless)
	}
}

// completed is the kind of outcome with which an executor says that the effect has happened.
const completed = "completed"

func (a *attempt) completed() bool {
	return slices.ContainsFunc(a.outcomes, func(e *Entry) bool { return e.Kind == completed })
}
