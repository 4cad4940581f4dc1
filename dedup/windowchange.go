package dedup

// Known returns the window with the limits of what a former window has left: the rows first seen from since
// on are all there, and an event is late if it is before lateBefore.
func (w Window) Known(since, lateBefore int64) Window {
	w.Changed, w.Since, w.LateBefore = true, since, lateBefore
	return w
}

// SameRetention reports whether both windows call the same events late and retain the same rows: they have
// the same size and grace.
func (w Window) SameRetention(other Window) bool {
	return w.Size == other.Size && w.Grace == other.Grace
}

// ChangeTo returns next as the window that holds from a stream time on, after w. w may itself be a changed
// window.
//
//   - Rows: w has removed none of the rows that it retains, so all rows first seen from its horizon on are
//     known.
//   - Late events: an event that was late under w stays late, because such an event may have been emitted
//     without a row. Every other event finds at least the rows of the smaller of the two windows.
//   - Size: the window of an event grows with event time until it is full (FullFrom). A shorter window is
//     full at once.
//
// Example: at a change from 1 h to 24 h the rows of the last hours are known; only an event 24 h later is
// judged by a full day.
//
// Without a stream time w has not removed any row, so next holds without limits.
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

// FullFrom returns the event time in ms from which on every event is judged by the whole window. It is the
// least int64 for a window that has not changed.
func (w Window) FullFrom() int64 {
	if !w.Changed {
		return NoStreamTime
	}
	return max(w.LateBefore, saturate(w.Since, w.Size))
}

// IsWhole reports whether the change has no effect any more at a stream time or later. Then the window is the
// same as a window that never changed.
func (w Window) IsWhole(streamTime int64) bool {
	return !w.Changed || streamTime != NoStreamTime &&
		w.Since <= saturate(streamTime, -w.Retention()) && w.LateBefore <= w.earliest(streamTime)
}
