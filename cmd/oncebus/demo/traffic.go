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

// The inputs of the demo. The routes file names the same topics.
const (
	signalsRaw      = "signals.raw"
	webhooksRaw     = "webhooks.raw"
	inputPartitions = 6
)

// headerRecord carries a record's number through oncebus, which passes foreign
// headers untouched: by it the ledger knows again what it reads.
const headerRecord = "demo-record"

// badEvent stands for the event of a record that is none.
const badEvent = -1

// sentRecord is a record to produce and what the generator knows about it. The
// event is the identity by construction; no dedup key is derived here.
type sentRecord struct {
	*kgo.Record
	event int // the same for all copies of one event; badEvent for bad records
	route string
}

// traffic generates the demo's records from a seed: the same seed and base
// time give the same records in the same order.
type traffic struct {
	rng  *rand.Rand
	base int64 // event time of the first record, in Unix milliseconds
	// events holds one line per event, from which its copies are written.
	events []sentEvent
	// later holds copies to be sent when so many records have been.
	later map[int][]sentRecord
}

// sentEvent is what every copy of an event agrees on.
type sentEvent struct {
	route    string
	key      []byte // record key
	identity []member
	details  []member
	copies   int // written so far
}

// member is one member of a JSON object, its value already encoded.
type member struct{ name, value string }

func newTraffic(seed uint64, base time.Time) *traffic {
	return &traffic{
		rng:   rand.New(rand.NewPCG(seed, 0x6f6e6365627573)),
		base:  base.UnixMilli(),
		later: map[int][]sentRecord{},
	}
}

// live generates n records of ordinary traffic: events, copies of them beside
// and soon after them, on the same partition and on others, and bad records.
// A copy that would come after the end is never sent.
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
		records = append(records, t.copyOf(event, at))
		for range t.copies() {
			records = t.addCopy(records, event, at)
		}
	}
	return records[:n]
}

// copies draws how many copies an event has besides its first record.
func (t *traffic) copies() int { return [...]int{0, 0, 0, 0, 0, 1, 1, 1, 2, 3}[t.rng.IntN(10)] }

// addCopy sends a copy of event: at once and on the same partition, as the twin
// in the same batch, or a little later on any partition.
func (t *traffic) addCopy(records []sentRecord, event, at int) []sentRecord {
	if t.rng.IntN(3) == 0 {
		twin := t.copyOf(event, at)
		twin.Partition = records[len(records)-1].Partition
		return append(records, twin)
	}
	due := at + 8 + t.rng.IntN(400)
	t.later[due] = append(t.later[due], t.copyOf(event, due))
	return records
}

// retries generates n copies of events sent by live, as a producer sends them
// that comes back after pauseTime.
func (t *traffic) retries(n int) []sentRecord {
	t.base += pauseTime.Milliseconds()
	records := make([]sentRecord, n)
	for i := range records {
		records[i] = t.copyOf(t.rng.IntN(len(t.events)), i)
	}
	return records
}

// newEvent draws an event. Its identity is unique because its number is in it.
func (t *traffic) newEvent() int {
	n := len(t.events)
	if t.rng.IntN(100) < 40 {
		t.events = append(t.events, t.newWebhook(n))
	} else {
		t.events = append(t.events, t.newSignal(n))
	}
	return n
}

// newSignal draws a trade signal. One in three has no trace id, absent, null
// or empty, and is told apart by its timestamp alone.
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

// newWebhook draws a provider's webhook.
func (t *traffic) newWebhook(n int) sentEvent {
	resource := fmt.Sprintf("pay_%04d", t.rng.IntN(5000))
	return sentEvent{route: "webhooks", key: []byte(resource), identity: []member{
		{"eventId", fmt.Sprintf(`"evt_%08x_%d"`, t.rng.Uint32(), n)},
		{"resourceId", strconv.Quote(resource)},
		{"eventType", strconv.Quote(pick(t.rng, "payment.succeeded", "payment.failed", "refund.created"))},
	}}
}

// copyOf writes a record of event, the at-th of its part: the same identity
// with the members in another order, other spaces, and for webhooks another
// retryCount and timestamp.
func (t *traffic) copyOf(event, at int) sentRecord {
	e := &t.events[event]
	members := slices.Concat(e.identity, e.details)
	if e.route == "webhooks" {
		members = append(members, member{"retryCount", strconv.Itoa(e.copies)},
			member{"timestamp", strconv.FormatInt(t.base+int64(at), 10)})
	}
	t.rng.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
	r := t.record(e.route, at)
	r.Key, r.Value = e.key, t.object(members)
	e.copies++
	r.event = event
	return r
}

// object writes a JSON object, sometimes with spaces nobody needs.
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

// bad draws a record that cannot be judged and belongs in the dead-letter topic.
func (t *traffic) bad(at int) sentRecord {
	signal := [][]byte{
		[]byte(`{"traceId":"cut of`),                    // not JSON
		[]byte(`{"symbol":"AAPL","exchange":"NASDAQ"}`), // fields missing
		nil, // null payload
		[]byte(`{"traceId":"` + strings.Repeat("x", 5000) + `"}`), // key over the limit
		[]byte(`{"traceId":{"id":1},"symbol":"AAPL"}`),            // wrong type
		{0xff, 0xfe, 0x00, 0x7b},                                  // not even text
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

// record draws the parts that do not depend on the event: partition, time and
// headers, now and then with forged ones that must count for nothing.
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

// fingerprint digests everything of r that must pass through untouched: key,
// value, time and every header that is not oncebus's own. It tells a null from
// an empty value.
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

// ownHeader reports whether a header belongs to oncebus: on input it is forged.
func ownHeader(name string) bool { return strings.HasPrefix(strings.ToLower(name), "oncebus-") }

func pick(rng *rand.Rand, of ...string) string { return of[rng.IntN(len(of))] }
