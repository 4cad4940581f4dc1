package oracle

import (
	"fmt"
	"testing"
)

// refusedByBroker adds an event whose record the output's broker refused for good.
func refusedByBroker(w *scenario, reason string) {
	s := w.send(0, 0, idAt(0, "refused"), 5000)
	w.refused(s, 5000, "invalid", "dead", reason)
	w.times[0][1] = max(w.times[0][1], base+5000)
	w.commit(0)
}

func TestRefusedByBroker(t *testing.T) {
	const reason = "refused by topic signals: INVALID_RECORD: This record has failed the validation on the broker and hence been rejected."
	wantNoFinding(t, []plant{{name: "once", change: func(w *scenario) {
		w.h.Refused = map[string]int{"signals": 1}
		refusedByBroker(w, reason)
		s := w.send(0, 1, idAt(0, "refused"), 5001) // it took no row
		w.forwarded(s, "unique", 5001, 5001)
		w.commit(0)
	}}})
	wantFindings(t, []plant{
		{name: "no broker refused it", want: []string{"K2", "K5", "K11"}, message: "was judged unique and never emitted", change: func(w *scenario) {
			refusedByBroker(w, reason)
			w.h.Live["dead"] = w.h.Live["dead"][:len(w.h.Live["dead"])-1]
		}},
		{name: "more dead letters than refused requests", want: []string{"K2"}, message: "2 dead letters say that signals refused them, its brokers refused 1 requests", change: func(w *scenario) {
			w.h.Refused = map[string]int{"signals": 1}
			refusedByBroker(w, reason)
			refusedByBroker(w, reason)
		}},
		{name: "refused and stored", want: []string{"K5", "K11"}, message: "which no event explains", change: func(w *scenario) {
			w.h.Refused = map[string]int{"signals": 1}
			s := w.send(0, 0, idAt(0, "refused"), 5000)
			w.refused(s, 5000, "invalid", "dead", reason)
			w.row(&w.h.Live[w.cfg.Repartition][len(w.h.Live[w.cfg.Repartition])-1], s, base+5000, 1)
			w.commit(0)
		}},
		{name: "refused and emitted", want: []string{"K1"}, message: fmt.Sprintf("one record too many with verdict %q", "unique"), change: func(w *scenario) {
			w.h.Refused = map[string]int{"signals": 1}
			refusedByBroker(w, reason)
			s := w.h.Sent[len(w.h.Sent)-1]
			w.emit(s, "signals", headerRoute, "signals", headerVerdict, "unique", headerKey, keyText(s.ID))
		}},
	})
}
