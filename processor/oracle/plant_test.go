package oracle

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
)

// nth returns the nth live record of a topic's partition.
func (w *scenario) nth(topic string, partition int32, n int) *Record {
	return nth(w.h.Live[topic], partition, n)
}

func nth(records []Record, partition int32, n int) *Record {
	for i := range records {
		if records[i].Partition != partition {
			continue
		}
		if n == 0 {
			return &records[i]
		}
		n--
	}
	panic("the story has no such record")
}

func without(records []Record, r *Record) []Record {
	return slices.DeleteFunc(records, func(x Record) bool { return x.Partition == r.Partition && x.Offset == r.Offset })
}

func (w *scenario) remove(r *Record) { w.h.Live[r.Topic] = without(w.h.Live[r.Topic], r) }

// swap exchanges the offsets of two records.
func swap(a, b *Record) {
	a.Offset, b.Offset = b.Offset, a.Offset
	*a, *b = *b, *a
}

// rowsOf returns the rows of a partition's changelog, without checkpoints.
func (w *scenario) rowsOf(partition int32) []*Record {
	var rows []*Record
	for i := range w.h.Live[w.cfg.Changelog] {
		if r := &w.h.Live[w.cfg.Changelog][i]; r.Partition == partition && string(r.Key) != "checkpoint" {
			rows = append(rows, r)
		}
	}
	return rows
}

func (w *scenario) checkpoints(partition int32) []*Record {
	var list []*Record
	for i := range w.h.Live[w.cfg.Changelog] {
		if r := &w.h.Live[w.cfg.Changelog][i]; r.Partition == partition && string(r.Key) == "checkpoint" {
			list = append(list, r)
		}
	}
	return list
}

// rewrite replaces the value of a checkpoint, in the stores too.
func (w *scenario) rewrite(r *Record, value []byte) {
	for i := range w.h.Stores {
		if s := &w.h.Stores[i]; s.Partition == r.Partition && bytes.Equal(s.Checkpoint, stored(r.Value)) {
			s.Checkpoint = stored(value)
		}
	}
	r.Value = value
}

// trim commits a checkpoint whose floor is above the nth row of a partition.
func (w *scenario) trim(partition int32, n int) {
	w.floor[partition] = w.rowsOf(partition)[n].Offset + 1
	w.commit(partition)
}

// sweep writes a row again.
func (w *scenario) sweep(r *Record) {
	w.append(Record{Topic: r.Topic, Partition: r.Partition, Timestamp: r.Timestamp, Key: r.Key, Value: r.Value, Headers: []Header{{Key: headerSweep}}})
}

// deleteRow deletes the nth row of a partition from the final changelog.
func deleteRow(h *History, partition int32, n int) {
	h.Final["app-repartition-changelog"] = without(h.Final["app-repartition-changelog"], &rowsIn(h, partition)[n])
}

// rowsIn returns the rows of a partition's changelog.
func rowsIn(h *History, partition int32) []Record {
	return slices.DeleteFunc(slices.Clone(h.Live["app-repartition-changelog"]), func(r Record) bool { return string(r.Key) == "checkpoint" || r.Partition != partition })
}

func TestOnce(t *testing.T) {
	wantFindings(t, []plant{
		{name: "an output is emitted twice", want: []string{"K1"}, message: "signals/0/10: an extra record", change: func(w *scenario) {
			r := *w.nth("signals", 0, 0)
			w.append(r)
		}},
		{name: "two equal outputs are emitted three times", want: []string{"K1"}, message: "an extra record", change: func(w *scenario) {
			equals(w)
			w.append(w.h.Live["signals"][len(w.h.Live["signals"])-1])
		}},
		{name: "the router writes a dead letter twice", want: []string{"K1"}, message: "signals.raw/0/1 was dead-lettered before", change: func(w *scenario) {
			w.append(*w.deadAt("signals.raw/0/1"))
		}},
		{name: "routed twice", want: []string{"K1"}, message: "was routed before", change: func(w *scenario) {
			s := w.send(0, 0, idAt(0, "twice"), 5000)
			w.forwarded(s, "unique", 5000, 5000)
			w.duplicate(s, s, "duplicates")
			w.commit(0)
		}},
		{name: "a duplicate inside the window is emitted", want: []string{"K1", "K2", "K5", "K11"}, message: "one record too many", change: func(w *scenario) {
			id := idAt(0, "open")
			w.forwarded(w.send(0, 0, id, 5000), "unique", 5000, 5000)
			w.forwarded(w.send(0, 1, id, 5001), "unique", 5001, 5001)
			w.commit(0)
		}},
		{name: "a key in two partitions", want: []string{"K1"}, message: "two tasks judge it", change: func(w *scenario) {
			id := idAt(1, "moved")
			w.forwarded(w.send(0, 0, id, 5000), "unique", 5000, 5000)
			w.homes = map[string]int32{id: 0}
			w.forwarded(w.send(0, 1, id, 5001), "unique", 5001, 5001)
			w.commit(0)
			w.commit(1)
		}},
	})
}

