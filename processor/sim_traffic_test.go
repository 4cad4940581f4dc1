//go:build synctests

package processor_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/kafka"
	"oncebus/processor/oracle"
)

// recentMax is how many records are kept as originals of later duplicates.
const recentMax = 400

// rawTraffic makes raw records and remembers the records that the broker has.
type rawTraffic struct {
	*simSettings
	rng    *rand.Rand
	zipf   *rand.Zipf
	client *kgo.Client
	ids    int
	posts  int
	recent []oracle.Sent
	sent   []oracle.Sent

	post    func(value []byte, id string) // sends an event of the first route by HTTP; nil without an ingress
	claimed claimTraffic
	seen    func(topic string, from int) []oracle.Record // what the tail has seen
}

func newTraffic(settings *simSettings, rng *rand.Rand, client *kgo.Client) *rawTraffic {
	return &rawTraffic{simSettings: settings, rng: rng, zipf: rand.NewZipf(rng, 1.2, 1, uint64(max(1, settings.hotKeys-1))), client: client}
}

// flow produces for a while, with a burst now and then.
func (g *rawTraffic) flow(d time.Duration) error {
	for end := time.Now().Add(d); time.Now().Before(end); {
		if err := g.burst(); err != nil {
			return err
		}
		_ = kafka.Pause(context.Background(), time.Duration(100+g.rng.IntN(1500))*time.Millisecond)
	}
	return nil
}

