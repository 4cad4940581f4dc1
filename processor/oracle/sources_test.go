package oracle

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"oncebus/dedup"
	"oncebus/processor/wire"
)

// appendSourceTimes appends the sources of one namespace as a checkpoint has them.
func appendSourceTimes(b []byte, s *sourceTimes) []byte {
	time := func(at int64) {
		if at == never {
			b = append(b, 0)
			return
		}
		b = binary.AppendUvarint(b, uint64(s.highest-at)+1)
	}
	b = binary.AppendVarint(append(b, 1, s.namespaceID), s.highest)
	time(s.ingress)
	b = binary.AppendUvarint(b, uint64(len(s.samples))+1)
	before := int64(0)
	for _, sample := range s.samples {
		b = binary.AppendVarint(b, sample.at-before)
		before = sample.at
		time(sample.highest)
	}
	b = append(b, byte(len(s.topics)))
	for _, t := range s.topics {
		b = binary.AppendVarint(append(b, byte(t.number), byte(len(t.partitions))), t.counted)
		for _, p := range t.partitions {
			time(p.front)
			time(p.bound)
		}
	}
	return b
}

// follows makes the route signals follow the partitions of its topic, from a transaction of each
// partition on that judged nothing. Stream time is 5000 in partition 0, 1020 in partition 1.
func follows(w *scenario) {
	w.cfg.Sources = map[uint8][]uint16{1: {1}}
	w.sources = map[int32]*sourceTimes{}
	for partition := range w.cfg.Partitions {
		w.sources[partition] = newSourceTimes(1, []uint16{1}, w.times[partition][1])
		w.commit(partition)
	}
}

// read is the progress of a partition of the topic of signals: everything stored before a time
// was read, and its events have come to another one. Both are in ms after base, 0 for unknown.
type read struct{ to, front int64 }

// progress adds a progress record to partition 0, at broker time stamp after base. The topic has
// as many partitions as reads.
func (w *scenario) progress(stamp int64, reads ...read) *Record {
	in := inputProgress{topic: 1, partitions: len(reads), counted: base + stamp}
	b := binary.AppendUvarint([]byte{0, 0, 1, 1}, uint64(len(reads)))
	b = append(binary.AppendVarint(b, in.counted), byte(len(reads)))
	for partition, r := range reads {
		one := readProgress{partition: partition, to: never}
		b = append(b, byte(partition))
		if r.to == 0 {
			b = append(b, 0)
		} else {
			one.to = base + r.to
			b = binary.AppendUvarint(b, uint64(one.to)+1)
		}
		if r.front == 0 {
			b = append(b, 0)
		} else {
			one.fronts = []frontTime{{1, base + r.front}}
			b = binary.AppendVarint(append(b, 1, 1), base+r.front)
		}
		in.read = append(in.read, one)
	}
	if s := w.sources[0]; s != nil {
		s.progress([]inputProgress{in}, base+stamp, skew, false)
	}
	r := w.append(Record{Topic: w.cfg.Repartition, Timestamp: base + stamp, Key: []byte{envelopeVersion, flagProgress}, Value: b})
	w.next[0] = r.Offset + 1
	return r
}

// unique adds a first event from a partition of the topic of signals, at an event time in ms after
// base that is its broker time too.
func (w *scenario) unique(from int32, name string, at int64) {
	w.forwarded(w.send(0, from, idAt(0, name), at), "unique", at, at)
}

// late adds a late event from a partition of the topic of signals: because of what, and when that
// was, in ms after base.
func (w *scenario) late(from int32, name string, at int64, what string, then int64) {
	w.refused(w.send(0, from, idAt(0, name), at), 9000, "late", "dead",
		fmt.Sprintf("event time %d cannot be judged: %s %d, window 1s, grace 100ms", base+at, what, base+then))
}

// moves states the stream time of partition 0, in ms after base.
func (w *scenario) moves(at int64) {
	w.times[0][1] = base + at
	if got, _ := w.sources[0].follow(w.sources[0].topics[0].counted, base+at-1, true); got != base+at {
		panic(fmt.Sprintf("stream time is %d", got-base))
	}
}