// deadAt returns the dead letter of a raw record.
func (w *scenario) deadAt(source string) *Record {
	for i := range w.h.Live["dead"] {
		if v, _ := own(&w.h.Live["dead"][i], headerSource); v == source {
			return &w.h.Live["dead"][i]
		}
	}
	panic("the story has no dead letter of " + source)
}

func TestNoneLost(t *testing.T) {
	wantFindings(t, []plant{
		{name: "never routed", want: []string{"K2"}, message: "signals.raw/0/5: acknowledged, but it never reached", change: func(w *scenario) { w.send(0, 0, "lost", 5000) }},
		{name: "never dead-lettered", want: []string{"K2"}, message: "signals.raw/0/1: acknowledged, but it is in no dead-letter topic", change: func(w *scenario) {
			w.remove(w.deadAt("signals.raw/0/1"))
		}},
		{name: "an output is lost", want: []string{"K2", "K11"}, message: "signals: lost: app-repartition/0/0 of signals.raw/0/0", change: func(w *scenario) {
			w.remove(w.nth("signals", w.partitionWith("signals", idAt(0, "a")), 0))
		}},
		{name: "one of two equal outputs is lost", want: []string{"K2", "K11"}, message: "was judged after_window and never emitted", change: func(w *scenario) {
			equals(w)
			w.h.Live["signals"] = w.h.Live["signals"][:len(w.h.Live["signals"])-1]
		}},
		{name: "never sent", want: []string{"K2"}, message: "routed from signals.raw/0/0, where no record was sent", change: func(w *scenario) { w.h.Sent = w.h.Sent[1:] }},
		{name: "dead letter never sent", want: []string{"K2"}, message: "where no record was sent", change: func(w *scenario) {
			w.h.Sent = slices.DeleteFunc(w.h.Sent, func(s Sent) bool { return s.ID == "" && s.Offset == 1 })
		}},
		{name: "the key of another event", want: []string{"K2"}, message: "the SHA-256 of id \"other\"", change: func(w *scenario) { w.h.Sent[0].ID = "other" }},
		{name: "the key of another namespace", want: []string{"K2"}, message: "with state digest", change: func(w *scenario) { w.h.Sent[0].Kind = "content" }},
		{name: "another route", want: []string{"K2"}, message: "by route \"signals\", want \"orders\"", change: func(w *scenario) {
			w.cfg.Routes[1].Namespace = "signals"
			w.h.Sent[0].Route = "orders"
		}},
		{name: "routed without a key", want: []string{"K2"}, message: "has no key", change: func(w *scenario) { w.h.Sent[0].ID = "" }},
		{name: "dead-lettered with a key", want: []string{"K2"}, message: "has id \"keyed\"", change: func(w *scenario) {
			i := slices.IndexFunc(w.h.Sent, func(s Sent) bool { return s.ID == "" })
			w.h.Sent[i].ID = "keyed"
		}},
		{name: "sent to no input", want: []string{"K2"}, message: "unknown.raw/0/0: sent to a topic that is no input", change: func(w *scenario) {
			w.h.Sent = append(w.h.Sent, Sent{Route: "signals", ID: "x", Record: Record{Topic: "unknown.raw"}})
		}},
		{name: "routed from no input", want: []string{"K2"}, message: "routed from topic#77/0/0", change: func(w *scenario) {
			w.cfg.Topics["gone.raw"] = 77
			s := w.send(0, 0, idAt(0, "gone"), 3800)
			w.h.Sent = w.h.Sent[:len(w.h.Sent)-1]
			s.Topic, s.Offset = "gone.raw", 0
			w.refused(s, 5000, "late", "dead", fmt.Sprintf("event time %d cannot be judged: stream time is %d, window 1s, grace 100ms", base+3800, base+5000))
			dead := &w.h.Live["dead"][len(w.h.Live["dead"])-1]
			for i := range dead.Headers {
				if h := &dead.Headers[i]; bytes.Contains(h.Value, []byte("gone.raw")) {
					h.Value = bytes.ReplaceAll(h.Value, []byte("gone.raw"), []byte("topic#77"))
				}
			}
			delete(w.cfg.Topics, "gone.raw")
			w.commit(0)
		}},
		{name: "routed to no task", want: []string{"K2"}, message: "app-repartition/5: there are only 2 partitions", change: func(w *scenario) {
			w.append(Record{Topic: w.cfg.Repartition, Partition: 5})
		}},
		{name: "routed by no route", want: []string{"K2"}, message: "by \"gone\", which is no route", change: func(w *scenario) {
			s := w.send(0, 0, idAt(0, "route"), 5000)
			s.Route = "gone"
			w.h.Sent[len(w.h.Sent)-1].Route = "gone"
			w.next[0] = w.repartition(s, 5000).Offset + 1
			w.commit(0)
		}},
		{name: "dead-lettered to the wrong topic", want: []string{"K2"}, message: "belongs in another topic", change: func(w *scenario) {
			s := w.sendWithoutKey(0, 6000)
			r := w.h.Live["dead"][len(w.h.Live["dead"])-1]
			w.remove(&r)
			r.Topic = s.Route
			w.append(r)
		}},
		{name: "dead-lettered from a malformed source", want: []string{"K2"}, message: "from \"far away\", where no record was sent", change: func(w *scenario) {
			w.append(Record{Topic: "dead", Headers: []Header{{headerSource, []byte("far away")}}})
		}},
		{name: "no envelope", want: []string{"K1", "K2"}, message: "no envelope", change: func(w *scenario) {
			r := w.nth(w.cfg.Repartition, 1, 2)
			r.Key = nil
		}},
	})
}

