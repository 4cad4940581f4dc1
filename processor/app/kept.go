package app

import (
	"slices"

	"oncebus/dedup/rules"
)

// Kept returns the routes by whose rules rows are kept: Routes, and one more route for each namespace whose key
// rule a promotion replaced. The rows of such a namespace stay for a while, but its rule judges no event and has
// no name of its own.
func (rt *App) Kept() []*Route {
	if len(rt.former) == 0 {
		return rt.Routes
	}
	return slices.Concat(rt.Routes, rt.former)
}

// addKept computes until when the rows of namespaces without a route in force can decide an event. It also adds
// the former key rules that a promotion replaced, because the namespaces of these rules have no other route.
func (rt *App) addKept() {
	for id := range rt.Manifest.Namespaces {
		last, at := rt.Manifest.sets.lastOf(rt.Manifest.Namespaces[id].Name)
		if last == nil || at == 0 {
			continue
		}
		rt.RetiredUntil[uint8(id)] = at + last.Span().Retention()
		named := rt.ByName[last.Name] // a promotion keeps the name
		if len(rt.RoutesOf[uint8(id)]) > 0 || named == nil {
			continue
		}
		former := *last
		former.Index = named.Index // its counts are shown under the route that has the name now
		info := rt.numbered(&former)
		info.Retired = true
		rt.former = append(rt.former, info)
	}
}

// lastOf returns the route of a namespace in the newest set that has such a route. retiredAt is the broker time,
// in Unix ms, at which the set after that one was stored: since then no event is judged in the namespace. It is
// 0 if the route is in force.
func (s *Sets) lastOf(namespace string) (last *rules.Route, retiredAt int64) {
	if s == nil {
		return nil, 0
	}
	for _, set := range s.olderThan(s.inForce + 1) {
		for _, r := range withShadows(set.routes) {
			if r.Namespace == namespace {
				return r, retiredAt
			}
		}
		retiredAt = max(set.storedAt, set.At.UnixMilli())
	}
	return nil, 0
}
