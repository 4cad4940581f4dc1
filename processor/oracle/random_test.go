package oracle

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"oncebus/dedup"
)

// A model is the correct app: package dedup decides, the scenario records.
type model struct {
	*scenario
	rng   *rand.Rand
	rows  map[string]dedup.Row // by route and id
	first map[string]Sent
	last  map[string]int64 // stream time after base, by partition and route
	now   int64            // ms after base
	ids   int
}

// play returns a clean history of n raw records.
func play(seed uint64, n int) *scenario {
	rng := rand.New(rand.NewPCG(seed, 7))
	m := &model{scenario: newWorld(), rng: rng, rows: map[string]dedup.Row{}, first: map[string]Sent{}, last: map[string]int64{}, ids: 1 + n/3}
	m.noStores = n > 10_000 // each is a copy of all rows
	m.packs = seed%2 == 1
	for range n {
		m.step()
		if rng.IntN(20) == 0 {
			for p := range m.cfg.Partitions {
				m.commit(p)
			}
			m.h.Stores = m.h.Stores[max(0, len(m.h.Stores)-4):]
		}
	}
	for p := range m.cfg.Partitions {
		m.commit(p)
	}
	return m.scenario
}

func (m *model) step() {
	m.now += m.rng.Int64N(20)
	if m.rng.IntN(50) == 0 {
		m.sendWithoutKey(m.rng.Int32N(2), m.now)
		return
	}
	route, at := m.rng.IntN(2), m.now-m.rng.Int64N(60)
	if m.rng.IntN(20) == 0 {
		at = m.now - 1500 + m.rng.Int64N(2100) // late, or from the future
	}
	s := m.send(route, m.rng.Int32N(2), fmt.Sprint("id-", m.rng.IntN(m.ids)), at)
	r := &m.cfg.Routes[route]
	span := dedup.Window{Size: window, Grace: grace, Skew: skew, ClampFuture: r.Future == Clamp}
	task := fmt.Sprint(partitionOf(s.ID), "/", route)
	streamTime, running := m.last[task]
	if !running {
		streamTime = dedup.NoStreamTime
	}
	verdict, eventTime := span.Admit(at, streamTime, m.now)
	var row dedup.Row
	name := r.Name + "/" + s.ID
	prior, held := m.rows[name]
	if verdict == dedup.Unique {
		verdict, row = dedup.Decide(dedup.Event{Time: eventTime, NamespaceID: r.NamespaceID}, prior, held, span, streamTime)
		defer func() { m.last[task] = dedup.NextStreamTime(streamTime, at, eventTime) }()
	}
	switch verdict {
	case dedup.Unique, dedup.AfterWindow:
		m.forwarded(s, verdict.String(), m.now, eventTime)
		m.rows[name], m.first[name] = row, s
	case dedup.Duplicate:
		topic := r.DuplicatesTo
		if r.Duplicates == Forward {
			topic = r.Output
		}
		m.duplicate(s, topic, eventTime, prior.First, m.first[name])
	case dedup.Late:
		topic := r.DeadLetter
		if r.Late == Forward {
			topic = r.Output
		}
		m.late(s, topic, span.Late(eventTime, streamTime), eventTime, streamTime, prior.First)
		if streamTime != dedup.NoStreamTime && !span.Late(eventTime, streamTime) && eventTime == at {
			// Late by its row alone: it was admitted, and moved stream time.
			m.times[partitionOf(s.ID)][r.NamespaceID] = max(m.times[partitionOf(s.ID)][r.NamespaceID], base+eventTime)
		}
	default:
		m.refused(s, m.now, verdict.String(), r.DeadLetter, fmt.Sprintf("event time %d is more than 500ms ahead of the broker's %d", base+at, base+m.now))
	}
}

func (m *model) duplicate(s Sent, topic string, at, firstTime int64, first Sent) {
	r := m.repartition(s, m.now)
	m.emit(s, topic, headerRoute, s.Route, headerVerdict, "duplicate", headerKey, keyText(s.ID), headerReason, fmt.Sprintf("duplicate %v after the first, window 1s", ms(at-firstTime)),
		headerSource, m.source(&s), headerFirst, m.source(&first), headerFirstTime, fmt.Sprint(base+firstTime))
	m.judged(r, s, base+at)
}

