//go:build unix

package main_test

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// realRoutes has a route of each kind: an id with a hash of details as its fallback,
// a hash without the fields that differ in retries, and a prepartitioned input.
const realRoutes = `
routes:
  - name: signals
    topics: [APP.signals.raw]
    key:
      - field: traceId
      - hash: [symbol, exchange, action, timestamp]
    window: 1h
    output: APP.signals.unique
    headers: [route, key, verdict]
    dead_letter: APP.dead-letter
  - name: webhooks
    topics: [APP.webhooks.raw]
    key:
      - hash: [eventId, resourceId, eventType]
    window: 1h
    output: APP.webhooks.unique
    headers: [route, key, verdict]
    dead_letter: APP.dead-letter
  - name: orders
    topics: [APP.orders.raw]
    prepartitioned: true
    key:
      - fields: [account, request]
    window: 1h
    output: APP.orders.unique
    headers: [route, key, verdict]
    dead_letter: APP.dead-letter
`

// The topics of realRoutes.
var (
	realInputs  = []string{"signals.raw", "webhooks.raw", "orders.raw"}
	realOutputs = []string{"signals.unique", "webhooks.unique", "orders.unique", "dead-letter"}
)

// traffic makes the events of one route, with duplicates.
type traffic struct {
	w      *world
	topic  string // name of the input
	output string // name of the output
	ledger *ledger
	next   int // number of the next new event
	// record makes a record of event n.
	record func(w *world, n, copied int) *kgo.Record
}

// realTraffic returns one traffic for each route of realRoutes.
func (w *world) realTraffic() []*traffic {
	all := []*traffic{
		{topic: "signals.raw", output: "signals.unique", record: signalRecord},
		{topic: "webhooks.raw", output: "webhooks.unique", record: webhookRecord},
		{topic: "orders.raw", output: "orders.unique", record: orderRecord},
	}
	for _, tr := range all {
		tr.w, tr.ledger = w, newLedger()
		tr.ledger.asks = true
	}
	return all
}

// send produces n new events of each traffic, with duplicates: in the same batch,
// later, and of events of earlier sends. About half of all records are duplicates.
func send(w *world, n int, all ...*traffic) {
	w.t.Helper()
	var records []*kgo.Record
	for _, tr := range all {
		records = append(records, tr.chunk(n)...)
	}
	w.produce(records...)
}

func (tr *traffic) chunk(n int) []*kgo.Record {
	type place struct {
		at    float64 // the first record of the chunk's i-th event is at i
		event int
	}
	rng := tr.w.rng
	var places []place
	for i := range n {
		event := tr.next + i
		places = append(places, place{float64(i), event})
		for range []int{0, 0, 1, 1, 2, 3}[rng.IntN(6)] {
			behind := 0.5
			if rng.IntN(3) > 0 {
				behind = 1 + rng.Float64()*40
			}
			places = append(places, place{float64(i) + behind, event})
		}
	}
	if tr.next > 0 {
		for range n / 10 {
			places = append(places, place{rng.Float64() * float64(n), rng.IntN(tr.next)})
		}
	}
	tr.next += n
	slices.SortStableFunc(places, func(a, b place) int { return cmp.Compare(a.at, b.at) })
	records := make([]*kgo.Record, len(places))
	for i, p := range places {
		id := fmt.Sprintf("%s-%d", tr.topic, p.event)
		r := tr.record(tr.w, p.event, len(tr.ledger.copies[id]))
		r.Topic = tr.w.topic(tr.topic)
		r.Timestamp = time.Now().Truncate(time.Millisecond)
		// Headers as applications send them: a trace, a repeated one, bytes that are
		// not text, a null value.
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: "traceparent", Value: []byte("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")},
			kgo.RecordHeader{Key: "x", Value: []byte{0xff, 0x00}}, kgo.RecordHeader{Key: "x", Value: nil})
		records[i] = tr.ledger.add(id, r)
	}
	return records
}

// signalRecord makes a trade signal. Every second one has a trace id, and details that differ between its records; the key of the
// others is their details. Some records have no record key.
func signalRecord(w *world, n, copied int) *kgo.Record {
	r := &kgo.Record{Partition: w.rng.Int32N(realPartitions)}
	if n%3 > 0 {
		r.Key = fmt.Appendf(nil, "strategy-%d", n%20)
	}
	if n%2 == 0 {
		r.Value = fmt.Appendf(nil, `{"traceId":"t-%d","symbol":"BTCUSDT","attempt":%d}`, n, copied)
	} else {
		r.Value = fmt.Appendf(nil, `{"attempt":%d,"symbol":"S%d","exchange":"X","action":"buy","timestamp":%d}`, copied, n%7, 1_700_000_000_000+n)
	}
	return r
}

// webhookRecord makes a webhook, whose retries have another member order, timestamp and count.
func webhookRecord(w *world, n, copied int) *kgo.Record {
	members := []string{
		fmt.Sprintf(`"eventId":"e-%d"`, n), fmt.Sprintf(`"resourceId":%d`, n%10), `"eventType":"payment.créé"`,
		fmt.Sprintf(`"timestamp":%d`, time.Now().UnixNano()), fmt.Sprintf(`"retryCount":%d`, copied),
	}
	w.rng.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
	return &kgo.Record{
		Partition: w.rng.Int32N(realPartitions),
		Key:       strconv.AppendInt(nil, int64(n%30), 10),
		Value:     []byte("{ " + strings.Join(members, " , ") + "}"),
	}
}

// orderRecord makes an order of one of a few accounts. The account determines the
// partition, so all records of one dedup key are in one partition. Request numbers of
// an account rise.
func orderRecord(_ *world, n, _ int) *kgo.Record {
	account := fmt.Sprintf("account-%d", n%25)
	h := fnv.New32a()
	h.Write([]byte(account))
	return &kgo.Record{
		Partition: int32(h.Sum32() % realPartitions),
		Key:       []byte(account),
		Value:     fmt.Appendf(nil, `{"account":%q,"request":%d}`, account, n),
	}
}

// orderNumber returns the request number of an order.
func orderNumber(r *kgo.Record) int64 {
	_, number, _ := strings.Cut(headerOf(r, headerTestEvent), "orders.raw-")
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		return -1
	}
	return n
}

// checkTraffic checks the outputs of realRoutes: every event once and unchanged, those of the prepartitioned route as their first
// record and in order by record key, and an empty dead-letter topic.
func (w *world) checkTraffic(all []*traffic) {
	w.t.Helper()
	w.drained(realInputs, realOutputs)
	for _, tr := range all {
		out := w.output(tr.output)
		emitted := tr.ledger.checkOnce(w.t, out)
		if tr.topic == "orders.raw" {
			tr.ledger.checkFirst(w.t, emitted)
			checkOrder(w.t, out, orderNumber)
		}
	}
	for _, r := range w.output("dead-letter") {
		w.t.Errorf("dead letter of %s: %s", headerOf(r, "oncebus-source"), headerOf(r, "oncebus-reason"))
	}
}
