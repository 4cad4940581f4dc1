package app

import (
	"fmt"
	"slices"
	"time"

	"oncebus/dedup"
	"oncebus/processor/wire"
)

// HeldTime says that a source keeps the stream time of a namespace back. Until the source is read further, the
// app keeps rows longer, and no event becomes late. The JSON names are an interface: programs read them.
type HeldTime struct {
	Namespace string   `json:"namespace"`
	Routes    []string `json:"routes"` // the routes that share the namespace
	// Source is the input partition whose stream time is furthest behind, as topic/partition. It is only the
	// name of the topic until a router has said how many partitions the topic has.
	Source string `json:"source"`
	// BehindMS is how far the newest event is ahead of stream time, in ms of event time. If there is no stream
	// time yet, it is how far the newest event is ahead of the oldest stored key.
	BehindMS int64 `json:"behind_ms"`
	// Since is the broker time from which on the newest event has been ahead by more than the grace. It is zero
	// if the event is not ahead by so much, or if the time is unknown.
	Since time.Time `json:"since,omitzero"`
	// StreamTime is the namespace's stream time in Unix ms; 0 if there is none.
	StreamTime int64 `json:"-"`

	grace int64
}

// shownFrom is the distance in ms from which on stream time is shown as held back. In live traffic stream time
// is some seconds behind, and without events half a minute.
const shownFrom = 60_000

// Shows reports whether stream time is further behind than the grace of the routes, and further than it is in
// live traffic.
func (h *HeldTime) Shows() bool { return h.BehindMS > max(h.grace, shownFrom) }

// Text returns the HeldTime as one line for people.
func (h *HeldTime) Text() string {
	text := fmt.Sprintf("%s keeps stream time of %s back, by %v", h.Source, h.Namespace, (time.Duration(h.BehindMS) * time.Millisecond).Round(time.Second))
	if !h.Since.IsZero() {
		text += " since " + h.Since.Local().Format(time.DateTime)
	}
	return text
}

// AddHeldTime adds h to the list, which has one entry for each namespace. If the namespace has an entry
// already, the one that is further behind stays.
func AddHeldTime(all []HeldTime, h HeldTime) []HeldTime {
	i := slices.IndexFunc(all, func(o HeldTime) bool { return o.Namespace == h.Namespace })
	switch {
	case i < 0:
		return append(all, h)
	case h.BehindMS > all[i].BehindMS:
		all[i] = h
	}
	return all
}

// HeldTimes returns an entry for each namespace of routes with sources: which source keeps the namespace's
// stream time back, according to a checkpoint. The entry of a namespace that is up to date has no source and is
// behind by 0.
func (rt *App) HeldTimes(at *wire.Checkpoint, counts *Counts) (all []HeldTime) {
	for i := range at.Sources {
		s := &at.Sources[i]
		if _, inForce := rt.Sources[s.NamespaceID]; !inForce {
			continue
		}
		from := at.StreamTimes.Of(s.NamespaceID)
		if from == dedup.NoStreamTime {
			from = counts.oldest(s.NamespaceID)
		}
		held := newHeldTime(s, from, rt.graceOf(s.NamespaceID), rt.TopicName)
		held.StreamTime = at.StreamTimes.At[s.NamespaceID]
		held.Namespace, held.Routes = rt.Namespaces[s.NamespaceID], rt.RoutesOf[s.NamespaceID]
		all = append(all, held)
	}
	return all
}

// newHeldTime returns which source keeps stream time behind the highest event time. from is stream time. If
// there is no stream time, from is the time of the oldest key; it is NoStreamTime if there is no key, either.
func newHeldTime(s *wire.Sources, from, grace int64, topicName func(uint16) string) HeldTime {
	held := HeldTime{grace: grace}
	of, _, behind := s.LeastSource()
	if !behind {
		return held
	}
	held.Source = topicName(of.Topic)
	if of.Partition != wire.EveryPartition {
		held.Source = fmt.Sprintf("%s/%d", held.Source, of.Partition)
	}
	if from == dedup.NoStreamTime {
		return held
	}
	held.BehindMS = max(0, s.Highest-from)
	if since, known := s.PassedSince(from + grace); known && held.Shows() {
		held.Since = time.UnixMilli(since).UTC()
	}
	return held
}

// graceOf returns the longest grace, in ms, of the routes in force of a namespace.
func (rt *App) graceOf(namespaceID uint8) (longest int64) {
	for _, r := range rt.Routes {
		if r.NamespaceID == namespaceID && !r.Retired {
			longest = max(longest, r.Span.Grace)
		}
	}
	return longest
}

// oldest returns the first seen time of the oldest key of a namespace; NoStreamTime without keys.
func (c *Counts) oldest(namespaceID uint8) int64 {
	oldest := dedup.NoStreamTime
	for _, one := range c.countersOf(namespaceID) {
		if !ofRows(one.status) {
			continue
		}
		if first, ok := one.Oldest(); ok && (oldest == dedup.NoStreamTime || first < oldest) {
			oldest = first
		}
	}
	return oldest
}
