//go:build unix

package main

import "testing"

// Two processes of two workers each, routed routes and a keyed one side by side, copies in the same batch, on other partitions
// and after a pause: every event comes out once, untouched; what the processes counted is what was sent.
func TestRealMainPath(t *testing.T) {
	w := newWorld(t, realRoutes)
	w.createTopics(nil, realInputs...)
	services := []*service{w.start("a"), w.start("b")}
	for _, s := range services {
		s.awaitReady()
	}
	awaitSharing(t, 2*realPartitions, services...)
	all := w.realTraffic()
	for range 6 {
		send(w, 500, all...)
	}
	w.checkTraffic(all)

	total := map[string]int{}
	for _, s := range services {
		judged := 0
		for verdict, n := range s.events() {
			total[verdict] += n
			judged += n
		}
		if judged == 0 {
			t.Errorf("process %s judged nothing: the work is not shared", s.name)
		}
	}
	for i, route := range []string{"signals", "webhooks", "orders"} {
		l := all[i].ledger
		if got, want := total[route+"/unique"], len(l.events); got != want {
			t.Errorf("oncebus_events_total of %s/unique is %d, want %d", route, got, want)
		}
		if got, want := total[route+"/duplicate"], l.records()-len(l.events); got != want {
			t.Errorf("oncebus_events_total of %s/duplicate is %d, want %d", route, got, want)
		}
	}
	for _, s := range services {
		s.stop()
	}
}
