package app

import (
	"slices"

	"oncebus/dedup/sketch"
	"oncebus/processor/wire"
)

// The counters of senders in one task: sendersMost for each route, fewer where many routes
// count senders, and never fewer than sendersLeast. With names of 64 bytes a checkpoint so has
// at most 330 KB of them for 250 routes. The error of a count is at most the duplicates of the
// route divided by its counters.
const sendersMost, sendersLeast, sendersAll = 128, 16, 2048

// senders counts the duplicates of a task by sender. The counts of the open transaction and
// the committed ones share it: it has both.
type senders struct {
	routes   []*Route         // with a sender, in the order of the file
	sketches []*sketch.Sketch // of these routes
	listed   []sketch.Summary // what summaryOf last returned of them
	at       []int            // by route index: the place in routes, or -1
	// carried are the counts of routes that this process does not have. In a rolling update
	// the task may come from a process with the route, and go to one.
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

// summaryOf returns the committed counts of a route; none for one without a sender.
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

// ListSenders returns the committed counts of each route that counts senders and has any. Two
// calls share the counts of a route without a duplicate in between.
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

// Senders returns the counts for a whole checkpoint, those of the open transaction included.
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

// AppendSenders appends what the open transaction changed, for a partial checkpoint after a
// whole one with Senders.
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

// LoadSenders makes the counts those of a checkpoint. Those of a route that counts no senders
// any more are dropped, as is what is carried beyond the bound of one checkpoint.
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

// commit makes what the open transaction counted final. A task without its state has no
// counts.
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

// discard undoes what the open transaction counted.
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