const byStreamTime, bySource = "stream time is", "its source had come to"

// twoSpeeds has a source that is 3000 ms ahead of another one.
func twoSpeeds(w *scenario) {
	follows(w)
	w.progress(5000, read{}, read{})
	w.unique(0, "ahead", 9000)
	w.unique(1, "behind", 6000) // more than window and grace behind the other source
	w.moves(6000)
}

func TestSources(t *testing.T) {
	wantNoFinding(t, []plant{
		{name: "two at different speeds", change: func(w *scenario) {
			twoSpeeds(w)
			w.unique(1, "in time", 4900)
			w.late(1, "late", 4899, byStreamTime, 6000)
			w.unique(1, "on", 7000)
			w.moves(7000)
			w.commit(0)
			w.late(1, "late too", 5899, byStreamTime, 7000)
			w.commit(0)
		}},
		{name: "late in its own order", change: func(w *scenario) {
			twoSpeeds(w)
			w.unique(0, "in time", 7900)
			w.late(0, "late", 7899, bySource, 9000)
			w.commit(0)
		}},
		{name: "a quiet one that was read to its end", change: func(w *scenario) {
			follows(w)
			w.progress(8000, read{}, read{})
			w.unique(0, "now", 9000)
			w.progress(9100, read{}, read{to: 9000}) // nothing is known of a time before 9100
			w.unique(1, "in time", 3900)
			w.progress(9300, read{}, read{to: 9200})
			w.moves(9000)
			w.late(1, "late", 7899, byStreamTime, 9000)
			w.commit(0)
		}},
		{name: "a quiet one that was read by another task", change: func(w *scenario) {
			follows(w)
			w.unique(0, "now", 9000)
			w.progress(9100, read{}, read{front: 8000})
			w.moves(8000)
			w.late(1, "late", 6899, byStreamTime, 8000)
			w.commit(0)
		}},
		{name: "read to a time ahead of the record, with events ahead of skew", change: func(w *scenario) {
			follows(w)
			w.unique(0, "now", 8500)
			w.progress(8500, read{}, read{front: 99_000})
			w.moves(8500)
			w.progress(8600, read{to: 99_000}, read{})
			w.moves(9000)
			w.commit(0)
		}},
		{name: "an unknown one", change: func(w *scenario) {
			follows(w)
			w.unique(0, "ahead", 9000)
			w.unique(1, "behind", 8000) // nothing says how many partitions there are
			w.progress(9000, read{}, read{}, read{})
			w.unique(2, "in time", 3900)
			w.unique(2, "on", 8100)
			w.moves(8000)
			w.commit(0)
		}},
		{name: "stream time goes back", change: func(w *scenario) {
			twoSpeeds(w)
			w.progress(9000, read{}, read{}, read{})
			w.unique(2, "new", 5000)
			w.late(2, "late", 4899, byStreamTime, 6000)
			w.commit(0)
		}},
		{name: "a route of a set that the task never had", change: func(w *scenario) {
			w.cfg.Sets = []Set{{Number: 1, Windows: []NamespaceWindow{{1, window, grace}}}, {Number: 2, Windows: []NamespaceWindow{{1, window, grace}, {2, window, 0}}}}
			twoSpeeds(w)
			w.cfg.Sources[2] = []uint16{2}
			w.commit(0)
		}},
		{name: "a progress record after the last checkpoint", change: func(w *scenario) { w.progress(5000, read{}) }},
		{name: "one after the last checkpoint that would move stream time", change: func(w *scenario) {
			twoSpeeds(w)
			w.commit(0)
			w.progress(9000, read{}, read{front: 7000})
		}},
	})
	wantFindings(t, []plant{
		{name: "stream time is ahead of the least", want: []string{"K5"}, message: fmt.Sprintf("stream time %d (true) for namespace id 1, want %d", int64(base+9000), int64(base+6000)), change: func(w *scenario) {
			twoSpeeds(w)
			w.times[0][1] = base + 9000
			w.commit(0)
		}},
		{name: "stream time follows the highest of an unknown one", want: []string{"K5"}, message: "has stream time", change: func(w *scenario) {
			follows(w)
			w.unique(0, "ahead", 9000)
			w.times[0][1] = base + 9000
			w.commit(0)
		}},
		{name: "stream time stays behind all", want: []string{"K5"}, message: "has stream time", change: func(w *scenario) {
			twoSpeeds(w)
			w.times[0][1] = base + 5000
			w.commit(0)
		}},
		{name: "late by the highest", want: []string{"K1", "K2", "K5", "K11"}, message: "was judged unique and never emitted", change: func(w *scenario) {
			twoSpeeds(w)
			w.late(1, "in time", 7000, byStreamTime, 9000)
			w.moves(6000)
			w.commit(0)
		}},
		{name: "not late in its own order", want: []string{"K1", "K2", "K5", "K11"}, message: "was judged late and never emitted", change: func(w *scenario) {
			twoSpeeds(w)
			w.unique(0, "late", 7899)
			w.commit(0)
		}},
		{name: "a source is forgotten", want: []string{"K5"}, message: "has the sources", change: func(w *scenario) {
			twoSpeeds(w)
			w.sources[0].topics[0].partitions[0].front = never
			w.commit(0)
		}},
		{name: "sources are missing after others", want: []string{"K5"}, message: "has the sources <nil>", change: func(w *scenario) {
			twoSpeeds(w)
			w.sources[0] = nil
			w.commit(0)
		}},
		{name: "no checkpoint has sources", want: []string{"K5"}, message: "no checkpoint has the sources of namespace id 1", change: func(w *scenario) {
			w.cfg.Sources = map[uint8][]uint16{1: {1}}
		}},
		{name: "no checkpoint has sources of a route of its set", want: []string{"K5"}, message: "no checkpoint has the sources of namespace id 2", change: func(w *scenario) {
			w.cfg.Sets = []Set{{Number: 1, Windows: []NamespaceWindow{{1, window, grace}, {2, window, 0}}}}
			twoSpeeds(w)
			w.cfg.Sources[2] = []uint16{2}
			w.commit(0)
		}},
		{name: "an unreadable progress record", want: []string{"K2"}, message: "is not a progress record", change: func(w *scenario) {
			r := w.progress(5000, read{})
			r.Value = append(r.Value, 0)
			w.commit(0)
		}},
	})
}

