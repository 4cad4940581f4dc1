package dedup

import "math"

// NoStreamTime is the stream time of a namespace before its first event. At this stream time every event is
// in time and every row is retained.
const NoStreamTime int64 = math.MinInt64

// Window is a route's rule of time. All values are milliseconds of event time.
//
// A row first seen at f covers the events in [f-Size, f+Size], both ends included. An event after that range is
// AfterWindow, and its row replaces the row. On an event before that range, a row of an earlier window decides,
// see DecideBelow.
type Window struct {
	Size  int64 // how far, before or after, a duplicate may be from the first event
	Grace int64 // how far beyond Size an event may lie behind stream time
	Skew  int64 // how far an event time may be after broker time
	// ClampFuture sets an event that is after broker time + Skew to that time. Without ClampFuture such an
	// event is Invalid.
	ClampFuture bool
	// Changed reports that Size or Grace had other values before. If Changed is set, rows first seen before
	// Since may be missing, so all of them count as absent, and every event before LateBefore is late.
	Changed           bool
	Since, LateBefore int64
}

// Retention is how far behind stream time a row is retained: 2*Size + Grace. An event that is not late is at
// most Size+Grace behind stream time, and the first event of its key may be Size older than the event. A row
// older than that could only change the verdict Unique to AfterWindow.
func (w Window) Retention() int64 { return saturate(saturate(w.Size, w.Size), w.Grace) }

// Covers reports whether an event at t is a duplicate of an event first seen at first.
func (w Window) Covers(first, t int64) bool {
	return t >= saturate(first, -w.Size) && t <= saturate(first, w.Size)
}

// Late reports whether an event at t is too old to judge: the row that decides on it may be evicted.
func (w Window) Late(t, streamTime int64) bool {
	return w.Changed && t < w.LateBefore || streamTime != NoStreamTime && t < w.earliest(streamTime)
}

// earliest is the event time before which events are late at a stream time.
func (w Window) earliest(streamTime int64) int64 {
	return saturate(streamTime, -saturate(w.Size, w.Grace))
}

// MakesLate returns the lowest stream time at which every event before t is late.
func (w Window) MakesLate(t int64) int64 { return saturate(t, saturate(w.Size, w.Grace)) }

// Retains reports whether a row first seen at first is retained. Every other row counts as absent, whether or
// not it is still stored, so that the moment of eviction never changes a verdict.
func (w Window) Retains(first, streamTime int64) bool {
	return first >= w.Horizon(streamTime)
}

// Horizon is the earliest first seen time of a retained row.
func (w Window) Horizon(streamTime int64) int64 {
	horizon := int64(math.MinInt64)
	if streamTime != NoStreamTime {
		horizon = saturate(streamTime, -w.Retention())
	}
	if w.Changed {
		return max(horizon, w.Since)
	}
	return horizon
}

// Over reports whether the window of a row first seen at first is over at a stream time. After that, only an
// event that is behind stream time can be a duplicate of the row.
func (w Window) Over(first, streamTime int64) bool {
	return streamTime != NoStreamTime && streamTime > saturate(first, w.Size)
}

// Decides reports whether a stored row decides on its key: it is retained and not freed.
func (w Window) Decides(r *Row, streamTime int64) bool {
	return r.Status != Freed && w.Retains(r.First, streamTime)
}

// Admit checks an event time before the task looks up a row. streamTime is the stream time of the namespace
// before this event. brokerTime is when the broker received the event, in Unix milliseconds. Admit returns
// Unique if Decide has to decide, else Late or Invalid. The second result is the event time, which
// ClampFuture may have lowered.
func (w Window) Admit(t, streamTime, brokerTime int64) (Verdict, int64) {
	if limit := saturate(brokerTime, w.Skew); t > limit {
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

// NextStreamTime returns the stream time after an event with time t that Admit admitted at time admitted. It
// never decreases. An event whose time was clamped does not move stream time, because the clock of its sender
// is wrong, and stream time by that clock would make the events of other senders late.
func NextStreamTime(streamTime, t, admitted int64) int64 {
	if admitted != t {
		return streamTime
	}
	return max(streamTime, t)
}

// saturate adds two numbers and stops at the ends of int64, because an overflow would reverse a verdict.
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
