package processor

import (
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/judge"
)

// While a rolling update adds or removes a route, a process may own a task with records
// of a route that it does not know. Such a record needs its route: the key, the window
// and the output are the route's. So the task waits before the record: it judges nothing
// more, and is not ready. Its records before that one are committed. Nothing else waits
// and nothing stops. The task continues in a process that knows the route, which is this
// one after its restart, or another one that gets the partition.

// awaitRoute pauses a task before a record of an unknown route. It runs in the open
// transaction, to which the records before that one belong. A bypassing task keeps its
// state: it waits too, because the namespace of the record is not known, and a checkpoint
// says of a whole namespace up to which offset it was forwarded.
func (s *taskSet) awaitRoute(client *kgo.Client, t *task, unknown *judge.UnknownRouteError) {
	s.pause(client, t)
	if t.state == running {
		t.to(waiting)
	}
	t.setUnknown(unknown)
	t.Log.Warn("record of an unknown route, task waits", "route", unknown.Route, "offset", unknown.Offset)
	s.published = s.published.Add(-publishInterval) // the commit publishes the state
}

// setUnknown stores why the task waits; nil if it does not.
func (t *task) setUnknown(unknown *judge.UnknownRouteError) {
	if t.unknown != nil {
		t.metrics.unknownRoutes.WithLabelValues(t.unknown.Route).Dec()
	}
	t.unknown = unknown
	if unknown != nil {
		t.metrics.unknownRoutes.WithLabelValues(unknown.Route).Inc()
	}
}

// judges reports whether the task has a store and a checkpoint: it judges, or waits for a
// route.
func (t *task) judges() bool { return t.state == running || t.state == waiting }
