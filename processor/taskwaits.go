package processor

import (
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/app"
	"oncebus/processor/judge"
	"oncebus/processor/restore"
)

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
	s.readManifestNow()
	t.Log.Warn("record of an unknown route, task waits", "route", unknown.Route, "offset", unknown.Offset)
	s.published = s.published.Add(-publishInterval) // the commit publishes the state
}

// awaitSchema pauses a task before a record whose schema was not read, as awaitRoute does before
// one of an unknown route.
func (s *taskSet) awaitSchema(client *kgo.Client, t *task, unread *judge.PendingSchemaError) {
	s.pause(client, t)
	if t.state == running {
		t.to(waiting)
	}
	t.unread = unread
	s.published = s.published.Add(-publishInterval) // the commit publishes the state
}

// schemaRead lets a task go on whose schema was read, between two transactions.
func (s *taskSet) schemaRead(client *kgo.Client, id app.TaskID) {
	t := s.tasks[id]
	switch {
	case t == nil || t.unread == nil: // it was restored meanwhile, and has read on
	case t.state == bypassing:
		t.to(restoring)
		t.bypass = restore.StartBypass(s.ctx, s.source, t.ID, s.wake)
	default:
		s.restoreAgain(client, t)
	}
}
