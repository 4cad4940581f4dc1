package processor

import (
	"errors"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/app"
	"oncebus/processor/judge"
	"oncebus/processor/restore"
	"oncebus/processor/wire"
)

// await makes a task wait before a record if err says that the task must wait, and returns the offset of that
// record. The route of such a record is unknown, its schema was not read yet, or the record cannot be read.
func (s *taskSet) await(client *kgo.Client, t *task, err error) (at int64, waits bool) {
	if unknown, ok := errors.AsType[*judge.UnknownRouteError](err); ok {
		s.awaitRoute(client, t, unknown)
		return unknown.Offset, true
	}
	if unread, ok := errors.AsType[*judge.PendingSchemaError](err); ok {
		s.awaitSchema(client, t, unread)
		return unread.Offset, true
	}
	if unreadable, ok := errors.AsType[*wire.UnreadableError](err); ok {
		s.awaitSkip(client, t, unreadable)
		return unreadable.Offset, true
	}
	return 0, false
}

// awaitRoute pauses a task before a record of an unknown route. It runs in the open transaction, which has the
// records before that one. A task that bypasses its store stays in its state, but reads no further, either. The
// reason is that its checkpoint says up to which offset all events of a namespace were forwarded, and the
// namespace of this record is not known.
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

// awaitSchema pauses a task before a record whose schema was not read, in the same way as awaitRoute.
func (s *taskSet) awaitSchema(client *kgo.Client, t *task, unread *judge.PendingSchemaError) {
	s.pause(client, t)
	if t.state == running {
		t.to(waiting)
	}
	t.unread = unread
	s.published = s.published.Add(-publishInterval) // the commit publishes the state
}

// schemaRead makes the task of a partition continue when the schema for which the task waits was read. It runs
// between two transactions.
func (s *taskSet) schemaRead(client *kgo.Client, id app.TaskID) {
	if t := s.tasks[id]; t != nil && t.unread != nil { // if not, the task was restored meanwhile, and has read on
		s.readOn(client, t)
	}
}

// readOn makes a task continue that waits before a record: the task restores, or begins its bypass again.
func (s *taskSet) readOn(client *kgo.Client, t *task) {
	if t.state == bypassing {
		t.to(restoring)
		t.bypass = restore.StartBypass(s.ctx, s.source, t.ID, t.Log, s.wake)
		return
	}
	s.restoreAgain(client, t)
}

// awaitSkip pauses a task before a record that cannot be read, in the same way as awaitRoute, until an
// operator decides to skip the record.
func (s *taskSet) awaitSkip(client *kgo.Client, t *task, unreadable *wire.UnreadableError) {
	s.pause(client, t)
	if t.state == running {
		t.to(waiting)
	}
	t.asks = restore.AskAbout(s.ctx, s.source, t.ID, t.Log, unreadable, s.wake)
	s.published = s.published.Add(-publishInterval) // the commit publishes the state
}

// goOnDecided makes those tasks continue for which an operator has decided to skip the record before which the
// task waits.
func (s *taskSet) goOnDecided(client *kgo.Client) (changed bool) {
	for _, t := range s.sorted() {
		if t.asks == nil || !t.asks.Finished() || s.ctx.Err() != nil {
			continue
		}
		t.Skips, t.skipTo = t.asks.Record, t.asks.Record.After
		if t.skipTo > 0 {
			t.Metrics.Skipped.Inc()
		}
		s.readOn(client, t)
		changed = true
	}
	return changed
}