// TestSourcesOfClaims: Check follows the stream time of claims through their sources too.
func TestSourcesOfClaims(t *testing.T) {
	for _, wrong := range []bool{false, true} {
		w := claimStory()
		w.cfg.Sources = map[uint8][]uint16{3: {5}}
		w.sources = map[int32]*sourceTimes{}
		for partition := range w.cfg.Partitions {
			w.sources[partition] = newSourceTimes(3, []uint16{5}, never)
			if at, ok := w.times[partition][3]; ok {
				w.sources[partition].highest = at
			}
			w.commit(partition)
		}
		s := Sent{Route: "ops", ID: idAt(0, "op"), Record: Record{Topic: "ops.raw", Offset: 1, Timestamp: base + 9000, Key: []byte("r"), Headers: []Header{{"x", nil}, {"oncebus-verdict", []byte("forged")}}}}
		w.h.Sent = append(w.h.Sent, s)
		w.next[0] = w.repartition(s, 9000).Offset + 1
		w.sources[0].event(position{5, 0, 1}, base+9000)
		if wrong {
			w.times[0][3] = base + 9000
		}
		w.commit(0)
		_, violations := Check(w.cfg, w.end())
		if got := ids(t, violations); wrong != slices.Equal(got, []string{"K5"}) || !wrong && len(got) > 0 {
			t.Errorf("stream time of an unknown source %t: findings %v", wrong, got)
		}
	}
}

