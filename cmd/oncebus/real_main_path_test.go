//go:build unix

package main_test

import "testing"

// TestRealMainPath: two processes of two workers, routes with and without a repartition topic, duplicates in the same batch, on other
// partitions and after a pause. Every event is emitted once and unchanged, and the metrics count every record.
func TestRealMainPath(t *testing.T) {
	t.Parallel()
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

	want := map[string]int{}
	for i, route := range []string{"signals", "webhooks", "orders"} {
		l := all[i].ledger
		want[route+"/unique"], want[route+"/duplicate"] = len(l.events), l.records()-len(l.events)
	}
	checkEvents(t, want, services...)
	for _, s := range services {
		judged := 0
		for _, n := range s.events() {
			judged += n
		}
		if judged == 0 {
			t.Errorf("process %s judged no event: the tasks are not shared", s.Name)
		}
	}
	for _, s := range services {
		s.stop()
	}
}