func (m *model) late(s Sent, topic string, byStreamTime bool, at, streamTime, first int64) {
	reason := fmt.Sprintf("event time %d cannot be judged: the first event under the key has time %d, window 1s", base+at, base+first)
	if byStreamTime {
		reason = fmt.Sprintf("event time %d cannot be judged: stream time is %d, window 1s, grace 100ms", base+at, base+streamTime)
	}
	m.refused(s, m.now, "late", topic, reason)
}

// TestRandomHistories: Check finds nothing in histories that package dedup decided.
func TestRandomHistories(t *testing.T) {
	seen := map[string]int{}
	for seed := range uint64(10) {
		w := play(seed, 1500)
		report, violations := Check(w.cfg, w.end())
		if len(violations) > 0 {
			t.Fatalf("run %d: %v, %v", seed, ids(t, violations), report)
		}
		for verdict, n := range report.Outputs {
			seen[verdict] += n
		}
	}
	for _, verdict := range []string{"unique", "after_window", "duplicate", "late", "invalid", "missing_key"} {
		if seen[verdict] < 10 {
			t.Errorf("only %d records are %s: the histories do not test it", seen[verdict], verdict)
		}
	}
}

// TestEveryChangeIsFound: one record is lost, repeated, or changed in one byte,
// equally in all readings. Some invariant must find it.
func TestEveryChangeIsFound(t *testing.T) {
	for seed := range uint64(400) {
		w := play(seed%10, 120)
		rng := rand.New(rand.NewPCG(seed, 3))
		topics := []string{w.cfg.Repartition, w.cfg.Changelog, "signals", "orders", "duplicates", "dead"}
		topic := topics[rng.IntN(len(topics))]
		records := w.h.Live[topic]
		r := records[rng.IntN(len(records))]
		what := tamper(rng, w, r)
		if _, violations := Check(w.cfg, w.end()); len(violations) == 0 {
			t.Errorf("run %d: %s, %s: no finding", seed, at(&r), what)
		}
	}
}

// tamper changes a record and returns a description of the change.
func tamper(rng *rand.Rand, w *scenario, r Record) string {
	records := w.h.Live[r.Topic]
	i := slices.IndexFunc(records, func(x Record) bool { return x.Partition == r.Partition && x.Offset == r.Offset })
	switch rng.IntN(5) {
	case 0:
		w.remove(&r)
		return "removed"
	case 1:
		w.append(r)
		return "repeated"
	case 2:
		records[i].Key = flip(rng, r.Key)
		return "key changed"
	case 3:
		if len(r.Headers) > 0 {
			n := rng.IntN(len(r.Headers))
			if reason := r.Headers[n].Key == headerReason; !reason { // reason texts of the router are not checked
				records[i].Headers = slices.Clone(r.Headers)
				records[i].Headers[n].Value = flip(rng, r.Headers[n].Value)
				return "header " + r.Headers[n].Key + " changed"
			}
		}
	}
	value := flip(rng, r.Value)
	if string(r.Key) == "checkpoint" && w.cfg.Changelog == r.Topic {
		value = append(slices.Clone(r.Value), 9, 9) // another stream time
	}
	records[i].Value = value
	return "value changed"
}

// flip changes one byte, or makes a null or empty value non-empty.
func flip(rng *rand.Rand, b []byte) []byte {
	if len(b) == 0 {
		return []byte{1}
	}
	b = slices.Clone(b)
	b[rng.IntN(len(b))] ^= byte(1 + rng.IntN(255))
	return b
}

// BenchmarkCheck checks a history of 50,000 raw records.
func BenchmarkCheck(b *testing.B) {
	w := play(1, 50_000)
	h := w.end()
	b.ReportAllocs()
	for b.Loop() {
		if _, violations := Check(w.cfg, h); len(violations) > 0 {
			b.Fatal(violations[0])
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/50_000, "ns/record")
}