// inputProgress adds a progress record of inputs alone: the two partitions of topic 0 are read to
// these times.
func (l *claimLog) inputProgress(first, second int64) {
	b := append(binary.AppendVarint([]byte{0, 0, 1, 0, 2}, l.now), 2)
	b = append(binary.AppendUvarint(append(b, 0), uint64(first)+1), 0)
	b = append(binary.AppendUvarint(append(b, 1), uint64(second)+1), 0)
	l.add("repartition", string([]byte{envelopeVersion, flagProgress}), string(b))
}

// TestClaimsCheckerFollowsSources: an event of a source that is ahead moves no stream time, so that
// the claim of one behind is live. What the other source was read to moves it, and evicts the
// claim. An event may be late in its own order alone.
func TestClaimsCheckerFollowsSources(t *testing.T) {
	claims := *testClaims
	claims.Window, claims.Sources = 100, []uint16{0}
	play := func(answered bool) *claimLog {
		l := &claimLog{live: map[string][]Record{}, now: 1000}
		l.event("a")
		l.run("a", "1")
		l.inputProgress(500, 500)
		l.id, l.after, l.from, l.now = 1, 900, 1, 2000
		l.event("b")
		l.run("b", "1")
		l.inputProgress(500, 500)
		l.id, l.after = 2, 700
		l.event("c")
		l.add("dead", "c", "", "oncebus-verdict", "late")
		l.reply("c", "late", "", "0", "")
		l.now = 3000
		l.inputProgress(2500, 2500)
		if answered {
			l.reply("a", "in_progress", "in_progress", "1", "")
		}
		one := append(binary.AppendVarint([]byte{1, 2, 0, 1}, 1000), 0, 0, 1, 1)
		two := append(binary.AppendVarint([]byte{1, 2, 0, 1}, 1900), 0, 1, 2, 1)
		l.live["log"] = []Record{
			{Topic: "log", Key: make([]byte, 16), Value: one}, {Topic: "log", Key: append([]byte{1}, make([]byte, 15)...), Value: two},
		}
		return l
	}
	if wrong, counts := CheckClaims(&claims, play(true).live); len(wrong) > 0 || counts["late"] != 1 || counts["answered at the eviction"] != 1 {
		t.Errorf("%v: %s", counts, strings.Join(wrong, "\n"))
	}
	if wrong, _ := CheckClaims(&claims, play(false).live); len(wrong) != 1 {
		t.Errorf("without the reply: %q", wrong)
	}
}

// checkpoint adds a checkpoint before the next record is judged. It has the sources of claims if it
// is that of transaction first, or later.
func (l *claimLog) checkpoint(sequence, first int64) {
	flags := uint64(0)
	if sequence >= first {
		flags = flagSources
	}
	b := append(binary.AppendUvarint([]byte{7}, flags), 1) // of route set 1
	b = binary.AppendVarint(b, int64(len(l.live["repartition"])))
	b = append(binary.AppendVarint(binary.AppendVarint(b, 0), sequence), 0)
	if sequence >= first {
		b = appendSourceTimes(b, newSourceTimes(0, []uint16{0}, 1900))
	}
	l.add("log", "checkpoint", string(b))
}

