package dedup

// Known returns the window, limited to the rows that a former window has kept: all rows first seen at since or
// later are stored, and an event before lateBefore is late.
func (w Window) Known(since, lateBefore int64) Window {
	w.Changed, w.Since, w.LateBefore = true, since, lateBefore
	return w
}

// SameRetention reports whether both windows call the same events late and retain the same rows: this is so if
// they have the same size and grace.
func (w Window) SameRetention(other Window) bool {
	return w.Size == other.Size && w.Grace == other.Grace
}

// ChangeTo returns the window next in the form in which it replaces w at a stream time. w may itself be the
// result of a change.
//
//   - Rows: all rows that w retains are stored, so the rows first seen from w's horizon on are known.
//   - Late events: an event that was late under w stays late, because such an event may have been emitted
//     without a row. Every other event finds at least the rows of the smaller of the two windows.
//   - Size: the window of an event grows with event time until it is full (FullFrom). A shorter window is
//     full at once.
//
// Example: at a change from 1 h to 24 h without grace the rows of the last 2 h are known. So from an event
// time 22 h later on, every event is judged by the full 24 h.
//
// If there is no stream time yet, w has not removed any row, so next is returned without limits.
func (w Window) ChangeTo(next Window, streamTime int64) Window {
	next.Changed, next.Since, next.LateBefore = w.Changed, w.Since, w.LateBefore
	if w.SameRetention(next) || streamTime == NoStreamTime {
		return next
	}
	late := w.earliest(streamTime)
	if w.Changed {
		late = max(late, w.LateBefore)
	}
	return next.Known(w.Horizon(streamTime), late)
}

// FullFrom returns the event time in ms from which on every event is judged by the whole window. For a window
// that was never changed, it is the lowest int64.
func (w Window) FullFrom() int64 {
	if !w.Changed {
		return NoStreamTime
	}
	return max(w.LateBefore, saturate(w.Since, w.Size))
}

// IsWhole reports whether, at a stream time and later, the change of the window has no effect any more. Then
// the window is the same as a window that never changed.
func (w Window) IsWhole(streamTime int64) bool {
	return !w.Changed || streamTime != NoStreamTime &&
		w.Since <= saturate(streamTime, -w.Retention()) && w.LateBefore <= w.earliest(streamTime)
}
