package oracle

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"testing"
)

func (w *scenario) bypassFlags() (flags byte) {
	if len(w.bypassed) > 0 {
		flags |= flagBypassed
	}
	if len(w.dead) > 0 {
		flags |= flagDeadLettered
	}
	if w.incomplete {
		flags |= flagIncomplete
	}
	return flags
}

func (w *scenario) appendBypass(b []byte) []byte {
	if len(w.bypassed) > 0 {
		b = append(b, byte(len(w.bypassed)))
		for _, namespaceID := range slices.Sorted(maps.Keys(w.bypassed)) {
			b = binary.AppendUvarint(append(b, namespaceID), uint64(w.bypassed[namespaceID]))
		}
	}
	if len(w.dead) > 0 {
		b = binary.AppendUvarint(b, uint64(len(w.dead)))
		end := int64(0)
		for _, r := range w.dead {
			b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(r.from-end)), uint64(r.to-r.from))
			end = r.to
		}
	}
	return b
}

// unchecked adds an event that is forwarded without a look-up.
func (w *scenario) unchecked(s Sent, stamp int64) *Record {
	r := w.repartition(s, stamp)
	w.emit(s, s.Route, headerRoute, s.Route, headerVerdict, "bypassed", headerKey, keyText(s.ID), headerReason, reasonBypassed,
		headerSource, w.source(&s), headerFirst, w.source(&s), headerFirstTime, fmt.Sprint(s.Timestamp))
	return r
}

// A bypassStory is an epoch of partition 0 without local state. Route signals fails open,
// orders fails closed.
type bypassStory struct {
	w             *scenario
	x, order      Sent
	end           int64 // input offset after it
	future, again *Record
}

// fails makes the route signals fail open.
func fails(w *scenario) { w.cfg.Routes[0].FailOpen = true }

// bypassed adds the part without local state: two copies of one event, an order that waits,
// and an event from the future. It ends with a commit.
func bypassed(w *scenario) bypassStory {
	fails(w)
	b := bypassStory{w: w, x: w.send(0, 0, idAt(0, "x"), 5000), order: w.send(1, 0, idAt(0, "order"), 5000)}
	next := w.next[0]
	w.unchecked(b.x, 5000)
	w.repartition(b.order, 5000)
	b.again = w.unchecked(w.send(0, 0, b.x.ID, 5001), 5001)
	w.refused(w.send(0, 1, idAt(0, "far"), 99_000), 5001, "invalid", "dead", fmt.Sprintf("event time %d is more than 500ms ahead of the broker's %d", base+99_000, base+5001))
	b.future = &w.h.Live[w.cfg.Repartition][len(w.h.Live[w.cfg.Repartition])-1]
	w.next[0], b.end = next, b.future.Offset+1
	w.bypassed = map[uint8]int64{1: b.end}
	w.dead = []offsetRange{{b.future.Offset, b.end}}
	w.commit(0)
	return b
}

// restored adds the part after it: the order is judged, and the first copy stored, and
// more bypassed events.
func (b *bypassStory) restored(more ...Sent) {
	w := b.w
	record := func(s *Sent) *Record {
		return &Record{Partition: 0, Timestamp: s.Timestamp, Offset: b.end - 1}
	}
	w.row(record(&b.x), b.x, b.x.Timestamp, 1)
	w.emit(b.order, "orders", headerRoute, "orders", headerVerdict, "unique", headerKey, keyText(b.order.ID))
	w.row(record(&b.order), b.order, b.order.Timestamp, 3)
	w.times[0][1] = base + 5001
	for i := range more {
		w.row(record(&more[i]), more[i], more[i].Timestamp, 1)
	}
	w.bypassed, w.dead = nil, nil
	w.commit(0)
}

