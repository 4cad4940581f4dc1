package judge_test

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/wire"
)

// worldBegin is the broker time, in ms, at which an interleaving begins. Everything stored before it is history: by
// then, the app had emitted no event.
const worldBegin int64 = 1_700_000_000_000

// sourceEvent is an event as its sender wrote it. All times are in ms.
type sourceEvent struct {
	number int
	source int // index of its source; byHTTP for one of the ingress
	key    int
	time   int64 // event time
	stored int64 // broker time at which it was appended to its partition, or sent by HTTP
}

// byHTTP stands for the source of an event that came through the ingress.
const byHTTP = -1

// inputLog is a partition of an input topic.
type inputLog struct {
	app.TaskID
	// created is the broker time from which on the partition exists; 0 means always. All of its events are stored
	// later.
	created int64
	events  []*sourceEvent // by offset
	records []*kgo.Record  // the same
}

// stored returns how many records the partition has at a broker time.
func (l *inputLog) stored(now int64) int64 {
	n, _ := slices.BinarySearchFunc(l.events, now, func(ev *sourceEvent, now int64) int {
		if ev.stored <= now {
			return -1
		}
		return 1
	})
	return int64(n)
}

// sourceLogs has what the sources of an app send. A seed alone determines it.
type sourceLogs struct {
	window, grace, skew int64
	clamps              bool // events of the future; else they are invalid
	goesOn              bool // time goes on without events: it is the record's, and not the payload's
	// shared reports that the routes of two topics have one namespace. Otherwise each route has its own.
	shared bool
	routes *rules.Routes
	inputs []inputLog
	sent   []*sourceEvent // by HTTP, in the order of their times
	events []*sourceEvent // all, by number
	ended  int64          // broker time from which on nothing more is stored
}

// namespace returns a number for the namespace of an event.
func (l *sourceLogs) namespace(ev *sourceEvent) int {
	if l.shared || ev.source == byHTTP || l.inputs[ev.source].Topic == "a.raw" {
		return 0
	}
	return 1
}

// sourcePlan has the choices by which the events of a sourceLogs are drawn.
type sourcePlan struct {
	*sourceLogs

	rng           *rand.Rand
	history, live int64 // the span of event times before and after worldBegin
	http          bool
	inputs        []inputPlan
}

// inputPlan is how one input differs from the others.
type inputPlan struct {
	weight   float64 // of its traffic
	from, to int64   // of its event times
	delay    int64   // longest time from an event to its append: so events are out of order by that
	ahead    int64   // how far the clock of its sender is at most fast
}

// drawSourceLogs returns logs of 2 to 6 partitions of one or two topics. Keys come again within their window, after
// it, after the grace and after the retention.
func drawSourceLogs(t *testing.T, seed uint64) *sourceLogs {
	t.Helper()
	p := &sourcePlan{sourceLogs: &sourceLogs{ended: worldBegin, goesOn: seed%3 == 1}, rng: rand.New(rand.NewPCG(seed, 39))}
	minute := time.Minute.Milliseconds()
	p.window, p.grace = pickOne(p.rng, 2*minute, 10*minute, 60*minute), pickOne(p.rng, 0, minute, 10*minute, 90*minute)
	p.skew = min(p.window+p.grace, pickOne(p.rng, minute, 30*minute))
	p.clamps = p.rng.IntN(2) == 0
	p.history, p.live = p.rng.Int64N(25)*p.window, p.rng.Int64N(15)*p.window
	switch p.rng.IntN(4) {
	case 0:
		p.history = 0
	case 1:
		p.live = 0
	}
	p.live = max(p.live, 2*p.window-p.history)
	p.drawInputs(t)
	p.drawEvents()
	p.finish()
	return p.sourceLogs
}

func pickOne[T any](rng *rand.Rand, of ...T) T { return of[rng.IntN(len(of))] }

