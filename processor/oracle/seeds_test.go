package oracle

import (
	"encoding/binary"
	"fmt"
	"testing"
)

// seed adds a seed of route signals, first seen at ms after base.
func (w *scenario) seed(id string, at, number int64) *Record {
	from := position{seedTopic, 0, number}
	body := append(binary.AppendVarint(nil, 0), digestOf("signals", id)...)
	r := w.append(Record{
		Topic: w.cfg.Repartition, Partition: partitionOf(id), Timestamp: base + 9000,
		Key: envelopeBytes(flagSeed, "signals", from, base+at, body, []byte("run-run-")),
	})
	w.next[r.Partition] = r.Offset + 1
	return r
}

// seedRow adds the row of a seed.
func (w *scenario) seedRow(id string, at, number int64) {
	row := binary.AppendVarint([]byte{1, 0, w.namespaceID("signals"), 0}, base+at)
	row = binary.AppendUvarint(append(binary.AppendUvarint(row, seedTopic), 0), uint64(number))
	d := digestOf("signals", id)
	w.append(Record{Topic: w.cfg.Changelog, Partition: partitionOf(id), Timestamp: base, Key: d, Value: row})
	w.rows[partitionOf(id)][string(d)] = row
}

// seedCounts adds the counts of the seeds of a transaction, and ends it.
func (w *scenario) seedCounts(id string, value ...byte) {
	w.append(Record{Topic: w.cfg.Changelog, Partition: partitionOf(id), Timestamp: base, Key: []byte("seeds/run-run-\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"), Value: append([]byte{1}, value...)})
	w.commit(partitionOf(id))
}

// afterSeed adds an event that is a duplicate of a seed.
func (w *scenario) afterSeed(id string, at, first, number int64) {
	s := w.send(0, 0, id, at)
	r := w.repartition(s, 9000)
	w.emit(s, "duplicates", headerRoute, s.Route, headerVerdict, "duplicate", headerKey, keyText(s.ID), headerReason, fmt.Sprintf("duplicate %v after the first, window 1s", ms(at-first)),
		headerSource, w.source(&s), headerFirst, fmt.Sprintf("seeded key/0/%d", number), headerFirstTime, fmt.Sprint(base+first))
	w.judged(r, s, base+at)
}

// TestSeedsAreJudged: a seed makes a row and emits nothing, and events in its window are
// duplicates.
func TestSeedsAreJudged(t *testing.T) {
	id := idAt(0, "seeded")
	taken := func(w *scenario) {
		w.seed(id, 5000, 3)
		w.seedRow(id, 5000, 3)
		w.seedCounts(id, 1, 0, 0, 0, 0, 0)
	}
	wantNoFinding(t, []plant{
		{name: "taken", change: func(w *scenario) {
			taken(w)
			w.afterSeed(id, 5400, 5000, 3)
			w.commit(0)
		}},
		{name: "known", change: func(w *scenario) {
			taken(w)
			w.seed(id, 5600, 4)
			w.seedCounts(id, 0, 1, 0, 0, 0, 0)
		}},
		{name: "too late", change: func(w *scenario) {
			s := w.send(0, 0, id, 5400)
			w.forwarded(s, "unique", 9000, 5400)
			w.seed(id, 5000, 3)
			w.seedCounts(id, 0, 0, 0, 1, 0, 1, 6)
		}},
		{name: "in the future", change: func(w *scenario) {
			w.seed(id, 90000, 3)
			w.seedCounts(id, 0, 0, 0, 0, 1, 0)
		}},
	})
	wantFindings(t, []plant{
		{name: "a seeded key is emitted", want: []string{"K1", "K2", "K5", "K11"}, message: "one record too many", change: func(w *scenario) {
			taken(w)
			w.forwarded(w.send(0, 0, id, 5400), "unique", 9000, 5400)
			w.commit(0)
		}},
		{name: "no row", want: []string{"K5", "K11"}, message: "the first missing", change: func(w *scenario) {
			w.seed(id, 5000, 3)
			w.seedCounts(id, 1, 0, 0, 0, 0, 0)
		}},
		{name: "wrong counts", want: []string{"K11"}, message: "counts seeds 0 taken, 1 known", change: func(w *scenario) {
			w.seed(id, 5000, 3)
			w.seedRow(id, 5000, 3)
			w.seedCounts(id, 0, 1, 0, 0, 0, 0)
		}},
	})
}

// streamTime adds the stream time that a task had in another cluster, ms after base.
func (w *scenario) streamTime(at int64) {
	body := append(binary.AppendVarint(nil, 0), make([]byte, 16)...)
	r := w.append(Record{
		Topic: w.cfg.Repartition, Timestamp: base + 9000,
		Key: envelopeBytes(flagSeed|flagTime, "signals", position{topic: seedTopic}, base+at, body, []byte("run-run-")),
	})
	w.next[0] = r.Offset + 1
}

// TestStreamTimesOfAnotherClusterAreJudged: they count for a namespace without one only.
func TestStreamTimesOfAnotherClusterAreJudged(t *testing.T) {
	id := idAt(0, "seeded")
	wantNoFinding(t, []plant{{name: "kept", change: func(w *scenario) {
		w.forwarded(w.send(0, 0, id, 5400), "unique", 9000, 5400)
		w.streamTime(8000)
		w.commit(0)
	}}})
	wantFindings(t, []plant{{name: "raised", want: []string{"K5"}, message: "stream time", change: func(w *scenario) {
		w.forwarded(w.send(0, 0, id, 5400), "unique", 9000, 5400)
		w.streamTime(8000)
		w.times[0][w.namespaceID("signals")] = base + 8000
		w.commit(0)
	}}})
}