// partitionWith returns the partition with the emitted records of an id.
func (w *scenario) partitionWith(topic, id string) int32 {
	for i := range w.h.Live[topic] {
		if string(w.h.Live[topic][i].Key) == "k-"+id {
			return w.h.Live[topic][i].Partition
		}
	}
	panic("the story has no record of " + id)
}

func TestFirstWinsUntouched(t *testing.T) {
	out := func(w *scenario) *Record { return w.nth("signals", 0, 0) }
	wantFindings(t, []plant{
		{name: "value", want: []string{"K3"}, message: "signals/0/0: differs from the expected output of", change: func(w *scenario) { out(w).Value = []byte("other") }},
		{name: "null value", want: []string{"K3"}, message: "value null", change: func(w *scenario) { out(w).Value = nil }},
		{name: "key", want: []string{"K3"}, message: "record key \"other\"", change: func(w *scenario) { out(w).Key = []byte("other") }},
		{name: "timestamp", want: []string{"K3"}, message: "timestamp", change: func(w *scenario) { out(w).Timestamp++ }},
		{name: "foreign header", want: []string{"K3"}, message: "headers [traceparent=\"altered\"", change: func(w *scenario) {
			out(w).Headers = slices.Clone(out(w).Headers)
			out(w).Headers[0].Value = []byte("altered")
		}},
		{name: "null header", want: []string{"K3"}, message: "headers", change: func(w *scenario) {
			out(w).Headers = slices.Clone(out(w).Headers)
			out(w).Headers[1].Value = nil
		}},
		{name: "forged header", want: []string{"K3"}, message: "oncebus's headers are wrong", change: func(w *scenario) {
			r := out(w)
			r.Headers = slices.Insert(slices.Clone(r.Headers), 3, Header{"Oncebus-Verdict", []byte("forged")})
		}},
		{name: "verdict", want: []string{"K3"}, message: "verdict \"after_window\", want \"unique\"", change: func(w *scenario) {
			r := out(w)
			r.Headers = slices.Clone(r.Headers)
			for i := range r.Headers {
				if r.Headers[i].Key == headerVerdict {
					r.Headers[i].Value = []byte("after_window")
				}
			}
		}},
		{name: "another first event is named", want: []string{"K3"}, message: "oncebus-first=\"signals.raw/1/9\"", change: func(w *scenario) {
			r := &w.h.Live["duplicates"][0]
			r.Headers = slices.Clone(r.Headers)
			r.Headers[len(r.Headers)-2].Value = []byte("signals.raw/1/9")
		}},
		{name: "on the way to the repartition topic", want: []string{"K3"}, message: "not as it was sent: value", change: func(w *scenario) { w.h.Sent[0].Value = []byte("as sent") }},
		{name: "header lost on the way to the repartition topic", want: []string{"K3"}, message: "not as it was sent: headers", change: func(w *scenario) {
			w.h.Sent[0].Headers = append(slices.Clone(w.h.Sent[0].Headers), Header{"more", nil})
		}},
		{name: "event time", want: []string{"K3"}, message: fmt.Sprint("with event time ", base), change: func(w *scenario) { w.h.Sent[0].Time = 1 }},
		{name: "dead letter of the router", want: []string{"K3"}, message: "from signals.raw/0/1, not as it was sent: value", change: func(w *scenario) { w.deadAt("signals.raw/0/1").Value = []byte("other") }},
		{name: "dead letter without a reason", want: []string{"K3"}, message: "for reason \"\"", change: func(w *scenario) {
			r := w.deadAt("signals.raw/0/1")
			r.Headers = slices.DeleteFunc(slices.Clone(r.Headers), func(h Header) bool { return h.Key == headerReason })
		}},
	})
}

