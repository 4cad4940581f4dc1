package dedup

// Known returns the window with what is known of its rows: those first seen from since on,
// and no late event at or after lateBefore.
func (w Window) Known(since, lateBefore int64) Window {
	w.Changed, w.Since, w.LateBefore = true, since, lateBefore
	return w
}

// SameRetention reports whether both windows judge lateness and retain rows alike: they
// have the same size and grace.
func (w Window) SameRetention(other Window) bool {
	return w.Size == other.Size && w.Grace == other.Grace
}

// ChangeTo returns the window next, as it holds after w at a stream time. w may itself be a
// changed window.
//
// All rows that w retains are there, so they are known from its horizon on. What was late
// stays late: such an event may have been emitted without a row. Every event that is not
// late finds the rows of the smaller window at least. Its window grows with event time,
// until it is full (FullFrom). A shorter window is full at once.
//
// Without a stream time w has removed no row, and nothing is to be known.
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

// FullFrom returns the event time from which on every event is judged by the whole window,
// in ms. It is the least int64 for a window that has not changed.
func (w Window) FullFrom() int64 {
	if !w.Changed {
		return NoStreamTime
	}
	return max(w.LateBefore, saturate(w.Since, w.Size))
}

// IsWhole reports whether its change has no effect at a stream time or later. Then the
// window is the same as one that never changed.
func (w Window) IsWhole(streamTime int64) bool {
	return !w.Changed || streamTime != NoStreamTime &&
		w.Since <= saturate(streamTime, -w.Retention()) && w.LateBefore <= w.earliest(streamTime)
}
