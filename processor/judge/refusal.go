package judge

import (
	"oncebus/dedup"
	"oncebus/processor/wire"
)

// Refusal is a record that the broker rejected for good, in a transaction that was then aborted. When the judge
// judges the event again, it acts as if it had found before sending that the topic would reject the record: the
// event goes to the dead-letter topic with the broker's error.
type Refusal struct {
	Reason string
	Forms  int  // how many forms of the record the broker rejected
	used   bool // the open transaction respected the refusal
}

// refusedFormsMax is how many forms a dead letter has: whole, without its value, and also without its
// record key.
const refusedFormsMax = 3

// RefusalID identifies a rejected record.
type RefusalID struct {
	About dedup.Position // position of the event, or of the request that gets a reply
	Topic string
}

// refuse stores that a topic rejected a record.
func (e *Emitter) refuse(id RefusalID, err error) {
	r := e.refusals[id]
	if r == nil {
		r = &Refusal{}
		e.refusals[id] = r
	}
	r.Reason = wire.ReasonRefused + id.Topic + ": " + err.Error()
	r.Forms++
}

// refused returns why a topic rejected the record about a position, and how many forms of the record it
// rejected; "" and 0 for none.
func (e *Emitter) refused(about dedup.Position, topic string) (reason string, forms int) {
	if len(e.refusals) == 0 {
		return "", 0
	}
	r := e.refusals[RefusalID{about, topic}]
	if r == nil {
		return "", 0
	}
	r.used = true
	return r.Reason, r.Forms
}

// Refusals returns how many forms of records were rejected since the last commit.
func (e *Emitter) Refusals() (forms int) {
	for _, r := range e.refusals {
		forms += r.Forms
	}
	return forms
}

// TakeRefusals removes and returns the refusals that the committed transaction respected.
func (e *Emitter) TakeRefusals() map[RefusalID]*Refusal {
	taken := map[RefusalID]*Refusal{}
	for id, r := range e.refusals {
		if r.used {
			taken[id] = r
			delete(e.refusals, id)
		}
	}
	return taken
}

// DropRefusals drops all refusals. It is called after a rebalance: another process may have judged the
// events meanwhile, and their topics may accept them later.
func (e *Emitter) DropRefusals() { clear(e.refusals) }

// RefusedInEveryForm returns a dead letter that its topic rejected in every form, also without value
// and record key; nil if there is none.
func (e *Emitter) RefusedInEveryForm() *Refusal {
	for _, r := range e.refusals {
		if r.Forms >= refusedFormsMax {
			return r
		}
	}
	return nil
}