// beginningToFollow is a run whose second transaction is the first to follow sources, at stream time
// 1400. A source that is ahead of the other one then moves it no more. first is the transaction that
// the checkpoints say.
func beginningToFollow(first int64) *claimLog {
	l := &claimLog{live: map[string][]Record{}, now: 1000}
	l.event("a")
	l.run("a", "1")
	l.inputProgress(900, 900)
	l.id, l.after, l.now = 1, 400, 2000
	l.event("b") // evicts the claim of a
	l.reply("a", "in_progress", "in_progress", "1", "")
	l.run("b", "1")
	l.checkpoint(1, first)
	l.id, l.after = 0, 300
	l.event("d") // has the key of a
	l.run("d", "1")
	l.id, l.after, l.from = 2, 900, 1
	l.event("c")
	l.run("c", "1")
	l.id, l.after, l.from = 3, 350, 0
	l.event("e") // would be late at stream time 1900
	l.run("e", "1")
	l.id, l.after, l.from = 0, 500, 1
	l.event("other") // late in the source of c, and after the window of d
	l.add("dead", "other", "", "oncebus-verdict", "late")
	l.reply("other", "late", "", "0", "")
	l.id = 2
	l.event("before") // late too, and before the window of c
	l.add("dead", "before", "", "oncebus-verdict", "late")
	l.reply("before", "late", "in_progress", "1", "")
	l.id, l.after = 0, 350
	l.event("twin")
	l.checkpoint(2, first)
	l.now = 3000
	l.inputProgress(2500, 2500)
	l.now = 4000
	l.inputProgress(3500, 3500) // to stream time 1900
	for _, key := range []string{"b", "d", "e", "twin"} {
		l.reply(key, "in_progress", "in_progress", "1", "")
	}
	l.checkpoint(3, first)
	for id, row := range []struct {
		time int64
		at   []byte
	}{{1300, []byte{0, 0, 3}}, {1400, []byte{0, 0, 2}}, {1900, []byte{0, 1, 4}}, {1350, []byte{0, 0, 5}}} {
		value := append(binary.AppendVarint([]byte{1, 2, 0, 1}, row.time), row.at...)
		l.add("log", string(append([]byte{byte(id)}, make([]byte, 15)...)), string(append(value, 1)))
	}
	return l
}

// TestClaimsCheckerBeginsToFollowSources: the sources of claims count from the transaction on whose
// checkpoint is the first to have them, with the stream time of before.
func TestClaimsCheckerBeginsToFollowSources(t *testing.T) {
	claims := *testClaims
	claims.Window, claims.Sources = 100, []uint16{0}
	if wrong, counts := CheckClaims(&claims, beginningToFollow(2).live); len(wrong) > 0 || counts["late"] != 2 || counts["late after the window"] != 1 {
		t.Errorf("%v: %s", counts, strings.Join(wrong, "\n"))
	}
	for first, want := range map[int64]string{1: "missing: dispatch d: after_window, attempt 2, null", 3: "missing: dead e: late, null", 4: "log/0: no checkpoint has the sources of the namespace"} {
		if wrong, _ := CheckClaims(&claims, beginningToFollow(first).live); !slices.Contains(wrong, want) {
			t.Errorf("from transaction %d on: %q, want %s", first, wrong, want)
		}
	}
	l := beginningToFollow(2)
	l.live["replies"][1].Headers[1].Value = []byte("in_progress")
	if wrong, _ := CheckClaims(&claims, l.live); len(wrong) != 2 {
		t.Errorf("the reply after the window of a claim has its status: %q", wrong)
	}
}

// A sourceModel is the sources of a namespace as package wire has them, moved as a task moves
// them.
type sourceModel struct {
	wire.Sources
	last int64
}

func (m *sourceModel) follow(now int64) {
	if least := m.Least(now); least > m.last {
		m.DropSamples(least)
		m.last = least
	}
}

func (m *sourceModel) event(from position, time, now int64) {
	if m.HasTopic(from.topic) {
		m.Grow(from.topic, int(from.partition)+1, dedup.NoStreamTime)
	}
	if i, ok := m.Of(from.topic, from.partition); ok {
		m.Front[i] = max(m.Front[i], time)
	}
	if from.topic == ingressSource {
		m.Ingress = max(m.Ingress, time)
	}
	m.Highest = max(m.Highest, time)
	m.follow(now)
}

