//go:build unix

package main

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/oracle"
)

// headerFlow is the header by which the harness recognises its records. It has the number of the raw partition (the
// flow) and the time at which the record was made (us). The app forwards it like any other header.
const headerFlow = "flow"

// flowPlace returns the raw partition that belongs to a flow, without the app's prefix.
func flowPlace(flow int) string {
	topic := claimRaw
	if n := flow / rawPartitions; n < len(routes) {
		topic = routes[n].topic
	}
	return fmt.Sprintf("%s/%d", topic, flow%rawPartitions)
}

func appendFlow(flow int, at time.Time) []byte {
	return binary.BigEndian.AppendUint64([]byte{byte(flow)}, uint64(at.UnixMicro()))
}

// flowOf reads the header flow of a record. ok is false for a record of another producer.
func flowOf(headers []kgo.RecordHeader) (flow int, sent int64, ok bool) {
	for i := range headers {
		if headers[i].Key == headerFlow && len(headers[i].Value) == 9 {
			v := headers[i].Value
			return int(v[0]), int64(binary.BigEndian.Uint64(v[1:])), int(v[0]) < flows
		}
	}
	return 0, 0, false
}

// traffic fills the raw topics of an app at a constant mean rate. Some of its events are duplicates. It stores the
// records that the broker has acknowledged.
type traffic struct {
	app    *app
	rng    *rand.Rand
	zipf   *rand.Zipf
	client *kgo.Client
	stop   context.CancelFunc
	done   chan struct{}

	phase phase
	known [][]event      // by route: events of which duplicates may be sent
	next  int            // number of the next new event
	rows  map[string]int // records of rows t1 to t3, see trafficRows

	claims   claimTraffic
	executor *executor
	senders  *senders
	extraID  string // id of the last record of the added route

	acked atomic.Int64
	mu    sync.Mutex
	sent  []oracle.Sent
	err   error // the error of the first record that the broker rejected
}

// trafficRows are the rows of the matrix that need no fault, because the traffic itself tests them.
var trafficRows = map[string]string{
	"t1": "late and future event times",
	"t2": "duplicates: recent, Zipf, hot, at the edge of the window, in all raw partitions at once",
	"t3": "nulls, no key, broken JSON, 64 KiB keys, values over 1 MiB",
}

// event has what all records of an event have in common.
type event struct {
	id     string
	at     int64 // event time of the event's first record, ms
	copied bool  // the event was sent before
}

// phase is a kind of traffic that lasts for some seconds.
type phase struct {
	until      time.Time
	duplicates float64 // share of duplicates
	zipf       bool    // duplicates follow Zipf's law instead of being recent
	hot        string  // half of all records have this id; "" for none
}

const (
	tick       = 10 * time.Millisecond
	knownMax   = 20_000 // number of events of a route of which duplicates may be sent
	zipfIDs    = 100_000
	catchUpMax = 5 // factor by which the rate may rise after a stall
	odd        = 1_000
)

// startTraffic starts to produce. The caller must end the traffic by a call of end.
func startTraffic(a *app, rng *rand.Rand, rate int) (*traffic, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(a.h.cluster.seeds()...), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchMaxBytes(rawMaxBytes), kgo.MaxBufferedRecords(50_000), kgo.ProducerLinger(linger),
		kgo.MetadataMinAge(250*time.Millisecond), kgo.ClientID("traffic"))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(a.h.ctx)
	t := &traffic{
		app: a, rng: rng, zipf: rand.NewZipf(rng, 1.2, 1, zipfIDs), client: client, stop: cancel, done: make(chan struct{}),
		known: make([][]event, len(routes)), rows: map[string]int{}, claims: claimTraffic{rng: rand.New(rand.NewPCG(rng.Uint64(), 3))},
	}
	t.executor = startExecutor(a, rand.New(rand.NewPCG(rng.Uint64(), 4)))
	t.senders = startSenders(a, rand.New(rand.NewPCG(rng.Uint64(), 5)))
	go t.run(ctx, rate)
	return t, nil
}

// end stops the production and returns once the broker has acknowledged all records.
func (t *traffic) end(ctx context.Context) ([]oracle.Sent, error) {
	t.stop()
	<-t.done
	t.senders.end()
	err := t.client.Flush(ctx)
	t.client.Close()
	t.executor.end()
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.sent, errors.Join(err, t.err)
}

func (t *traffic) run(ctx context.Context, rate int) {
	defer close(t.done)
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	due, last := 0.0, time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		now := time.Now()
		due += now.Sub(last).Seconds() * float64(rate)
		last = now
		if now.After(t.phase.until) {
			t.phase = t.drawPhase(now)
		}
		n := min(int(due), int(catchUpMax*float64(rate)*tick.Seconds())+1)
		due -= float64(n)
		t.produceClaims(n, now)
		for n > 0 && ctx.Err() == nil {
			n -= t.one(now)
		}
	}
}

func (t *traffic) drawPhase(now time.Time) phase {
	p := phase{until: now.Add(time.Duration(3+t.rng.IntN(12)) * time.Second)}
	p.duplicates = []float64{0, 0.1, 0.3, 0.5, 0.9, 0.95}[t.rng.IntN(6)]
	switch t.rng.IntN(4) {
	case 0:
		p.zipf = true
	case 1:
		p.hot = t.newID("hot")
	}
	return p
}

func (t *traffic) newID(kind string) string {
	t.next++
	return fmt.Sprintf("%s-%d", kind, t.next)
}

