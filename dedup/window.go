package dedup

import "math"

// NoStreamTime is the stream time of a task that has seen no event of the
// namespace yet: nothing is late against it and every row counts as held.
const NoStreamTime int64 = math.MinInt64

// Window is a route's rule of time. All values are milliseconds of event time.
//
// A row first seen at f stands for the events in [f-Size, f+Size], both ends
// included. After it an event is AfterWindow and re-anchors the row; before it one
// row per key cannot tell whether an older first copy was re-anchored away, so
// the event is Late.
type Window struct {
	Size  int64 // how far a copy may be from the first sighting
	Grace int64 // how far beyond Size an event may lie behind stream time
	Skew  int64 // how far beyond the broker's present an event may lie
	// ClampFuture sets an event beyond present+Skew to present+Skew; without
	// it such an event is Invalid.
	ClampFuture bool
}

// Retention is how far behind stream time a row counts as held. An event may be
// judged down to Size+Grace behind stream time and its first copy may lie one
// Size further back; rows older than that can decide nothing but AfterWindow.
func (w Window) Retention() int64 { return saturate(saturate(w.Size, w.Size), w.Grace) }

// Covers tells whether t is a copy's time for a row first seen at first.
func (w Window) Covers(first, t int64) bool {
	return t >= saturate(first, -w.Size) && t <= saturate(first, w.Size)
}

// Late tells whether an event at t is too old to be judged: its row may be gone.
func (w Window) Late(t, streamTime int64) bool {
	return streamTime != NoStreamTime && t < saturate(streamTime, -saturate(w.Size, w.Grace))
}

// Held tells whether a row first seen at first still counts. Rows for which it
// is false are treated as absent even where they are still stored, so that
// removing them never changes a verdict.
func (w Window) Held(first, streamTime int64) bool {
	return first >= w.Horizon(streamTime)
}

// Horizon is the first sighting from which on rows count as held.
func (w Window) Horizon(streamTime int64) int64 {
	if streamTime == NoStreamTime {
		return math.MinInt64
	}
	return saturate(streamTime, -w.Retention())
}

// Over tells whether the window of a row first seen at first is over at a stream
// time: from now on only events that come late are its copies.
func (w Window) Over(first, streamTime int64) bool {
	return streamTime != NoStreamTime && streamTime > saturate(first, w.Size)
}

// Stands tells whether a stored row still speaks for its key: held, and not
// freed.
func (w Window) Stands(r *Row, streamTime int64) bool {
	return r.Status != Freed && w.Held(r.First, streamTime)
}

// Admit judges an event time before any look-up. streamTime is the namespace's
// stream time before this event (NoStreamTime for none), present the time the
// broker observed, in Unix milliseconds. It returns Unique where the event goes
// on to Decide, Late, or Invalid for the far future; and the event time, which
// differs from t only where the far future is clamped.
func (w Window) Admit(t, streamTime, present int64) (Verdict, int64) {
	if limit := saturate(present, w.Skew); t > limit {
		if !w.ClampFuture {
			return Invalid, t
		}
		t = limit
	}
	if w.Late(t, streamTime) {
		return Late, t
	}
	return Unique, t
}

// NextStreamTime is the stream time after an admitted event at t. It never goes
// back.
func NextStreamTime(streamTime, t int64) int64 { return max(streamTime, t) }

// saturate adds without wrapping around: a verdict at the ends of int64 must
// not flip its sign.
func saturate(a, b int64) int64 {
	sum := a + b
	switch {
	case a > 0 && b > 0 && sum < 0:
		return math.MaxInt64
	case a < 0 && b < 0 && sum >= 0:
		return math.MinInt64
	}
	return sum
}
