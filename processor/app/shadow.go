package app

import (
	"math"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/wire"
)

// addShadow adds the route of a route's shadow, which has a namespace of its own. No input event gets this
// route: only the tasks of the repartition topic send records to it.
func (rt *App) addShadow(r *rules.Route) {
	if r.Shadow == nil {
		return
	}
	s := *r.Shadow.Route
	s.Index = len(rt.Routes)
	rt.addRoute(&s)
	rt.ByName[r.Name].Shadow = rt.ByName[s.Name]
}

// addWireNames adds the names that routes of older sets have in envelopes. A record with such a name has a key
// of an older rule; its task derives the key again by the route in force.
func (rt *App) addWireNames(sets *Sets) {
	for _, set := range sets.olderThan(rt.Set) {
		for _, r := range set.routes.Routes {
			if _, has := rt.ByName[r.WireName()]; !has {
				rt.ByName[r.WireName()] = rt.ByName[r.Name]
			}
		}
	}
}

// IsShadow reports whether the route belongs to a shadow, in force or of an older set.
func (r *Route) IsShadow() bool { return r.ShadowOf() != "" }

// HasShadows reports whether a route in force has a shadow.
func (rt *App) HasShadows() bool {
	for _, r := range rt.Routes {
		if r.Shadow != nil {
			return true
		}
	}
	return false
}

// HasPromoted reports whether a route in force has a key rule that was a shadow before.
func (rt *App) HasPromoted() bool {
	for _, r := range rt.Routes {
		if string(r.WireName) != r.Name {
			return true
		}
	}
	return false
}

// shadowsUnder returns the shadow counts of a checkpoint once its task judges by the set of the app. The counts
// of shadows that are no longer in force end. The counts of a new shadow begin at the latest event time of its
// route: the task has judged no later event of the route so far.
func (rt *App) shadowsUnder(c *wire.Checkpoint) (all []wire.ShadowCounts) {
	for _, r := range rt.Routes {
		if r.Shadow == nil {
			continue
		}
		if known := c.ShadowOf(r.Shadow.NamespaceID); known != nil {
			all = append(all, *known)
			continue
		}
		begin, ok := c.Latest(r.NamespaceID)
		if !ok {
			begin = dedup.NoStreamTime
		}
		all = append(all, wire.ShadowCounts{NamespaceID: r.Shadow.NamespaceID, Begin: begin})
	}
	return all
}

// GoOver changes an open checkpoint to the set of the app, which is newer than the checkpoint's. If the window
// of a namespace changes, GoOver stores in the checkpoint from which time on the namespace's rows are complete.
func (rt *App) GoOver(c *wire.Checkpoint) {
	known, before := rt.KnownUnder(c, rt.Set), c.Set
	c.Shadows = rt.shadowsUnder(c)
	c.Known, c.Set = known, rt.Set
	rt.addPromoted(c, before)
}

// Promoted is a shadow whose key rule a route set put in force.
type Promoted struct {
	Namespace string `json:"namespace"`
	// LateBefore is the event time, in ms, before which an event is late: it may have the same new key as an
	// event that was emitted before the shadow began.
	LateBefore int64 `json:"late_before"`
}

// addPromoted stores in a checkpoint, for the key rule of each shadow that was promoted after the set since, the
// time before which events are late.
func (rt *App) addPromoted(c *wire.Checkpoint, since int64) {
	for n := range rt.Set - since {
		set := rt.Manifest.sets.all[since+1+n]
		if set == nil {
			continue
		}
		for _, p := range set.Promoted {
			c.AddKnown(wire.KnownSince{NamespaceID: rt.Manifest.NamespaceID(p.Namespace), Since: math.MinInt64, LateBefore: p.LateBefore})
		}
	}
}
