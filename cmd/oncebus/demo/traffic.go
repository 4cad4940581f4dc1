package demo

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// The input topics of the demo. The routes file names them too.
const (
	signalsRaw      = "signals.raw"
	webhooksRaw     = "webhooks.raw"
	inputPartitions = 6
)

// headerRecord is the header with the number of a record. The ledger recognises the record in the output by
// this number, because oncebus does not change headers other than its own.
const headerRecord = "demo-record"

// badEvent is the event number of a bad record, which is not an event.
const badEvent = -1

// sentRecord is a record to produce, together with its event and its route. The generator knows the event
// without deriving a dedup key.
type sentRecord struct {
	*kgo.Record
	event int // the same for all duplicates of an event; badEvent for a bad record
	route string
}

// traffic generates the records of the demo from a seed. The same seed and base time give the same records in
// the same order.
type traffic struct {
	rng  *rand.Rand
	base int64 // event time of the first record, in Unix milliseconds
	// events has every event; duplicateOf makes further records of an event from its entry here.
	events []sentEvent
	// later has the duplicates that are still to be sent, by the number of records after which they are sent.
	later map[int][]sentRecord
}

// sentEvent has the parts that all records of an event share.
type sentEvent struct {
	route    string
	key      []byte // record key
	identity []member
	details  []member
	written  int // how many records of the event were made so far
}

// member is a member of a JSON object; its value is encoded already.
type member struct{ name, value string }

func newTraffic(seed uint64, base time.Time) *traffic {
	return &traffic{
		rng:   rand.New(rand.NewPCG(seed, 0x6f6e6365627573)),
		base:  base.UnixMilli(),
		later: map[int][]sentRecord{},
	}
}

// live generates n records of ordinary traffic: events, duplicates in the same batch or soon after, on the same
// partition or on others, and bad records. It leaves out duplicates that would be due after the end.
func (t *traffic) live(n int) []sentRecord {
	records := make([]sentRecord, 0, n+8)
	for len(records) < n {
		at := len(records)
		if due, ok := t.later[at]; ok {
			delete(t.later, at)
			records = append(records, due...)
			continue
		}
		if t.rng.IntN(100) < 4 {
			records = append(records, t.bad(at))
			continue
		}
		event := t.newEvent()
		records = append(records, t.duplicateOf(event, at))
		for range t.duplicates() {
			records = t.addDuplicate(records, event, at)
		}
	}
	return records[:n]
}

// duplicates returns a random number of duplicates for an event.
func (t *traffic) duplicates() int { return [...]int{0, 0, 0, 0, 0, 1, 1, 1, 2, 3}[t.rng.IntN(10)] }

// addDuplicate adds a duplicate of an event: either immediately and on the same partition, so that it comes in
// the same batch, or later and on any partition.
func (t *traffic) addDuplicate(records []sentRecord, event, at int) []sentRecord {
	if t.rng.IntN(3) == 0 {
		duplicate := t.duplicateOf(event, at)
		duplicate.Partition = records[len(records)-1].Partition
		return append(records, duplicate)
	}
	due := at + 8 + t.rng.IntN(400)
	t.later[due] = append(t.later[due], t.duplicateOf(event, due))
	return records
}

// retries generates n duplicates of the events that live has generated, like a producer that sends them again
// after pauseTime.
func (t *traffic) retries(n int) []sentRecord {
	t.base += pauseTime.Milliseconds()
	records := make([]sentRecord, n)
	for i := range records {
		records[i] = t.duplicateOf(t.rng.IntN(len(t.events)), i)
	}
	return records
}

// newEvent makes a random event and returns its number. The number makes the identity of the event unique.
func (t *traffic) newEvent() int {
	n := len(t.events)
	if t.rng.IntN(100) < 40 {
		t.events = append(t.events, t.newWebhook(n))
	} else {
		t.events = append(t.events, t.newSignal(n))
	}
	return n
}

// newSignal makes a random trade signal. In one of three signals the trace id is absent, null or empty; such
// signals differ only by their timestamp.
func (t *traffic) newSignal(n int) sentEvent {
	symbol := pick(t.rng, "BTCUSDT", "ETHUSDT", "AAPL", "MSFT", "EURUSD", "münchen-dax")
	e := sentEvent{route: "signals", key: []byte(symbol), identity: []member{
		{"symbol", strconv.Quote(symbol)},
		{"exchange", strconv.Quote(pick(t.rng, "BINANCE", "NASDAQ", "XETRA"))},
		{"action", strconv.Quote(pick(t.rng, "buy", "sell", "close"))},
		{"timestamp", strconv.FormatInt(t.base+int64(n), 10)},
	}}
	switch t.rng.IntN(12) {
	case 0:
		e.identity = append(e.identity, member{"traceId", "null"})
	case 1:
		e.identity = append(e.identity, member{"traceId", `""`})
	case 2, 3:
	default:
		e.identity = append(e.identity, member{"traceId", fmt.Sprintf(`"%08x-%d"`, t.rng.Uint32(), n)})
	}
	e.details = []member{{"price", fmt.Sprintf("%d.%02d", t.rng.IntN(90_000), t.rng.IntN(100))}}
	return e
}

