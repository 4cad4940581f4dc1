package app

import (
	"slices"

	"oncebus/dedup/sketch"
	"oncebus/processor/wire"
)

// The number of senders that a task counts for each route. It is sendersMost, or less if many routes count
// senders, but at least sendersLeast. So the counts take at most 330 KB of a checkpoint, for 250 routes with
// names of 64 bytes. The error of a count is at most the duplicates of the route divided by the number of the
// route's counters.
const sendersMost, sendersLeast, sendersAll = 128, 16, 2048

// senders counts the duplicates of a task by sender. One value has both the committed counts
// and those with the open transaction, because a sketch.Sketch has both.
type senders struct {
	routes   []*Route         // routes with a sender, in the order of the file
	sketches []*sketch.Sketch // one for each of routes
	listed   []sketch.Summary // what summaryOf last returned for each of routes
	at       []int            // by route index: the route's index in routes, or -1
	// carried are the counts of routes that this process does not have. During a rolling update the task may
	// come from a process that has the route, and move on to another such process. So this process must keep the
	// counts.
	carried []wire.RouteSenders
}

func newSenders(rt *App) *senders {
	s := &senders{at: make([]int, len(rt.Routes))}
	for i, route := range rt.Routes {
		s.at[i] = -1
		if hasSender(route.Route) {
			s.at[i] = len(s.routes)
			s.routes = append(s.routes, route)
		}
	}
	for range s.routes {
		s.listed = append(s.listed, sketch.Summary{})
		s.sketches = append(s.sketches, sketch.New(min(sendersMost, max(sendersLeast, sendersAll/len(s.routes)))))
	}
	return s
}

// summaryOf returns the committed counts of a route; empty for a route without sender.
func (s *senders) summaryOf(route *Route) sketch.Summary {
	at := s.at[route.Index]
	if at < 0 {
		return sketch.Summary{}
	}
	if s.listed[at].Total != s.sketches[at].Total() {
		s.listed[at] = s.sketches[at].Summary()
	}
	return s.listed[at]
}

// ListSenders returns the committed counts of each route that counts senders and has any. If a route has had no
// duplicate between two calls, both results share its counts: the caller must not change them.
func (c *Counts) ListSenders() []wire.RouteSenders {
	if c.senders == nil {
		return nil
	}
	var all []wire.RouteSenders
	for _, route := range c.senders.routes {
		if summary := c.senders.summaryOf(route); summary.Total > 0 {
			all = append(all, wire.RouteSenders{Route: route.Name, Summary: summary})
		}
	}
	return all
}

// CountSender counts a duplicate of a route by its sender.
func (c *Counts) CountSender(route *Route, name []byte) {
	c.senders.sketches[c.senders.at[route.Index]].Offer(name)
}

// Senders returns the counts for a full checkpoint, including the open transaction.
func (c *Counts) Senders() []wire.RouteSenders {
	if c.senders == nil {
		return nil
	}
	all := make([]wire.RouteSenders, 0, len(c.senders.routes)+len(c.senders.carried))
	for i, route := range c.senders.routes {
		all = append(all, wire.RouteSenders{Route: route.Name, Summary: c.senders.sketches[i].Open()})
	}
	return append(all, c.senders.carried...)
}

// AppendSenders appends what the open transaction has changed, for a partial checkpoint that follows a full one
// with the result of Senders.
func (c *Counts) AppendSenders(dst []byte) []byte {
	if c.senders == nil {
		return dst
	}
	for i, one := range c.senders.sketches {
		if one.IsChanged() {
			dst = one.AppendChanges(wire.AppendSenderRoute(dst, i))
		}
	}
	return dst
}

// LoadSenders replaces the counts by those of a checkpoint. It drops the counts of a route that no longer
// counts senders, and carried counts beyond the bound of one checkpoint (sendersAll).
func (c *Counts) LoadSenders(rt *App, all []wire.RouteSenders) {
	c.senders.carried = nil
	left := sendersAll
	for i := range all {
		route := rt.ByName[all[i].Route]
		switch {
		case route == nil && len(all[i].Counters) <= left:
			left -= len(all[i].Counters)
			c.senders.carried = append(c.senders.carried, all[i])
		case route != nil && hasSender(route.Route):
			c.senders.sketches[c.senders.at[route.Index]].Load(all[i].Summary)
		}
	}
	c.senders.carried = slices.Clip(c.senders.carried)
}

// commit makes final what the open transaction has counted. s is nil for a task without state.
func (s *senders) commit() {
	if s == nil {
		return
	}
	for _, one := range s.sketches {
		if one.IsChanged() {
			one.Commit()
		}
	}
}

// discard undoes what the open transaction has counted.
func (s *senders) discard() {
	if s == nil {
		return
	}
	for _, one := range s.sketches {
		if one.IsChanged() {
			one.Discard()
		}
	}
}