// one produces either one record, or one record to each partition of a raw topic at once. It returns the number of
// records.
func (t *traffic) one(now time.Time) int {
	route := t.rng.IntN(len(routes))
	ev, at := t.draw(route, now)
	if ev.copied {
		t.rows["t2"]++
	}
	if t.rng.IntN(odd) < 5 {
		t.rows["t2"] += rawPartitions
		for p := range rawPartitions {
			t.produce(route, p, ev.id, now, at)
		}
		return rawPartitions
	}
	t.produce(route, t.rng.IntN(rawPartitions), ev.id, now, at)
	return 1
}

// draw returns an event to send, and the event time for this record of it.
func (t *traffic) draw(route int, now time.Time) (event, int64) {
	ms := now.UnixMilli()
	known := t.known[route]
	switch {
	case t.phase.hot != "" && t.rng.IntN(2) == 0:
		return event{t.phase.hot, ms, true}, ms
	case t.phase.zipf && t.rng.Float64() < t.phase.duplicates:
		return event{fmt.Sprintf("zipf-%d", t.zipf.Uint64()), ms, true}, ms
	case len(known) > 0 && t.rng.Float64() < t.phase.duplicates:
		ev := known[t.rng.IntN(len(known))]
		if t.rng.IntN(2) == 0 {
			ev = known[max(0, len(known)-1-t.rng.IntN(50))]
		}
		if t.rng.IntN(odd) < 5 {
			// Choose times at the edges of the window, where an off-by-one error would show.
			edge := ev.at + routes[route].rules.Window + int64(t.rng.IntN(3)-1)
			return ev, min(edge, ms+15_000)
		}
		return ev, ms
	}
	ev := event{t.newID("e"), t.eventTime(ms), false}
	if len(known) >= knownMax {
		known = known[knownMax/4:]
	}
	t.known[route] = append(known, event{ev.id, ev.at, true})
	return ev, ev.at
}

// eventTime mostly returns ms, and sometimes a time that is late or far in the future instead.
func (t *traffic) eventTime(ms int64) int64 {
	const year = 365 * 24 * 3_600_000
	if t.rng.IntN(odd) >= 10 {
		return ms - int64(t.rng.IntN(200))
	}
	t.rows["t1"]++
	return ms + []int64{-year, -50_000, -30_000, -26_000, -8_000, -1_000, 1_000, 1_900, 5_000, year}[t.rng.IntN(10)]
}

// noise returns n characters that no compression codec shortens by half.
func (t *traffic) noise(n int) string {
	raw := make([]byte, n*3/4)
	for i := range raw {
		raw[i] = byte(t.rng.Uint32())
	}
	return base64.RawStdEncoding.EncodeToString(raw)
}

// produce sends one record of an event. It blocks while the client's buffer is full, for example during an outage of
// the broker.
func (t *traffic) produce(route, partition int, id string, now time.Time, at int64) {
	r := &kgo.Record{Topic: t.app.topic(routes[route].topic), Partition: int32(partition), Timestamp: time.UnixMilli(at)}
	r.Headers = []kgo.RecordHeader{{Key: headerFlow, Value: appendFlow(route*rawPartitions+partition, now)}}
	if t.rng.IntN(3) > 0 {
		r.Key = fmt.Appendf(nil, "k%d", t.rng.IntN(500))
	}
	pad := strings.Repeat("x", t.rng.IntN(100))
	switch t.rng.IntN(50_000) {
	case 0:
		pad = t.noise(3<<19 + t.rng.IntN(100_000)) // larger than 1 MiB even when it is compressed
		t.rows["t3"]++
	case 1, 2, 3:
		pad = strings.Repeat("x", 100_000)
	}
	r.Value = fmt.Appendf(nil, `{"n":%d,"pad":"%s"}`, t.rng.IntN(1_000_000), pad)
	if t.rng.IntN(odd) < 5 {
		t.rows["t3"]++
		id = t.spoil(route, r)
	} else {
		routes[route].key(r, id)
	}
	t.client.Produce(context.Background(), r, func(r *kgo.Record, err error) { t.acknowledged(routes[route].name, id, r, err) })
}

// spoil changes a record into an unusual record, or into a record without a dedup key. It returns the id; "" for a
// record without a dedup key.
func (t *traffic) spoil(route int, r *kgo.Record) string {
	switch name := routes[route].name; {
	case name == "signals":
		r.Value = [][]byte{nil, {}, []byte(`{"id":`), []byte(`{"other":1}`), []byte("\xff\xfe"), []byte(`{"id":null}`), []byte(`{"id":"a","id":"b"}`)}[t.rng.IntN(7)]
		return ""
	case name == "orders":
		r.Key = [][]byte{nil, {}, make([]byte, 64<<10)}[t.rng.IntN(3)]
		return ""
	case t.rng.IntN(2) == 0:
		return "" // the header with the dedup key is missing
	}
	// The dedup key is in a header, so the value can be anything.
	id := t.newID("e")
	r.Value = [][]byte{nil, {}, []byte(`{"broken`), {0xff, 0x00}}[t.rng.IntN(4)]
	routes[route].key(r, id)
	return id
}

func (t *traffic) acknowledged(route, id string, r *kgo.Record, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil {
		if t.err == nil {
			t.err = fmt.Errorf("the broker rejected a raw record of %s/%d: %w", r.Topic, r.Partition, err)
		}
		return
	}
	t.acked.Add(1)
	t.sent = append(t.sent, oracle.Sent{Record: toRecord(r), Route: route, ID: id})
}

// toRecord converts a record into the form that the oracle reads.
func toRecord(r *kgo.Record) oracle.Record {
	rec := oracle.Record{
		Topic: r.Topic, Partition: r.Partition, Offset: r.Offset, Timestamp: r.Timestamp.UnixMilli(),
		Key: r.Key, Value: r.Value, Headers: make([]oracle.Header, len(r.Headers)),
	}
	for i, h := range r.Headers {
		rec.Headers[i] = oracle.Header{Key: h.Key, Value: h.Value}
	}
	return rec
}
