package app

import (
	"math"

	"oncebus/dedup"
	"oncebus/processor/wire"
)

// WindowAt returns the window by which a task with a checkpoint judges a namespace id: the window in the
// checkpoint's route set, limited to the times for which the namespace's rows are known to be complete. It
// returns false if the window is unknown, because the namespace has no route, or because the checkpoint's set is
// newer than the process's.
func (rt *App) WindowAt(c *wire.Checkpoint, namespaceID uint8) (w dedup.Window, ok bool) {
	switch set := rt.setOf(c); {
	case set > rt.Set:
		return w, false
	case set == rt.Set:
		for _, r := range rt.Kept() {
			if r.NamespaceID == namespaceID {
				w, ok = r.Span, true
				break
			}
		}
	default:
		w, ok = rt.SpanAt(set, namespaceID)
	}
	return c.Window(namespaceID, w), ok
}

// setOf returns the route set by which a task with a checkpoint judged. If the task has committed nothing since
// the app's level was raised, it judged by the routes that became set 1.
func (rt *App) setOf(c *wire.Checkpoint) int64 {
	if c.Set == 0 && rt.Set > 0 {
		return 1
	}
	return c.Set
}

// Horizons returns, by namespace id, the first seen time in ms before which a row decides no event any more, as
// of a checkpoint. For a namespace id without a known window no row may be dropped. The windows are those of the
// checkpoint's route set, even if the process has a newer set: the task has not changed over to the newer set
// yet, and may change over to a set with a longer window.
func (rt *App) Horizons(c *wire.Checkpoint) [256]int64 {
	var before [256]int64
	for id := range before {
		before[id] = math.MinInt64
	}
	if rt.setOf(c) != rt.Set {
		for id, has := range c.StreamTimes.Has {
			if w, ok := rt.WindowAt(c, uint8(id)); has && ok {
				before[id] = w.Horizon(c.StreamTimes.At[id])
			}
		}
		return before
	}
	for _, r := range rt.Kept() {
		if id := r.NamespaceID; c.StreamTimes.Has[id] {
			before[id] = c.Window(id, r.Span).Horizon(c.StreamTimes.At[id])
		}
	}
	return before
}

// KnownUnder returns from which times on the rows of namespaces with a changed window are complete, for a task
// that changes over from its checkpoint's route set to a newer one.
func (rt *App) KnownUnder(c *wire.Checkpoint, set int64) (known []wire.KnownSince) {
	for id := range c.StreamTimes.Has {
		namespaceID := uint8(id)
		entry, has := c.KnownOf(namespaceID)
		before, existed := rt.SpanAt(rt.setOf(c), namespaceID)
		if next, exists := rt.SpanAt(set, namespaceID); c.StreamTimes.Has[id] && existed && exists {
			next = c.Window(namespaceID, before).ChangeTo(next, c.StreamTimes.At[id])
			entry = wire.KnownSince{NamespaceID: namespaceID, Since: next.Since, LateBefore: next.LateBefore}
			has = !next.IsWhole(c.StreamTimes.At[id])
		}
		if has {
			known = append(known, entry)
		}
	}
	return known
}
