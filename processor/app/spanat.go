package app

import (
	"oncebus/dedup"
	"oncebus/dedup/rules"
)

// SpanAt returns the window of a namespace id as of a route set.
func (rt *App) SpanAt(set int64, namespaceID uint8) (dedup.Window, bool) {
	if set == rt.Set {
		for _, r := range rt.Routes {
			if r.NamespaceID == namespaceID {
				return r.Span, true
			}
		}
	}
	w, ok := rt.FormerSpans[set][namespaceID]
	return w, ok
}

// OfflineSets is Offline at level 2, with one or more route sets. The last one is in force.
func OfflineSets(id string, partitions int32, sets ...*rules.Routes) (rt *App, err error) {
	var m *Manifest
	former := map[int64]map[uint8]dedup.Window{}
	for n, routes := range sets {
		if rt, err = Offline(id, partitions, m, routes); err != nil {
			return nil, err
		}
		m = rt.Manifest
		spans := map[uint8]dedup.Window{}
		for _, r := range rt.Routes {
			spans[r.NamespaceID] = r.Span
		}
		former[int64(n)+1] = spans
	}
	rt.Set, rt.FormerSpans = int64(len(sets)), former
	return rt, nil
}
