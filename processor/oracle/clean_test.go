package oracle

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// TestCleanHistory: Check finds nothing in the story.
func TestCleanHistory(t *testing.T) {
	w := story()
	report, violations := Check(w.cfg, w.end())
	if len(violations) > 0 {
		t.Fatal(ids(t, violations))
	}
	outputs := map[string]int{"unique": 6, "after_window": 2, "duplicate": 3, "late": 2, "invalid": 1, "missing_key": 2}
	if !maps.Equal(report.Outputs, outputs) || report.Sent != 16 || report.Routed != 14 || report.Transactions != 6 || report.Rows != 8 || report.Stores != 6 {
		t.Errorf("report: %v", report)
	}
	if text := report.String(); !strings.HasPrefix(text, "16 sent (2 missing key), 14 routed, emitted after_window:2 duplicate:3") || !strings.HasSuffix(text, "violations none") {
		t.Errorf("the report reads: %s", text)
	}
}

// compact removes the records from the final changelog that have a newer one of their key.
func compact(h *History) {
	rows := h.Final["app-repartition-changelog"]
	newest := map[string]int64{}
	for _, r := range rows {
		newest[fmt.Sprint(r.Partition, string(r.Key))] = r.Offset
	}
	h.Final["app-repartition-changelog"] = slices.DeleteFunc(rows, func(r Record) bool {
		return newest[fmt.Sprint(r.Partition, string(r.Key))] != r.Offset
	})
}

func TestNoFault(t *testing.T) {
	wantNoFinding(t, []plant{
		{name: "compacted changelog", observe: compact},
		{name: "purged repartition topic", observe: func(h *History) { h.Final["app-repartition"] = h.Final["app-repartition"][5:] }},
		{name: "row deleted below the floor, after its retention", change: func(w *scenario) { w.trim(0, 2) }, observe: func(h *History) { deleteRow(h, 0, 2) }},
		{name: "rows that a sweep wrote again", change: func(w *scenario) {
			rows := w.rowsOf(1)
			w.sweep(rows[0])
			w.sweep(rows[2])
			w.commit(1)
		}},
		{name: "offsets reset back, on and away", change: func(w *scenario) {
			reset := func(to int64) []Sample {
				return []Sample{{Partition: 0, Offset: to, Reset: true}, w.h.Offsets[2], {Partition: 0, Offset: to}, w.h.Offsets[2]}
			}
			w.h.Offsets = slices.Insert(w.h.Offsets, 3, slices.Concat(reset(0), reset(1000), reset(-1))...)
		}},
		{name: "offsets reset at the end", change: func(w *scenario) {
			w.h.Offsets = append(w.h.Offsets, Sample{Partition: 0, Offset: 0, Reset: true}, Sample{Partition: 0, Offset: 0})
		}},
		{name: "nothing committed at first", change: func(w *scenario) { w.h.Offsets = slices.Insert(w.h.Offsets, 0, Sample{Offset: -1}) }},
		{name: "checkpoint of an idle task", change: func(w *scenario) { w.commit(0) }},
		{name: "no live consumer", observe: func(h *History) { h.Live = nil }},
		{name: "no final read", observe: func(h *History) { h.Final = nil }},
		{name: "no samples, no stores", observe: func(h *History) { h.Offsets, h.Stores = nil, nil }},
		{name: "store whose position is within a transaction", change: func(w *scenario) {
			row := w.rowsOf(1)[1]
			before := w.h.Stores[1]
			rows := maps.Clone(before.Rows)
			rows[string(row.Key)] = row.Value
			w.h.Stores = append(w.h.Stores, Store{Partition: 1, Position: row.Offset + 1, Checkpoint: before.Checkpoint, Rows: rows})
		}},
		{name: "store without rows that expired", change: func(w *scenario) {
			s := &w.h.Stores[4] // partition 0 at stream time 5000
			maps.DeleteFunc(s.Rows, func(_ string, row []byte) bool { return row[2] == 1 && bytes.Contains(row, first(1001)) })
		}},
		{name: "store at an earlier position, whose process had evicted expired rows", change: func(w *scenario) {
			i := slices.IndexFunc(w.h.Stores, func(s Store) bool { return s.Partition == 0 && s.Rows[string(w.rowsOf(0)[0].Key)] != nil })
			if w.h.Stores[i].Position >= w.h.Stores[4].Position {
				panic("not an earlier store")
			}
			delete(w.h.Stores[i].Rows, string(w.rowsOf(0)[0].Key))
		}},
		{name: "store of old rows that expired", change: func(w *scenario) {
			w.h.Stores[4].Rows[string(w.rowsOf(0)[0].Key)] = w.rowsOf(0)[0].Value
		}},
		{name: "store that was restoring a compacted changelog", change: func(w *scenario) {
			row := w.rowsOf(1)[0]
			w.h.Stores = append(w.h.Stores, Store{Partition: 1, Position: w.h.Stores[3].Position, Rows: map[string][]byte{string(row.Key): row.Value}})
		}, observe: compact},
		{name: "store that was restoring on from an old position", change: func(w *scenario) {
			old := w.h.Stores[1]
			w.h.Stores = append(w.h.Stores, Store{Partition: 1, Position: w.h.Stores[3].Position, Checkpoint: old.Checkpoint, Rows: w.h.Stores[3].Rows})
		}, observe: compact},
		{name: "duplicates and late events are dropped", change: func(w *scenario) {
			w.cfg.Routes[0].Duplicates, w.cfg.Routes[0].Late, w.cfg.Routes[1].Duplicates, w.cfg.Routes[1].Late = "", Drop, Drop, Drop
			for topic := range w.cfg.Emissions {
				w.h.Live[topic] = slices.DeleteFunc(w.h.Live[topic], func(r Record) bool {
					verdict, _ := own(&r, headerVerdict)
					return verdict == "duplicate" || verdict == "late"
				})
			}
		}},
		{name: "equal outputs", change: equals},
		{name: "a record without a key", change: func(w *scenario) {
			s := w.send(0, 0, idAt(0, "no-key"), 5000)
			s.Key = nil
			w.h.Sent[len(w.h.Sent)-1].Key = nil
			w.forwarded(s, "unique", 5000, 5000)
			w.commit(0)
		}},
		{name: "empty store", change: func(w *scenario) { w.h.Stores = append(w.h.Stores, Store{Partition: 1}) }},
	})
}

