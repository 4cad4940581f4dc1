package judge

import (
	"oncebus/dedup"
	"oncebus/processor/app"
	"oncebus/processor/wire"
)

// takeStreamTime gives a namespace the stream time that the task had in another cluster, and the time from which
// the rows of its changed window are known. Without that stream time, events that were late in the other cluster
// would be unique here, because the rows that decided on them are gone.
//
// A namespace that already has a stream time keeps it, whatever the record says. So the record cannot make an
// event late that the task would judge, and a repeated record changes nothing.
func (t *Judge) takeStreamTime(j *Judging, ev *event) error {
	id := ev.route.NamespaceID
	if t.streamTime(id) != dedup.NoStreamTime {
		return nil
	}
	s, err := wire.ReadStreamTime(ev.rec, ev.envelope)
	if err != nil {
		return wire.Unreadable(ev.rec, err)
	}
	if s.Changed {
		t.Open.AddKnown(wire.KnownSince{NamespaceID: id, Since: s.Since, LateBefore: s.LateBefore})
	}
	return t.moveStreamTime(j.Emitter, ev.route, s.At)
}

// moveStreamTime sets the stream time of a route's namespace. Before that it answers the waiting requests of
// claims that the new stream time evicts.
func (t *Judge) moveStreamTime(e *Emitter, route *app.Route, next int64) error {
	if err := t.answerEvicted(e, route, next); err != nil {
		return err
	}
	t.Open.StreamTimes.At[route.NamespaceID], t.Open.StreamTimes.Has[route.NamespaceID] = next, true
	e.countEnded(route, t.OpenCounts.Advance(route.NamespaceID, next))
	return nil
}