func TestBypass(t *testing.T) {
	wantNoFinding(t, []plant{
		{name: "bypassed and restored", change: func(w *scenario) {
			b := bypassed(w)
			b.restored()
		}},
		{name: "bypassed in two transactions", change: func(w *scenario) {
			b := bypassed(w)
			r := w.unchecked(w.send(0, 1, idAt(0, "y"), 5002), 5002)
			w.bypassed[1] = r.Offset + 1
			w.commit(0)
			b.end = r.Offset + 1
			b.restored(w.h.Sent[len(w.h.Sent)-1])
		}},
		{name: "a duplicate of a bypassed event, after it", change: func(w *scenario) {
			b := bypassed(w)
			b.restored()
			w.duplicate(w.send(0, 0, b.x.ID, 5100), b.x, "duplicates")
			w.commit(0)
		}},
	})
	wantFindings(t, []plant{
		{name: "a bypassed event is emitted again", want: []string{"K1"}, message: `one record too many with verdict "unique"`, change: func(w *scenario) {
			b := bypassed(w)
			w.emit(b.x, "signals", headerRoute, "signals", headerVerdict, "unique", headerKey, keyText(b.x.ID))
			b.restored()
		}},
		{name: "a bypassed event is not stored", want: []string{"K5", "K11"}, message: "row 0 of the transaction", change: func(w *scenario) {
			b := bypassed(w)
			b.restored()
			rows := w.rowsOf(0)
			delete(w.h.Stores[len(w.h.Stores)-1].Rows, string(rows[len(rows)-2].Key))
			w.remove(rows[len(rows)-2])
		}},
		{name: "a route that fails closed is bypassed", want: []string{"K1", "K5", "K10"}, message: "whose routes fail closed", change: func(w *scenario) {
			b := bypassed(w)
			b.restored()
			w.cfg.Routes[0].FailOpen = false
		}},
		{name: "a skipped event of a route that fails closed is lost", want: []string{"K2", "K11"}, message: "orders: lost", change: func(w *scenario) {
			b := bypassed(w)
			b.restored()
			w.h.Live["orders"] = w.h.Live["orders"][:len(w.h.Live["orders"])-1]
		}},
		{name: "a bypassed event is lost", want: []string{"K2", "K11"}, message: "was judged bypassed and never emitted", change: func(w *scenario) {
			b := bypassed(w)
			b.restored()
			w.h.Live["signals"] = w.h.Live["signals"][:len(w.h.Live["signals"])-1]
		}},
		{name: "the checkpoint forgets a dead letter", want: []string{"K5"}, message: "does not say that offset", change: func(w *scenario) {
			b := bypassed(w)
			r := w.checkpoints(0)[len(w.checkpoints(0))-1]
			w.dead = nil
			w.rewrite(r, w.appendedCheckpoint(r))
			b.restored()
		}},
		{name: "the bypass is forgotten", want: []string{"K5", "K10"}, message: "no longer says that namespace id 1 was bypassed", change: func(w *scenario) {
			b := bypassed(w)
			was := w.bypassed
			w.bypassed, w.dead = nil, nil
			w.commit(0)
			w.bypassed = was
			b.restored()
		}},
		{name: "the bypass goes back", want: []string{"K5", "K10"}, message: "an earlier one up to", change: func(w *scenario) {
			b := bypassed(w)
			w.bypassed[1]--
			w.dead = nil
			w.commit(0)
			b.restored()
		}},
		{name: "the verdict bypassed on an event of a usable store", want: []string{"K3"}, message: `verdict "bypassed", want "unique"`, change: func(w *scenario) {
			fails(w)
			s := w.send(0, 0, idAt(0, "x"), 5000)
			w.forwarded(s, "unique", 5000, 5000)
			w.commit(0)
			w.h.Live["signals"] = w.h.Live["signals"][:len(w.h.Live["signals"])-1]
			w.unchecked(s, 5000)
			w.h.Live[w.cfg.Repartition] = w.h.Live[w.cfg.Repartition][:len(w.h.Live[w.cfg.Repartition])-1]
		}},
	})
}

// appendedCheckpoint is the newest checkpoint of partition 0 as the scenario writes it now.
func (w *scenario) appendedCheckpoint(r *Record) []byte {
	twin := *w
	twin.h = &History{Live: map[string][]Record{}}
	twin.ends, twin.number, twin.noStores = map[string]int64{}, maps.Clone(w.number), true
	twin.number[r.Partition]--
	twin.commit(r.Partition)
	return twin.h.Live[w.cfg.Changelog][0].Value
}

func TestIncompleteChangelog(t *testing.T) {
	cut := func(w *scenario) {
		w.h.Cut = []string{"app-repartition-changelog/0"}
		w.incomplete = true
		w.commit(0)
	}
	swept := func(w *scenario) {
		for _, r := range w.rowsOf(0) {
			if bytes.Equal(r.Value, w.rows[0][string(r.Key)]) {
				w.sweep(r)
			}
		}
		w.incomplete = false
		w.commit(0)
	}
	wantNoFinding(t, []plant{
		{name: "rows deleted, checkpoint says so", change: cut, observe: func(h *History) { deleteRow(h, 0, 0) }},
		{name: "rows deleted, then swept", change: func(w *scenario) {
			cut(w)
			swept(w)
		}, observe: func(h *History) { deleteRow(h, 0, 0) }},
	})
	wantFindings(t, []plant{
		{name: "no record was deleted", want: []string{"K5"}, message: "but none was deleted", change: func(w *scenario) {
			cut(w)
			w.h.Cut = nil
		}},
		{name: "the checkpoint is complete again without a sweep", want: []string{"K5"}, message: "is missing from the final changelog", change: func(w *scenario) {
			cut(w)
			w.incomplete = false
			w.commit(0)
		}, observe: func(h *History) { deleteRow(h, 0, 2) }},
	})
}

func TestRollingChangeOfRoutes(t *testing.T) {
	// A route took the records of a topic from another one, process by process.
	changed := func(w *scenario, taken string) {
		id := idAt(0, "rolled")
		s := w.send(0, 0, id, 5000)
		i := len(w.h.Sent) - 1
		w.h.Sent[i].Route, w.h.Sent[i].RouteBefore = "orders", "signals"
		s.Route = taken
		w.forwarded(s, "unique", 5000, 5000)
		w.commit(0)
	}
	wantNoFinding(t, []plant{
		{name: "by the route of before", change: func(w *scenario) { changed(w, "signals") }},
		{name: "by the route of after", change: func(w *scenario) { changed(w, "orders") }},
		{name: "each of two copies by another route", change: func(w *scenario) {
			changed(w, "signals")
			changed(w, "orders")
		}},
	})
	wantFindings(t, []plant{
		{name: "by a route of neither", want: []string{"K2"}, message: `by route "signals", want "orders"`, change: func(w *scenario) {
			changed(w, "signals")
			w.h.Sent[len(w.h.Sent)-1].RouteBefore = "third"
		}},
		{name: "a process skips the record of a route that it does not know", want: []string{"K2", "K5", "K11"}, message: "was judged unique and never emitted", change: func(w *scenario) {
			w.next[0] = w.repartition(w.send(1, 0, idAt(0, "unknown"), 5000), 5000).Offset + 1
			w.commit(0)
		}},
		{name: "no process processes the record of a route that it does not know", want: []string{"K9"}, message: "not processed", change: func(w *scenario) {
			w.repartition(w.send(1, 0, idAt(0, "unknown"), 5000), 5000)
			w.commit(0)
		}},
	})
}
