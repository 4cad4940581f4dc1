package app

import (
	"fmt"
	"slices"
	"time"

	"oncebus/dedup"
	"oncebus/processor/wire"
)

// HeldTime says that a source keeps the stream time of a namespace back: rows are kept, and no
// event is late. Its JSON names are an interface.
type HeldTime struct {
	Namespace string   `json:"namespace"`
	Routes    []string `json:"routes"` // that share the namespace
	// Source is the input partition that has come least far, as topic/partition. It is the topic
	// while no router has said how many partitions it has.
	Source string `json:"source"`
	// BehindMS is how far, in ms of event time, the newest event is ahead of stream time. While
	// there is no stream time it is how far it is ahead of the oldest stored key.
	BehindMS int64 `json:"behind_ms"`
	// Since is the broker time since when it is ahead by more than the grace; zero if it is not,
	// or if that is not known.
	Since time.Time `json:"since,omitzero"`
	// StreamTime is in Unix ms; 0 for none.
	StreamTime int64 `json:"-"`

	grace int64
}

// shownFrom is from what distance on stream time is shown as held, in ms. In live traffic it is
// some seconds behind, without events half a minute.
const shownFrom = 60_000

// Shows reports whether stream time is behind by more than the grace of the routes, and than it is
// in live traffic.
func (h *HeldTime) Shows() bool { return h.BehindMS > max(h.grace, shownFrom) }

// Text says it in one line.
func (h *HeldTime) Text() string {
	text := fmt.Sprintf("%s keeps stream time of %s back, by %v", h.Source, h.Namespace, (time.Duration(h.BehindMS) * time.Millisecond).Round(time.Second))
	if !h.Since.IsZero() {
		text += " since " + h.Since.Local().Format(time.DateTime)
	}
	return text
}

// AddHeldTime adds what keeps a namespace back to those of all namespaces, unless the one that is there
// is as far behind.
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

// HeldTimes returns, for each namespace of routes with sources, which one keeps its stream time back
// at a checkpoint. One that is up to date has no source, and is behind by 0.
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

// newHeldTime returns what keeps stream time from the highest event time. from is stream time, or
// else the time of the oldest key; NoStreamTime if there is neither.
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

// graceOf returns the longest grace of the routes in force of a namespace, in ms.
func (rt *App) graceOf(namespaceID uint8) (longest int64) {
	for _, r := range rt.Routes {
		if r.NamespaceID == namespaceID && !r.Retired {
			longest = max(longest, r.Span.Grace)
		}
	}
	return longest
}

// oldest returns the first time of the oldest key of a namespace; NoStreamTime without keys.
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