func TestOrder(t *testing.T) {
	wantFindings(t, []plant{
		{name: "two outputs in reverse order", want: []string{"K4"}, message: "came before it", change: func(w *scenario) {
			id := idAt(0, "order")
			w.forwarded(w.send(0, 0, id, 5000), "unique", 5000, 5000)
			first := w.h.Sent[len(w.h.Sent)-1]
			w.duplicate(w.send(0, 0, id, 5001), first, "duplicates")
			w.duplicate(w.send(0, 0, id, 5002), first, "duplicates")
			w.commit(0)
			n := len(w.h.Live["duplicates"])
			swap(&w.h.Live["duplicates"][n-1], &w.h.Live["duplicates"][n-2])
		}},
		{name: "routed out of order", want: []string{"K4"}, message: "but offset 6 of that partition came before it", change: func(w *scenario) {
			a, b := w.send(0, 0, idAt(0, "x"), 5000), w.send(0, 0, idAt(0, "y"), 5000)
			w.forwarded(b, "unique", 5000, 5000)
			w.forwarded(a, "unique", 5000, 5000)
			w.commit(0)
		}},
		{name: "in the wrong partition", want: []string{"K4"}, message: "by its key", change: func(w *scenario) {
			s := w.send(0, 0, idAt(0, "place"), 5000)
			w.forwarded(s, "unique", 5000, 5000)
			w.commit(0)
			r := w.h.Live["signals"][len(w.h.Live["signals"])-1]
			w.remove(&r)
			r.Partition = 1 - r.Partition
			w.append(r)
		}},
		{name: "dead-lettered out of order", want: []string{"K4"}, message: "came before it", change: func(w *scenario) {
			w.sendWithoutKey(0, 6000)
			w.sendWithoutKey(0, 6001)
			r := w.h.Live["dead"]
			a, b := &r[len(r)-1], &r[len(r)-2]
			if a.Partition != b.Partition {
				panic("the two ids must be in one partition")
			}
			swap(a, b)
		}},
	})
}