// drawInputs draws topics, partitions and routes.
func (p *sourcePlan) drawInputs(t *testing.T) {
	t.Helper()
	topics := 1 + p.rng.IntN(2)
	p.shared = topics == 1 || p.rng.IntN(3) > 0
	halving, partitions := p.rng.IntN(2) == 0, 2+p.rng.IntN(5)
	ahead := pickOne(p.rng, 0, 0, min(p.skew, (p.window+p.grace)/4))
	late := p.window + p.grace - ahead // an event that is stored this late is in time, just so
	begin, end := worldBegin-p.history, worldBegin+p.live
	next := map[string]int32{}
	for i := range partitions {
		topic := "a.raw"
		if topics == 2 && i > 0 && (i == 1 || p.rng.IntN(2) == 0) {
			topic = "b.raw"
		}
		in := inputPlan{weight: 1, from: begin, to: end, delay: pickOne(p.rng, 0, p.grace/2, p.grace, late/2, late)}
		if halving {
			in.weight = math.Pow(0.5, float64(i))
		}
		if p.rng.IntN(8) == 0 {
			in.weight = 0 // an empty partition, but for what has no other source
		}
		if p.rng.IntN(3) == 0 {
			in.from = begin + p.rng.Int64N(end-begin)
		}
		if p.rng.IntN(3) == 0 {
			in.to = in.from + p.rng.Int64N(end-in.from+1)
		}
		switch p.rng.IntN(20) {
		case 0:
			in.delay = 3 * late // its events may be late
		case 1, 2, 3:
			in.ahead = ahead
		}
		log := inputLog{TaskID: app.TaskID{Topic: topic, Partition: next[topic]}}
		next[topic]++
		if i == partitions-1 && i > 1 && p.live > 0 && p.rng.IntN(2) == 0 {
			log.created = worldBegin + 1 + p.rng.Int64N(p.live)
			in.from, in.to, in.ahead, in.weight = log.created, end, 0, 1
		}
		p.inputs, p.sourceLogs.inputs = append(p.inputs, in), append(p.sourceLogs.inputs, log)
	}
	p.http = p.rng.IntN(2) == 0
	p.drawRoutes(t, topics, p.rng.IntN(2) == 0)
}

// drawRoutes writes the routes: one for both topics, or one for each topic, in one namespace or in two.
func (p *sourcePlan) drawRoutes(t *testing.T, topics int, one bool) {
	t.Helper()
	names := [][]string{{"a.raw"}}
	switch {
	case topics == 2 && p.shared && one:
		names = [][]string{{"a.raw", "b.raw"}}
	case topics == 2:
		names = append(names, []string{"b.raw"})
	}
	future, details := "dead_letter", ""
	if !p.goesOn {
		details = "    time: {field: at}\n"
	}
	if p.clamps {
		future = "clamp"
	}
	if p.rng.IntN(3) == 0 {
		details += "    fingerprint: [id]\n" // equal for all events of a key: none collides
	}
	var text strings.Builder
	fmt.Fprintln(&text, "routes:")
	for _, topics := range names {
		namespace := "both"
		if !p.shared {
			namespace = topics[0][:1]
		}
		fmt.Fprintf(&text, `  - name: %s
    namespace: %s
    topics: [%s]
    key: [{field: id}]
    window: %dms
    grace: %dms
    skew: %dms
    on_future: %s
    output: unique
    duplicates: {to: duplicates}
    dead_letter: dead
%s`, topics[0][:1], namespace, strings.Join(topics, ", "), p.window, p.grace, p.skew, future, details)
	}
	var err error
	p.routes, err = rules.ParseRoutes("routes.yaml", []byte(text.String()))
	must(t, err)
}

// drawEvents draws the events: keys with all their repetitions, and other events in between.
func (p *sourcePlan) drawEvents() {
	span := p.history + p.live
	for key := range 30 {
		at, again := worldBegin-p.history+p.rng.Int64N(span), 1+p.rng.IntN(4)
		home := p.inputAt(at)
		for range again {
			for range 1 + p.rng.IntN(3) {
				within := p.rng.Int64N(p.window + 1)
				switch p.rng.IntN(4) {
				case 0:
					within = 0
				case 1:
					within = p.window
				}
				if p.rng.IntN(3) > 0 {
					home = p.inputAt(at + within)
				}
				p.add(home, key, at+within)
			}
			at += pickOne(p.rng, p.window+1, p.window+1+p.rng.Int64N(p.window), 2*p.window+1, p.window+p.grace+1+p.rng.Int64N(p.window),
				2*p.window+p.grace, 2*p.window+p.grace+1+p.rng.Int64N(5*p.window))
		}
	}
	for key := range 40 {
		at := worldBegin - p.history + p.rng.Int64N(span)
		p.add(p.inputAt(at), 1000+key, at)
	}
}

