package judge

import (
	"oncebus/dedup"
	"oncebus/processor/wire"
)

// A Refusal is a record that its topic's broker refused for good, in a transaction that
// was then aborted. The event is judged again, and treated as if its record had been
// measured and found unfit: it goes to the dead-letter topic with the broker's error.
type Refusal struct {
	Reason string
	Forms  int  // how many forms of the record the topic refused
	used   bool // by the open transaction
}

// refusedFormsMax is how many forms a dead letter has: whole, without its value, and
// without its record key.
const refusedFormsMax = 3

// RefusalID identifies the record that a topic refused.
type RefusalID struct {
	About dedup.Position // of the event, or of the request that gets a reply
	Topic string
}

// refuse stores that a topic refused a record.
func (e *Emitter) refuse(id RefusalID, err error) {
	r := e.refusals[id]
	if r == nil {
		r = &Refusal{}
		e.refusals[id] = r
	}
	r.Reason = wire.ReasonRefused + id.Topic + ": " + err.Error()
	r.Forms++
}

// refused returns why a topic refused the record about a position, and how many forms of
// it; "" and 0 if it refused none.
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

// Refusals returns how many forms of records topics refused since the last commit.
func (e *Emitter) Refusals() (forms int) {
	for _, r := range e.refusals {
		forms += r.Forms
	}
	return forms
}

// TakeRefusals returns and drops the refusals that the committed transaction respected.
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

// DropRefusals drops all refusals. After a rebalance another process may have judged the
// events, and later their topics may accept them.
func (e *Emitter) DropRefusals() { clear(e.refusals) }

// RefusedInEveryForm returns a dead letter whose topic refused it also without value and
// record key; nil without one.
func (e *Emitter) RefusedInEveryForm() *Refusal {
	for _, r := range e.refusals {
		if r.Forms >= refusedFormsMax {
			return r
		}
	}
	return nil
}