func TestState(t *testing.T) {
	last := func(h *History, partition int32) *Store {
		for i := len(h.Stores) - 1; ; i-- {
			if h.Stores[i].Partition == partition {
				return &h.Stores[i]
			}
		}
	}
	newest := func(w *scenario) *Record { rows := w.rowsOf(1); return rows[len(rows)-1] }
	wantFindings(t, []plant{
		{name: "store lacks a row", want: []string{"K5"}, message: "store of app-repartition-changelog/1 at position", change: func(w *scenario) {
			delete(last(w.h, 1).Rows, string(newest(w).Key))
		}},
		{name: "store has a stale row", want: []string{"K5"}, message: "the row of", change: func(w *scenario) {
			last(w.h, 1).Rows[string(newest(w).Key)] = w.rowsOf(1)[1].Value
		}},
		{name: "store has a row that the changelog lacks", want: []string{"K5"}, message: "which the changelog does not have below the position", change: func(w *scenario) {
			last(w.h, 1).Rows["0123456789abcdef"] = newest(w).Value
		}},
		{name: "store is ahead of its rows", want: []string{"K5"}, message: "at position", change: func(w *scenario) { w.h.Stores[1].Position = last(w.h, 1).Position }},
		{name: "store's checkpoint is stale", want: []string{"K5"}, message: ": checkpoint ", change: func(w *scenario) { last(w.h, 1).Checkpoint = w.h.Stores[1].Checkpoint }},
		{name: "store has a checkpoint before there was one", want: []string{"K5"}, message: "the changelog has none below the position", change: func(w *scenario) {
			last(w.h, 1).Position, last(w.h, 1).Rows = 0, nil
		}},
		{name: "store of no partition", want: []string{"K5"}, message: "there are only 2 partitions", change: func(w *scenario) { last(w.h, 1).Partition = 7 }},
		{name: "a row is missing in the final read", want: []string{"K5"}, message: "is missing from the final changelog", observe: func(h *History) {
			rows := h.Final["app-repartition-changelog"]
			i := slices.IndexFunc(rows, func(r Record) bool { return string(r.Key) != "checkpoint" && r.Partition == 1 })
			h.Final["app-repartition-changelog"] = slices.Delete(rows, i, i+1)
		}},
		{name: "a row is deleted below the floor before its retention is over", want: []string{"K5"}, message: "is missing from the final changelog",
			change: func(w *scenario) { w.trim(0, 3) }, observe: func(h *History) { deleteRow(h, 0, 3) }},
		{name: "a row is deleted above the floor", want: []string{"K5"}, message: "is missing from the final changelog", observe: func(h *History) { deleteRow(h, 0, 2) }},
		{name: "a sweep writes an old row", want: []string{"K5"}, message: "a sweep wrote", change: func(w *scenario) {
			w.sweep(w.rowsOf(1)[1])
			w.commit(1)
		}},
		{name: "the floor goes back", want: []string{"K10"}, message: "has floor 0, the previous one", change: func(w *scenario) {
			w.trim(0, 2)
			w.floor[0] = 0
			w.commit(0)
		}},
		{name: "the checkpoint is missing in the final read", want: []string{"K5"}, message: "is missing from the final changelog", observe: func(h *History) {
			rows := h.Final["app-repartition-changelog"]
			h.Final["app-repartition-changelog"] = rows[:len(rows)-1]
		}},
		{name: "stream time", want: []string{"K5"}, message: "has stream time", change: func(w *scenario) {
			r := w.checkpoints(1)[0]
			value := slices.Clone(r.Value)
			value[len(value)-1] ^= 1
			w.rewrite(r, value)
		}},
		{name: "neither row nor checkpoint", want: []string{"K5"}, message: "neither a row nor a checkpoint", change: func(w *scenario) {
			w.append(Record{Topic: w.cfg.Changelog, Partition: 1, Key: []byte("stray"), Timestamp: base})
		}},
	})
}