// inputAt draws a source that has events of this time.
func (p *sourcePlan) inputAt(at int64) int {
	if p.http && at > worldBegin && p.rng.IntN(6) == 0 {
		return byHTTP
	}
	sum := 0.0
	has := func(in inputPlan) bool { return at >= in.from && at <= in.to }
	for _, in := range p.inputs {
		if has(in) {
			sum += in.weight
		}
	}
	if sum == 0 {
		return p.rng.IntN(len(p.inputs) - 1) // the last one may not be there yet
	}
	left := p.rng.Float64() * sum
	for i, in := range p.inputs {
		if !has(in) {
			continue
		}
		if left -= in.weight; left < 0 {
			return i
		}
	}
	return 0
}

// add adds an event. A few are late, or from the future.
func (p *sourcePlan) add(source, key int, at int64) {
	ev := &sourceEvent{number: len(p.events), source: source, key: key, time: at, stored: at}
	var in inputPlan
	if source == byHTTP {
		ev.stored = max(at, worldBegin+1)
	} else {
		in = p.inputs[source]
	}
	switch {
	case in.ahead > 0:
		ev.stored -= p.rng.Int64N(in.ahead + 1)
	case in.delay > 0:
		ev.stored += p.rng.Int64N(in.delay + 1)
	}
	switch p.rng.IntN(120) {
	case 0, 1:
		ev.time -= p.window + p.grace + 1 + p.rng.Int64N(3*p.window)
	case 2, 3:
		ev.time = max(ev.stored, worldBegin) + p.skew + 10_000 + pickOne[int64](p.rng, 1, 1000)*p.rng.Int64N(30*p.window)
	}
	p.events = append(p.events, ev)
	p.ended = max(p.ended, ev.stored)
}

// finish brings the events into the order of their logs.
func (p *sourcePlan) finish() {
	byStored := slices.SortedStableFunc(slices.Values(p.events), func(a, b *sourceEvent) int { return cmp.Compare(a.stored, b.stored) })
	for _, ev := range byStored {
		if ev.source == byHTTP {
			p.sent = append(p.sent, ev)
			continue
		}
		log := &p.sourceLogs.inputs[ev.source]
		log.records = append(log.records, ev.record(log.TaskID, len(log.events)))
		log.events = append(log.events, ev)
	}
}

// record returns the record of an event.
func (ev *sourceEvent) record(in app.TaskID, offset int) *kgo.Record {
	return &kgo.Record{
		Topic: in.Topic, Partition: in.Partition, Offset: int64(offset), Timestamp: time.UnixMilli(ev.time),
		Value: fmt.Appendf(nil, `{"id":"%d","n":%d,"at":%d}`, ev.key, ev.number, ev.time),
	}
}

// envelope returns the record of an event by HTTP in the repartition topic, as the ingress writes it.
func (l *sourceLogs) envelope(rt *app.App, deriver *rules.Deriver, ev *sourceEvent) *kgo.Record {
	raw := ev.record(app.TaskID{Topic: "a.raw"}, 0)
	var in rules.Input
	wire.SetInput(&in, raw)
	var d rules.Derived
	deriver.DeriveTo(&d, &in)
	env := wire.Envelope{
		Route: []byte(d.Route.WireName()), Digest: d.Digest, Hashed: d.Hashed, Key: d.Key, EventTime: d.Time, Timestamp: ev.time,
		Details: wire.DetailsOf(&d), FromIngress: true,
	}
	return &kgo.Record{Topic: rt.Topology.Repartition, Partition: rt.Hasher.Partition(&d.Routing), Key: env.Append(nil), Value: raw.Value}
}
