//go:build unix

package main_test

import (
	"strings"
	"testing"

	"oncebus/processor/kafkatest"
)

// useRoutes replaces the routes file of the processes that start from now on.
func (w *world) useRoutes(routes string) {
	w.t.Helper()
	kafkatest.ReplaceFile(w.t, w.routes, []byte(strings.ReplaceAll(routes, "APP", w.app)))
}

// TestRealRollingUpdate adds a routed and a prepartitioned route to two processes, one
// after the other, while events of all routes arrive, and later removes both again. No
// process stops by itself, all are ready in the end, and every event is emitted once.
// Kafka lets a static member keep the topics of its former subscription; the embedded
// broker does not.
func TestRealRollingUpdate(t *testing.T) {
	t.Parallel()
	before, _, _ := strings.Cut(realRoutes, "  - name: webhooks")
	w := newWorld(t, before)
	w.createTopics(nil, realInputs...)
	all := w.realTraffic()
	services := []*service{w.start("a", crashSettings...), w.start("b", crashSettings...)}
	for _, s := range services {
		s.awaitReady()
	}
	awaitSharing(t, realPartitions, services...)
	send(w, 200, all[0])

	w.useRoutes(realRoutes)
	for i, s := range services {
		send(w, 200, all...)
		s.stop()
		services[i] = w.start(s.Name, crashSettings...)
		if i == 0 {
			// Its router sends records of the new routes to tasks of the other process.
			w.taken([]string{w.topic("webhooks.raw")})
		}
	}
	for _, s := range services {
		s.awaitReady()
	}
	w.checkTraffic(all)

	w.useRoutes(before)
	for i, s := range services {
		send(w, 200, all[0])
		s.stop()
		services[i] = w.start(s.Name, crashSettings...)
		services[i].awaitReady()
	}
	for _, s := range services {
		s.awaitReady()
	}
	w.checkTraffic(all)
	for _, s := range services {
		s.stop()
	}
}
