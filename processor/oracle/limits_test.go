package oracle

import (
	"fmt"
	"slices"
	"testing"
)

// limited is a new key beyond the limit of its route: a dead letter without a row, whose
// time moves stream time.
func (w *scenario) limited(s Sent, topic string, live int) {
	w.refused(s, s.Timestamp-base, "limited", topic, fmt.Sprintf("new key beyond the limit: %d keys of namespace %s are live in app-repartition/%d, live_keys is 2", live, s.Route, partitionOf(s.ID)))
	w.times[partitionOf(s.ID)][w.namespaceID(s.Route)] = max(w.times[partitionOf(s.ID)][w.namespaceID(s.Route)], s.Timestamp)
}

// limit sets the limit of the route signals. At the end of the story two of its keys are
// live in partition 0: of 3900 and of 5000. They count until stream time is two windows,
// the grace and up to a 64th of these 2100 ms after them.
func limit(w *scenario) { w.cfg.Routes[0].LiveKeys = 2 }

// beyondLimit adds the keys number 3 to 5, of which the last one fits again: key 3900 counts
// in the bucket up to 3904, which stream time 6004 leaves.
func beyondLimit(w *scenario) {
	limit(w)
	w.limited(w.send(0, 0, idAt(0, "x"), 6003), "dead", 2)
	w.limited(w.send(0, 1, idAt(0, "y"), 6004), "dead", 2)
	w.forwarded(w.send(0, 0, idAt(0, "z"), 6004), "unique", 6004, 6004)
	w.commit(0)
}

func TestLimits(t *testing.T) {
	wantNoFinding(t, []plant{
		{name: "limit that is not reached", change: limit},
		{name: "keys beyond the limit, until one is free", change: beyondLimit},
		{name: "duplicates and a key after its window at the limit", change: func(w *scenario) {
			limit(w)
			e := idAt(0, "e")
			first := w.h.Sent[slices.IndexFunc(w.h.Sent, func(s Sent) bool { return s.ID == e })]
			w.duplicate(w.send(0, 0, e, 5900), first, "duplicates")
			w.forwarded(w.send(0, 0, idAt(0, "g"), 5901), "after_window", 5901, 5901)
			w.commit(0)
		}},
		{name: "forwarded beyond the limit", change: func(w *scenario) {
			limit(w)
			w.cfg.Routes[0].OnLimit = Forward
			w.limited(w.send(0, 0, idAt(0, "x"), 5000), "signals", 2)
			w.commit(0)
		}},
	})
	wantFindings(t, []plant{
		{name: "a key beyond the limit is unique", want: []string{"K2", "K3", "K5", "K11"}, message: `verdict "unique", want "limited"`, change: func(w *scenario) {
			limit(w)
			w.cfg.Routes[0].OnLimit = Forward
			w.forwarded(w.send(0, 0, idAt(0, "x"), 6003), "unique", 6003, 6003)
			w.limited(w.send(0, 1, idAt(0, "y"), 6003), "signals", 2)
			w.forwarded(w.send(0, 1, idAt(0, "w"), 6003), "unique", 6003, 6003)
			w.h.Live["signals"] = w.h.Live["signals"][:len(w.h.Live["signals"])-1]
			w.commit(0)
		}},
		{name: "an expired key still counts", want: []string{"K1", "K2", "K5", "K11"}, message: "was judged unique and never emitted", change: func(w *scenario) {
			limit(w)
			w.limited(w.send(0, 1, idAt(0, "y"), 6004), "dead", 2)
			w.limited(w.send(0, 0, idAt(0, "z"), 6004), "dead", 2)
			w.commit(0)
		}},
		{name: "the event beyond the limit is lost", want: []string{"K2", "K11"}, message: "was judged limited and never emitted", change: func(w *scenario) {
			beyondLimit(w)
			w.h.Live["dead"] = w.h.Live["dead"][:len(w.h.Live["dead"])-1]
		}},
		{name: "the event beyond the limit has a row", want: []string{"K5", "K11"}, message: "which no event explains", change: func(w *scenario) {
			limit(w)
			s := w.send(0, 0, idAt(0, "x"), 5000)
			w.limited(s, "dead", 2)
			w.row(&w.h.Live[w.cfg.Repartition][len(w.h.Live[w.cfg.Repartition])-1], s, s.Timestamp, 1)
			w.commit(0)
		}},
	})
}