func TestOffsets(t *testing.T) {
	wantFindings(t, []plant{
		{name: "backward", want: []string{"K6"}, message: "it was", change: func(w *scenario) { w.h.Offsets = slices.Insert(w.h.Offsets, 4, w.h.Offsets[0]) }},
		{name: "no checkpoint has it", want: []string{"K6"}, message: "no checkpoint has it", change: func(w *scenario) {
			s := w.h.Offsets[0]
			s.Offset++
			w.h.Offsets = slices.Insert(w.h.Offsets, 1, s)
		}},
		{name: "offset behind at the end", want: []string{"K6"}, message: "at the end", change: func(w *scenario) { w.h.Offsets = w.h.Offsets[:len(w.h.Offsets)-1] }},
		{name: "offset ahead at the end", want: []string{"K6"}, message: "at the end", change: func(w *scenario) { w.h.Offsets[len(w.h.Offsets)-1].Offset += 2 }},
		{name: "deleted without a reset", want: []string{"K6"}, message: "is -1", change: func(w *scenario) { w.h.Offsets = slices.Insert(w.h.Offsets, 3, Sample{Offset: -1}) }},
		{name: "never sampled", want: []string{"K6"}, message: "never sampled", change: func(w *scenario) {
			w.h.Offsets = slices.DeleteFunc(w.h.Offsets, func(s Sample) bool { return s.Partition == 1 })
		}},
	})
}

func TestLiveConsumer(t *testing.T) {
	wantFindings(t, []plant{
		{name: "saw an aborted output", want: []string{"K7"}, message: "the final read does not", observe: func(h *History) { h.Final["signals"] = h.Final["signals"][:len(h.Final["signals"])-1] }, change: func(w *scenario) {
			r := *w.nth("signals", 0, 0)
			w.append(r)
		}},
		{name: "saw an aborted record of the repartition topic", want: []string{"K7"}, message: "app-repartition/0/3: the live consumer saw it", observe: func(h *History) {
			h.Final["app-repartition"] = without(h.Final["app-repartition"], nth(h.Final["app-repartition"], 0, 2))
		}},
		{name: "saw a topic that is empty in the final read", want: []string{"K2", "K7", "K11"}, message: "orders/", observe: func(h *History) { delete(h.Final, "orders") }},
		{name: "saw nothing of a topic", want: []string{"K7"}, message: "orders/", observe: func(h *History) { delete(h.Live, "orders") }},
		{name: "did not see an output", want: []string{"K7"}, message: "the live consumer did not see it", observe: func(h *History) { h.Live["orders"] = h.Live["orders"][1:] }},
		{name: "saw an offset twice", want: []string{"K7"}, message: "the live consumer saw it after offset", observe: func(h *History) {
			h.Live["orders"] = append(slices.Clone(h.Live["orders"]), h.Live["orders"][0])
		}},
		{name: "saw another output", want: []string{"K7"}, message: "saw another record than the final read", observe: func(h *History) { h.Live["orders"][0].Value = []byte("rewritten") }},
		{name: "saw another row", want: []string{"K7"}, message: "saw another record than the final read", observe: func(h *History) { h.Final["app-repartition-changelog"][0].Timestamp++ }},
		{name: "did not see a checkpoint", want: []string{"K7"}, message: "the live consumer did not see it", observe: func(h *History) {
			r := h.Final["app-repartition-changelog"]
			h.Final["app-repartition-changelog"] = append(slices.Clone(r), Record{Topic: "app-repartition-changelog", Partition: 1, Offset: 1000})
		}},
	})
}

func TestLiveness(t *testing.T) {
	wantFindings(t, []plant{
		{name: "open transaction", want: []string{"K8"}, message: "signals/1", observe: func(h *History) { h.Open = []string{"signals/1"} }},
		{name: "two open transactions", want: []string{"K8"}, message: "dead/0", observe: func(h *History) { h.Open = []string{"signals/1", "dead/0"} }},
		{name: "lag", want: []string{"K9"}, message: "a lag of 3", observe: func(h *History) { h.Lag = map[string]int64{"app-route signals.raw/0": 3, "app-route signals.raw/1": 0} }},
		{name: "not judged", want: []string{"K9"}, message: "beyond the last checkpoint", change: func(w *scenario) {
			w.repartition(w.send(0, 0, idAt(0, "later"), 5000), 5000)
		}},
	})
}