// equals emits a record three times, twice with the same verdict. The three differ
// only in their event times.
func equals(w *scenario) {
	id := idAt(0, "equal")
	for n := range int64(3) {
		s := w.send(0, 0, id, 5000)
		s.Time = base + 5000 + n*(window+1)
		w.h.Sent[len(w.h.Sent)-1].Time = s.Time
		w.forwarded(s, []string{"unique", "after_window", "after_window"}[n], s.Time-base, s.Time-base)
	}
	w.commit(0)
}

// first returns an event time, in ms after base, as rows encode it.
func first(at int64) []byte { return (&row{first: base + at}).value(nil)[4:10] }

// TestMissingReadingsAreReported: without readings the report says that K7 was
// not checked.
func TestMissingReadingsAreReported(t *testing.T) {
	h := story().end()
	for _, c := range []struct {
		history History
		suffix  string
	}{
		{History{Sent: h.Sent, Final: h.Final}, ", not watched live, violations none"},
		{History{Sent: h.Sent, Live: h.Live}, ", not read at the end, violations none"},
	} {
		if report, _ := Check(testConfig(), &c.history); !strings.HasSuffix(report.String(), c.suffix) {
			t.Errorf("%s does not end in %q", report, c.suffix)
		}
	}
}

// TestMessagesAreCapped: many violations of one invariant are counted, the first
// of them reported.
func TestMessagesAreCapped(t *testing.T) {
	w := story()
	for n := range 3 * MaxMessages {
		w.send(0, 0, fmt.Sprint("lost-", n), 5000)
	}
	report, violations := Check(w.cfg, w.end())
	if len(violations) != MaxMessages || report.Violations["K2"] != 3*MaxMessages {
		t.Errorf("%d messages, %v", len(violations), report.Violations)
	}
}

// misfits returns the story's app with topics that refuse some records.
func misfits(limits Emission, dead Emission) *scenario {
	w := newWorld()
	limits.Partitions, dead.Partitions = 2, 2
	w.cfg.Emissions["signals"], w.cfg.Emissions["dead"] = limits, dead
	return w
}