// newWebhook makes a random webhook.
func (t *traffic) newWebhook(n int) sentEvent {
	resource := fmt.Sprintf("pay_%04d", t.rng.IntN(5000))
	return sentEvent{route: "webhooks", key: []byte(resource), identity: []member{
		{"eventId", fmt.Sprintf(`"evt_%08x_%d"`, t.rng.Uint32(), n)},
		{"resourceId", strconv.Quote(resource)},
		{"eventType", strconv.Quote(pick(t.rng, "payment.succeeded", "payment.failed", "refund.created"))},
	}}
}

// duplicateOf writes a record of an event, at position at of the traffic. The record has the same identity, but
// its members are in another order and it has other white space; a webhook also has another retryCount and
// timestamp.
func (t *traffic) duplicateOf(event, at int) sentRecord {
	e := &t.events[event]
	members := slices.Concat(e.identity, e.details)
	if e.route == "webhooks" {
		members = append(members, member{"retryCount", strconv.Itoa(e.written)},
			member{"timestamp", strconv.FormatInt(t.base+int64(at), 10)})
	}
	t.rng.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
	r := t.record(e.route, at)
	r.Key, r.Value = e.key, t.object(members)
	e.written++
	r.event = event
	return r
}

// object writes a JSON object; in half of the cases with white space.
func (t *traffic) object(members []member) []byte {
	colon, comma := ":", ","
	if t.rng.IntN(2) == 0 {
		colon, comma = ": ", ",\n  "
	}
	var b strings.Builder
	for i, m := range members {
		if i > 0 {
			b.WriteString(comma)
		}
		b.WriteString(strconv.Quote(m.name) + colon + m.value)
	}
	return []byte("{" + b.String() + "}")
}

// bad makes a record that must end in the dead-letter topic.
func (t *traffic) bad(at int) sentRecord {
	signal := [][]byte{
		[]byte(`{"traceId":"cut of`),                    // not JSON
		[]byte(`{"symbol":"AAPL","exchange":"NASDAQ"}`), // fields missing
		nil, // null payload
		[]byte(`{"traceId":"` + strings.Repeat("x", 5000) + `"}`), // key over the limit
		[]byte(`{"traceId":{"id":1},"symbol":"AAPL"}`),            // wrong type
		{0xff, 0xfe, 0x00, 0x7b},                                  // not UTF-8
	}
	webhook := [][]byte{
		[]byte(`eventId=evt_1&resourceId=pay_1`),
		[]byte(`{"eventId":"evt_1","resourceId":"pay_1"}`),
		nil,
		[]byte(`["evt_1","pay_1","payment.succeeded"]`),
		[]byte(strings.Repeat(`[`, 20_000)),
		{},
	}
	route, values := "signals", signal
	if t.rng.IntN(2) == 0 {
		route, values = "webhooks", webhook
	}
	r := t.record(route, at)
	r.event, r.Value = badEvent, values[t.rng.IntN(len(values))]
	return r
}

// record makes a record with a random partition, time and headers. Some records have forged oncebus headers,
// which must have no effect.
func (t *traffic) record(route string, at int) sentRecord {
	r := &kgo.Record{
		Topic:     signalsRaw,
		Partition: t.rng.Int32N(inputPartitions),
		Timestamp: time.UnixMilli(t.base + int64(at) + t.rng.Int64N(50)),
		Headers: []kgo.RecordHeader{{
			Key: "traceparent", Value: fmt.Appendf(nil, "00-%016x%016x-%016x-01", t.rng.Uint64(), t.rng.Uint64(), t.rng.Uint64()|1),
		}},
	}
	if route == "webhooks" {
		r.Topic = webhooksRaw
	}
	if t.rng.IntN(50) == 0 {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: "oncebus-verdict", Value: []byte("forged")},
			kgo.RecordHeader{Key: "Oncebus-Key", Value: []byte("forged")})
	}
	return sentRecord{Record: r, route: route}
}

// fingerprint digests the parts of a record that oncebus must not change: key, value, time, and all headers but
// its own. It distinguishes null from empty.
func fingerprint(r *kgo.Record) uint64 {
	h := fnv.New64a()
	part := func(b []byte) {
		n := int64(len(b))
		if b == nil {
			n = -1
		}
		h.Write(append(strconv.AppendInt(nil, n, 10), ':'))
		h.Write(b)
	}
	part(r.Key)
	part(r.Value)
	part(strconv.AppendInt(nil, r.Timestamp.UnixMilli(), 10))
	for _, header := range r.Headers {
		if !ownHeader(header.Key) {
			part([]byte(header.Key))
			part(header.Value)
		}
	}
	return h.Sum64()
}

// ownHeader reports whether a header belongs to oncebus. In an input record such a header is forged.
func ownHeader(name string) bool { return strings.HasPrefix(strings.ToLower(name), "oncebus-") }

// pick returns one of its arguments at random.
func pick(rng *rand.Rand, of ...string) string { return of[rng.IntN(len(of))] }