func TestChain(t *testing.T) {
	wantFindings(t, []plant{
		{name: "fork", want: []string{"K10"}, message: "follows one with sequence", change: func(w *scenario) {
			w.number[0]--
			w.commit(0)
			w.h.Stores = w.h.Stores[:len(w.h.Stores)-1]
		}},
		{name: "gap", want: []string{"K10"}, message: "one is missing", change: func(w *scenario) {
			w.number[1]++
			w.commit(1)
		}},
		{name: "back", want: []string{"K10"}, message: "it went back", change: func(w *scenario) {
			w.next[1]--
			w.commit(1)
			w.h.Offsets = w.h.Offsets[:len(w.h.Offsets)-1]
		}},
		{name: "a zombie commits the input of its successor", want: []string{"K1", "K10", "K11"}, message: "two owners", change: func(w *scenario) {
			s := w.send(0, 0, idAt(0, "z"), 5000)
			w.forwarded(s, "unique", 5000, 5000)
			w.commit(0)
			rows, chain, outputs := w.rowsOf(0), w.checkpoints(0), w.h.Live["signals"]
			w.append(outputs[len(outputs)-1])
			w.append(*rows[len(rows)-1])
			w.append(*chain[len(chain)-1])
		}},
		{name: "no checkpoint at all", want: []string{"K5", "K9", "K10", "K11"}, message: "is not a checkpoint", change: func(w *scenario) {
			r := w.checkpoints(1)[2]
			w.rewrite(r, []byte{9})
			w.h.Offsets = w.h.Offsets[:0]
			w.h.Stores = nil
		}},
	})
}

func TestTransactions(t *testing.T) {
	wantFindings(t, []plant{
		{name: "a row is missing", want: []string{"K5", "K11"}, message: "the first missing is", change: func(w *scenario) {
			w.remove(w.rowsOf(1)[2])
			w.h.Stores = nil
		}},
		{name: "a row is another", want: []string{"K11"}, message: "row 0 of the transaction", change: func(w *scenario) {
			w.rowsOf(1)[1].Value = w.rowsOf(1)[0].Value
			w.h.Stores = nil
		}},
		{name: "a row too many", want: []string{"K11"}, message: "the first too many is", change: func(w *scenario) {
			w.append(*w.rowsOf(1)[2])
			w.commit(1)
		}},
		{name: "two rows in reverse order", want: []string{"K11"}, message: "row 0 of the transaction", change: func(w *scenario) {
			w.forwarded(w.send(0, 0, idAt(0, "x"), 5000), "unique", 5000, 5000)
			w.forwarded(w.send(0, 0, idAt(0, "y"), 5000), "unique", 5000, 5000)
			w.commit(0)
			rows := w.rowsOf(0)
			swap(rows[len(rows)-1], rows[len(rows)-2])
		}},
		{name: "rows without a checkpoint", want: []string{"K5", "K9", "K11"}, message: "followed by no checkpoint", change: func(w *scenario) {
			w.forwarded(w.send(0, 0, idAt(0, "torn"), 5000), "unique", 5000, 5000)
		}},
		{name: "outputs without a checkpoint", want: []string{"K9", "K11"}, message: "which no checkpoint covers", change: func(w *scenario) {
			s := w.send(0, 0, idAt(0, "torn"), 3800)
			w.refused(s, 5000, "late", "dead", fmt.Sprintf("event time %d cannot be judged: stream time is %d, window 1s, grace 100ms", base+3800, base+5000))
		}},
		{name: "a checkpoint without outputs", want: []string{"K2", "K11"}, message: "committed without 2 of its outputs", change: func(w *scenario) {
			s := w.send(0, 0, idAt(0, "torn"), 5000)
			w.forwarded(s, "unique", 5000, 5000)
			w.duplicate(w.send(0, 0, s.ID, 5000), s, "duplicates")
			w.commit(0)
			w.h.Live["signals"] = w.h.Live["signals"][:len(w.h.Live["signals"])-1]
			w.h.Live["duplicates"] = w.h.Live["duplicates"][:len(w.h.Live["duplicates"])-1]
		}},
		{name: "a checkpoint without a record below it", want: []string{"K11"}, message: "has no record just below", change: func(w *scenario) {
			w.forwarded(w.send(0, 0, idAt(0, "x"), 5000), "unique", 5000, 5000)
			w.next[0]++
			w.commit(0)
		}},
		{name: "a checkpoint that skips no record", want: []string{"K11"}, message: "has no record just below", change: func(w *scenario) {
			w.next[0]++
			w.commit(0)
		}},
	})
}