// burst produces a few records and waits until the broker has them.
func (g *rawTraffic) burst() error {
	if g.claims != nil {
		records := g.claimRecords()
		if err := g.client.ProduceSync(context.Background(), records...).FirstErr(); err != nil {
			return fmt.Errorf("produce raw records: %w", err)
		}
		g.commitTaken()
		return nil
	}
	if g.post != nil && g.rng.Float64() < g.http {
		g.postSome()
	}
	var made []oracle.Sent
	for range 1 + g.rng.IntN(g.rate) {
		made = append(made, g.draw()...)
	}
	records := make([]*kgo.Record, len(made))
	for n := range made {
		m := &made[n]
		records[n] = &kgo.Record{Topic: m.Topic, Partition: m.Partition, Key: m.Key, Value: m.Value, Timestamp: time.UnixMilli(m.Timestamp)}
		for _, h := range m.Headers {
			records[n].Headers = append(records[n].Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
		}
	}
	if err := g.client.ProduceSync(context.Background(), records...).FirstErr(); err != nil {
		return fmt.Errorf("produce raw records: %w", err)
	}
	for n := range made {
		made[n].Offset = records[n].Offset
	}
	g.sent = append(g.sent, made...)
	g.recent = append(g.recent, made...)
	g.recent = g.recent[max(0, len(g.recent)-recentMax):]
	return nil
}

// postSome sends events by HTTP: new events, and duplicates of events that came by Kafka or by HTTP.
func (g *rawTraffic) postSome() {
	for range 1 + g.rng.IntN(g.rate) {
		id := fmt.Sprint("hot-", g.zipf.Uint64())
		switch n := g.rng.IntN(4); {
		case n == 0 && len(g.recent) > 0:
			if s := g.recent[g.rng.IntN(len(g.recent))]; s.Route == g.routes[0].Name && s.ID != "" {
				id = s.ID
			}
		case g.rng.Float64() >= g.hot:
			g.ids++
			id = fmt.Sprint("id-", g.ids)
		}
		g.posts++
		g.post(fmt.Appendf(nil, `{"id":%q,"post":%d}`, id, g.posts), id)
	}
}

// draw makes one event, or several duplicates of an event.
func (g *rawTraffic) draw() []oracle.Sent {
	r := g.rng
	if len(g.recent) > 0 && r.IntN(3) == 0 {
		return g.duplicates()
	}
	route := r.IntN(len(g.routes))
	partition := r.Int32N(g.rawPartitions)
	at := time.Now().Add(g.clockOff[partition]).UnixMilli()
	window, grace, skew := g.routes[route].Window, g.routes[route].Grace, g.routes[route].Skew
	switch r.IntN(40) {
	case 0: // too old to be judged, or nearly
		at -= window + grace + r.Int64N(2*time.Minute.Milliseconds()) - time.Minute.Milliseconds()/2
	case 1: // from the far future, or nearly
		at += skew + r.Int64N(2*time.Minute.Milliseconds()) - time.Minute.Milliseconds()
	case 2:
		at += 365 * 24 * time.Hour.Milliseconds()
	case 3:
		at -= 365 * 24 * time.Hour.Milliseconds()
	}
	id := fmt.Sprint("hot-", g.zipf.Uint64())
	if r.Float64() >= g.hot {
		g.ids++
		id = fmt.Sprint("id-", g.ids)
	}
	e := g.event(route, partition, id, at)
	if r.IntN(25) == 0 {
		g.spoil(&e, route)
	}
	return []oracle.Sent{e}
}

// event makes an event. The key of signals is the payload's id, and the key of orders is the record key.
func (g *rawTraffic) event(route int, partition int32, id string, at int64) oracle.Sent {
	e := oracle.Sent{Route: g.routes[route].Name, ID: id, Record: oracle.Record{
		Topic: g.inputs[route], Partition: partition, Timestamp: at, Key: []byte(id),
		Headers: []oracle.Header{{Key: "traceparent", Value: fmt.Appendf(nil, "00-%d", len(g.sent))}},
	}}
	e.Value = fmt.Appendf(nil, `{"id":%q,"n":%d}`, id, g.rng.IntN(1000))
	if route == 0 && g.rng.IntN(4) == 0 {
		e.Key = nil // then the dedup key says where in the output it goes
	}
	if route == 1 && g.rng.IntN(4) == 0 {
		e.Value = nil
	}
	if g.rng.IntN(20) == 0 {
		e.Headers = append(e.Headers, oracle.Header{Key: "Oncebus-Verdict", Value: []byte("forged")})
	}
	if g.rng.IntN(20) == 0 {
		attempt := [...]string{"1", "31", "1000000", "-1", ""}[g.rng.IntN(5)] // two of redrive, and forged ones
		e.Headers = append(e.Headers, oracle.Header{Key: "oncebus-redrive-attempt", Value: []byte(attempt)})
	}
	return e
}

// spoil removes the key from an event.
func (g *rawTraffic) spoil(e *oracle.Sent, route int) {
	e.ID = ""
	if route == 1 {
		e.Key = nil
		return
	}
	e.Value = [][]byte{nil, {}, []byte("no json"), []byte(`{"n":1}`), []byte(`{"id":null}`), []byte(`{"id":{}}`)}[g.rng.IntN(6)]
}

// duplicates makes duplicates of a recent record: the same record again, one copy in every raw partition, or copies
// at the edges of its window.
func (g *rawTraffic) duplicates() []oracle.Sent {
	r := g.rng
	original := g.recent[r.IntN(len(g.recent))]
	twin := func(partition int32, at int64) oracle.Sent {
		c := original
		c.Partition, c.Timestamp = partition, at
		return c
	}
	window := int64(0)
	for _, route := range g.routes {
		if route.Name == original.Route {
			window = route.Window
		}
	}
	at := original.Timestamp
	switch r.IntN(10) {
	case 0:
		var all []oracle.Sent
		for p := range g.rawPartitions {
			all = append(all, twin(p, at))
		}
		r.Shuffle(len(all), func(a, b int) { all[a], all[b] = all[b], all[a] })
		return all
	case 1:
		return []oracle.Sent{twin(r.Int32N(g.rawPartitions), at+pick(r, -window-1, -window, window-1, window, window+1))}
	}
	return slices.Repeat([]oracle.Sent{twin(r.Int32N(g.rawPartitions), at)}, 1+r.IntN(2))
}

func (g *rawTraffic) must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
