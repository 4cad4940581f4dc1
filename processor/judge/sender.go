package judge

import (
	"strconv"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/wire"
)

// int64Digits is the length of the longest decimal text of an int64.
const int64Digits = 20

// producerID returns the sender of a raw record in a route that identifies senders by producer id; nil
// for a producer without an id. It must be read from the raw record: the record of the repartition
// topic has the router's producer id.
func (e *Emitter) producerID(route *app.Route, rec *kgo.Record) []byte {
	if route.Sender.Kind != rules.SenderProducerID || rec.ProducerID < 0 {
		return nil
	}
	return strconv.AppendInt(e.bytes.take(int64Digits)[:0], rec.ProducerID, 10)
}

// countLookup updates the counts and the log for a judged event.
func (t *Judge) countLookup(j *Judging, ev *event, c *candidate) {
	t.OpenCounts.CountLookup(ev.route.NamespaceID, ev.counted)
	repeated := ev.counted.IsDuplicate()
	if repeated || ev.counted == dedup.AfterWindow && ev.route.Mode != rules.ClaimMode { // claim mode logs an event after its window itself
		t.logRepeat(ev, &c.prior)
	}
	if repeated {
		t.countDuplicate(j, ev, c)
		if ev.turn.taken {
			ev.turn.AddDuplicate()
		}
	}
}

// countDuplicate counts a duplicate by day, delay and sender. It is called for duplicates only.
func (t *Judge) countDuplicate(j *Judging, ev *event, c *candidate) {
	delay := c.event.Time - c.prior.First
	number := app.DelayOf(delay)
	t.OpenCounts.CountDuplicate(ev.route, ev.brokerTime, number)
	j.Delays.count(ev.route, number, delay)
	if ev.route.Sender == nil {
		return
	}
	var sender []byte
	switch {
	case ev.envelope != nil:
		sender = ev.envelope.Sender
	case ev.route.Sender.Travels():
		sender = j.producerID(ev.route, ev.rec)
	}
	t.OpenCounts.CountSender(ev.route, j.senders.Of(ev.route.Sender, ev.rec.Value, (*wire.Headers)(&ev.rec.Headers), sender))
}