// TestRecordsThatDoNotFit: records that a topic refuses become dead letters, whole
// or in part, and store no row. A record has 101 bytes, each header 10, and both
// their content.
func TestRecordsThatDoNotFit(t *testing.T) {
	id := idAt(0, "big")
	value := bytes.Repeat([]byte("x"), 2000)
	sum := sha256.Sum256(value)
	send := func(w *scenario) Sent {
		s := w.send(0, 0, id, 0)
		w.h.Sent[0].Value, w.h.Sent[0].Headers = value, s.Headers[3:]
		return w.h.Sent[0]
	}
	size := 101 + len("k-"+id) + 2000 + 3*10 + len("oncebus-route"+"signals"+"oncebus-verdict"+"unique"+"oncebus-key") + 64
	reason := fmt.Sprintf("too large for topic signals: %d bytes with headers, max.message.bytes is %d, and it takes more compressed", size, size-1)
	headers := func(reason string) []string {
		return []string{headerRoute, "signals", headerVerdict, "invalid", headerKey, keyText(id), headerReason, reason,
			headerSource, "signals.raw/0/0", headerFirst, "signals.raw/0/0", headerFirstTime, fmt.Sprint(base)}
	}
	pointer := []string{headerTimestamp, fmt.Sprint(base), headerValueSize, "2000", headerValueHash, hex.EncodeToString(sum[:])}
	finish := func(w *scenario, r *Record) {
		w.seen(r, 1, base)
		w.commit(0)
	}
	cases := map[string]func() *scenario{
		"exactly": func() *scenario {
			w := misfits(Emission{MaxBytes: size}, Emission{})
			w.forwarded(send(w), "unique", 0, 0)
			w.commit(0)
			return w
		},
		"dead letter with the whole record": func() *scenario {
			w := misfits(Emission{MaxBytes: size - 1}, Emission{})
			s := send(w)
			r := w.repartition(s, 0)
			w.emit(s, "dead", headers(reason)...)
			finish(w, r)
			return w
		},
		"a pointer": func() *scenario {
			w := misfits(Emission{MaxBytes: size - 1}, Emission{MaxBytes: 1000})
			s := send(w)
			r := w.repartition(s, 0)
			full := size + len("invalid") - len("unique") + 4*10 + len(headerReason+reason+headerSource+"signals.raw/0/0"+headerFirst+"signals.raw/0/0"+headerFirstTime) + len(fmt.Sprint(base))
			s.Value = nil
			s.Timestamp = 12345 // the broker's
			w.emit(s, "dead", append(headers(fmt.Sprintf("%s; not carried whole: too large for topic dead: %d bytes with headers, max.message.bytes is 1000, and it takes more compressed", reason, full)), pointer...)...)
			finish(w, r)
			return w
		},
		"a timestamp behind": func() *scenario {
			w := misfits(Emission{Before: 999}, Emission{Before: 1})
			s := send(w)
			r := w.repartition(s, 1000)
			s.Headers = s.Headers[len(s.Headers)-1:]
			w.emit(s, "dead", append(headers(fmt.Sprintf("timestamp %d is 1000 ms behind the broker, topic signals allows 999 (message.timestamp.before.max.ms); "+
				"not carried whole: timestamp %d is 1000 ms behind the broker, topic dead allows 1 (message.timestamp.before.max.ms)", base, base)), pointer...)...)
			finish(w, r)
			return w
		},
		"a timestamp ahead": func() *scenario {
			w := misfits(Emission{After: 99}, Emission{AppendTime: true})
			s := send(w)
			r := w.repartition(s, -100)
			s.Timestamp = 12345 // the broker's
			w.emit(s, "dead", headers(fmt.Sprintf("timestamp %d is 100 ms ahead of the broker, topic signals allows 99 (message.timestamp.after.max.ms)", base))...)
			finish(w, r)
			return w
		},
		"no key for a compacted topic": func() *scenario {
			w := misfits(Emission{Compacted: true}, Emission{})
			send(w)
			w.h.Sent[0].Key = nil
			s := w.h.Sent[0]
			r := w.repartition(s, 0)
			w.emit(s, "dead", headers("no record key: topic signals is compacted and takes none without")...)
			finish(w, r)
			return w
		},
		"no key for a compacted dead-letter topic": func() *scenario {
			w := misfits(Emission{Compacted: true}, Emission{Compacted: true})
			send(w)
			w.h.Sent[0].Key = nil
			s := w.h.Sent[0]
			r := w.repartition(s, 0)
			s.Key = []byte("signals.raw/0/0")
			w.emit(s, "dead", append(headers("no record key: topic signals is compacted and takes none without; not carried whole: no record key: topic dead is compacted and takes none without"), pointer...)...)
			finish(w, r)
			return w
		},
	}
	for name, world := range cases {
		t.Run(name, func(t *testing.T) {
			w := world()
			if _, violations := Check(w.cfg, w.end()); len(violations) > 0 {
				t.Error(ids(t, violations))
			}
		})
	}
}

// TestPointerOfTheRouter: a record without a key that is also too large for the
// dead-letter topic.
func TestPointerOfTheRouter(t *testing.T) {
	for _, tamper := range []bool{false, true} {
		w := newWorld()
		s := w.sendWithoutKey(0, 5)
		r := &w.h.Live["dead"][0]
		sum := sha256.Sum256(s.Value)
		if tamper {
			sum[0]++
		}
		r.Value, r.Timestamp = nil, 12345
		r.Headers = append(r.Headers[3:], Header{headerTimestamp, []byte(fmt.Sprint(s.Timestamp))}, Header{headerValueSize, []byte(fmt.Sprint(len(s.Value)))},
			Header{headerValueHash, []byte(hex.EncodeToString(sum[:]))})
		_, violations := Check(w.cfg, w.end())
		if got := ids(t, violations); tamper != slices.Equal(got, []string{"K3"}) || !tamper && len(got) > 0 {
			t.Errorf("hash changed %t: findings %v", tamper, got)
		}
	}
}
