package oracle

import (
	"cmp"
	"fmt"
	"slices"
)

// A Set is a numbered route set of a run whose windows changed. It has the windows of the set's namespaces. A
// namespace that a set leaves out keeps the window that it had before.
type Set struct {
	Number  int64
	Windows []NamespaceWindow
}

// A NamespaceWindow is the window and the grace of a namespace, in ms.
type NamespaceWindow struct {
	NamespaceID   uint8
	Window, Grace int64
}

// spans has the windows with which a task judges, as of the task's newest checkpoint.
type spans struct {
	set   int64
	of    map[uint8]NamespaceWindow
	known map[uint8]knownSince // namespaces whose window was changed, while that change still has an effect
}

// windowOf returns the window and the grace by which a namespace is judged: the values in the route set or, in
// a run with a single route set, the values of the route.
func (s *spans) windowOf(namespaceID uint8, window, grace int64) (int64, int64) {
	if w, ok := s.of[namespaceID]; ok {
		return w.Window, w.Grace
	}
	return window, grace
}

// adopt changes to another route set. Only the rows that the previous windows have retained are known, and
// events that are late under the previous windows stay late.
func (f *fold) adopt(sets []Set, number int64) {
	i := slices.IndexFunc(sets, func(s Set) bool { return s.Number == number })
	if i < 0 || number == f.spans.set {
		return
	}
	after := map[uint8]NamespaceWindow{}
	for id, w := range f.spans.of {
		after[id] = w
	}
	for _, next := range sets[i].Windows {
		id := next.NamespaceID
		before, judged := f.spans.of[id]
		if f.spans.set == 0 {
			before, judged = windowIn(sets, 1, id)
		}
		if after[id] = next; !judged || before == next || !f.seen[id] {
			continue
		}
		now := f.times[id]
		entry := knownSince{id, add(now, -rowRetention(before.Window, before.Grace)), add(now, -add(before.Window, before.Grace))}
		if was, ok := f.spans.known[id]; ok {
			entry.since, entry.lateBefore = max(entry.since, was.since), max(entry.lateBefore, was.lateBefore)
		}
		if f.spans.known == nil {
			f.spans.known = map[uint8]knownSince{}
		}
		f.spans.known[id] = entry
	}
	f.spans.set, f.spans.of = number, after
	f.dropWhole()
}

// windowIn returns the window of a namespace in a route set. A task that judged before the app had route sets
// used the routes from which set 1 was made.
func windowIn(sets []Set, number int64, namespaceID uint8) (NamespaceWindow, bool) {
	for _, s := range sets {
		for _, w := range s.Windows {
			if s.Number == number && w.NamespaceID == namespaceID {
				return w, true
			}
		}
	}
	return NamespaceWindow{}, false
}

// lateness returns why an event is late by its time alone; "" if it is not late. It may be behind stream time,
// or behind the time that its own source has reached.
func (f *fold) lateness(e *envelope, namespaceID uint8, window, grace int64) string {
	window, grace = f.spans.windowOf(namespaceID, window, grace)
	time, last, running := e.time, f.times[namespaceID], f.seen[namespaceID]
	if k, ok := f.spans.known[namespaceID]; ok && time < k.lateBefore {
		return fmt.Sprintf("event time %d cannot be judged: the window has changed to %v, and its rows are complete for events from %d on", time, ms(window), k.lateBefore)
	}
	if running && time < add(last, -add(window, grace)) {
		return fmt.Sprintf("event time %d cannot be judged: stream time is %d, window %v, grace %v", time, last, ms(window), ms(grace))
	}
	if front := f.sources[namespaceID].front(e.source()); front != never && time < add(front, -add(window, grace)) {
		return fmt.Sprintf("event time %d cannot be judged: its source had come to %d, window %v, grace %v", time, front, ms(window), ms(grace))
	}
	return ""
}

// absent reports whether a row counts as absent at a stream time, whether or not it is stored.
func (f *fold) absent(prior *row, window, grace, last int64, running bool) bool {
	if k, ok := f.spans.known[prior.namespaceID]; ok && prior.first < k.since {
		return true
	}
	return running && prior.first < add(last, -rowRetention(window, grace))
}

// dropWhole drops the changes of windows that no longer have an effect at the stream times of the fold.
func (f *fold) dropWhole() {
	for id, k := range f.spans.known {
		w, now := f.spans.of[id], f.times[id]
		if k.since <= add(now, -rowRetention(w.Window, w.Grace)) && k.lateBefore <= add(now, -add(w.Window, w.Grace)) {
			delete(f.spans.known, id)
		}
	}
}

// windows compares the changed windows in a checkpoint with the changed windows of the fold (K5).
func (c *check) windows(t *task, r *Record, cp *checkpoint) {
	if len(c.cfg.Sets) == 0 {
		return
	}
	t.fold.dropWhole()
	var want []knownSince
	for _, k := range t.fold.spans.known {
		want = append(want, k)
	}
	slices.SortFunc(want, func(a, b knownSince) int { return cmp.Compare(a.namespaceID, b.namespaceID) })
	if !slices.Equal(want, cp.known) {
		c.add("K5", "%s: checkpoint with sequence %d of set %d has the changed windows %v, want %v", at(r), cp.sequence, cp.set, cp.known, want)
	}
}

// ofSet returns the window and the grace of a namespace as of a route set: they come from the newest route set,
// up to this one, that has the namespace.
func (c *check) ofSet(set int64, namespaceID uint8, window, grace int64) (int64, int64) {
	newest := int64(0)
	for _, s := range c.cfg.Sets {
		for _, w := range s.Windows {
			if w.NamespaceID == namespaceID && s.Number <= set && s.Number > newest {
				newest, window, grace = s.Number, w.Window, w.Grace
			}
		}
	}
	return window, grace
}

// horizonOf returns the first seen time below which rows of a namespace may be missing, as of a checkpoint.
func (c *check) horizonOf(cp *checkpoint, namespaceID uint8, window, grace int64) int64 {
	window, grace = c.ofSet(cp.set, namespaceID, window, grace)
	time := add(cp.times[namespaceID], -rowRetention(window, grace))
	for _, k := range cp.known {
		if k.namespaceID == namespaceID {
			time = max(time, k.since)
		}
	}
	return time
}

// rowRetention returns how far behind stream time a row still counts, in ms.
func rowRetention(window, grace int64) int64 { return add(add(window, window), grace) }