func (m *sourceModel) progress(inputs []wire.InputProgress, stored int64, goesOn bool) {
	for _, in := range inputs {
		if !m.HasTopic(in.Topic) {
			continue
		}
		m.Grow(in.Topic, in.Partitions, min(in.CountedAt, stored))
		for _, r := range in.Read {
			i, _ := m.Of(in.Topic, r.Partition)
			for _, f := range r.Fronts {
				if f.NamespaceID == m.NamespaceID {
					m.Bound[i] = max(m.Bound[i], min(f.At, stored+skew))
					m.Highest = max(m.Highest, m.Bound[i])
				}
			}
			if r.To != dedup.NoStreamTime {
				m.ReadTo(i, min(r.To, stored))
			}
		}
	}
	m.TakeSample(stored, goesOn)
	m.follow(stored)
}

// drawProgress draws a progress record of topics 1 and 4, and of one that is no source.
func drawProgress(rng *rand.Rand, now int64) wire.Progress {
	var p wire.Progress
	for _, topic := range []uint16{1, 2, 4} {
		in := wire.InputProgress{Topic: topic, Partitions: 1 + rng.IntN(3), CountedAt: now + rng.Int64N(6000) - 5000}
		for partition := range int32(in.Partitions) {
			r := wire.ReadProgress{Partition: partition, To: dedup.NoStreamTime}
			if rng.IntN(3) > 0 {
				r.To = now - rng.Int64N(3000)
			}
			for id := range uint8(rng.IntN(3)) {
				r.Fronts = append(r.Fronts, wire.Front{NamespaceID: id, At: now + rng.Int64N(2000) - 1500})
			}
			in.Read = append(in.Read, r)
		}
		p.Inputs = append(p.Inputs, in)
	}
	return p
}

// TestSourcesAgreeWithTheProduct: the oracle's sources move as those of package wire, and it reads
// them from whole and partial checkpoints, and progress records, as that one writes them.
func TestSourcesAgreeWithTheProduct(t *testing.T) {
	for seed := range uint64(60) {
		rng, goesOn := rand.New(rand.NewPCG(seed, 11)), seed%2 == 0
		m := &sourceModel{Sources: wire.NewSources(1, []uint16{1, 4}), last: dedup.NoStreamTime}
		s, last, running := newSourceTimes(1, []uint16{4, 1}, never), int64(0), false
		before, all := wire.Checkpoint{}, chain{}
		now := int64(base)
		for step := range 200 {
			now += rng.Int64N(600)
			if rng.IntN(60) == 0 {
				now -= 3000 // broker time is set back
			}
			if rng.IntN(20) == 0 {
				now += countHolds // the app is down
			}
			if rng.IntN(4) == 0 {
				p := drawProgress(rng, now)
				m.progress(p.Inputs, now, goesOn)
				read, err := openProgress(p.AppendRecord(nil))
				if err != nil || !read.ofInputs() {
					t.Fatalf("run %d: %v, of inputs alone %t", seed, err, read.ofInputs())
				}
				s.progress(read.inputs, now, skew, goesOn)
			} else {
				from, time := position{uint16(1 + rng.IntN(4)), rng.Int32N(3), 0}, now-rng.Int64N(5000)
				if rng.IntN(8) == 0 {
					from = position{topic: ingressSource}
				}
				m.event(from, time, now)
				s.event(from, time)
			}
			last, running = s.follow(now, last, running)
			if running != (m.last != dedup.NoStreamTime) || running && last != m.last {
				t.Fatalf("run %d, step %d: stream time %d (%t), the product has %d", seed, step, last, running, m.last)
			}
			c := wire.Checkpoint{Set: 1, Sequence: before.Sequence + 1, Sources: []wire.Sources{wire.NewSources(0, []uint16{2}), m.Clone()}}
			number, value := uint32(0), c.Append(nil)
			if c.SameSources(&before) {
				number, value = all.number+1, c.AppendPartial(nil, &before, nil, nil)
			}
			err := all.add(number, value)
			if got := all.newest.sourcesOf(1); err != nil || !reflect.DeepEqual(got, s) {
				t.Fatalf("run %d, step %d: %v: read %+v, want %+v", seed, step, err, got, s)
			}
			before = c
		}
		if !running || all.number == 0 {
			t.Errorf("run %d: stream time %t, partial checkpoints %d", seed, running, all.number)
		}
	}
}
