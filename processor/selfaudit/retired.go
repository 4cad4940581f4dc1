package selfaudit

import (
	"slices"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup/rules"
	"oncebus/processor/wire"
)

// A former is an earlier route set with retired routes, which the route set in force no longer has. Records of
// these routes may still be emitted.
type former struct {
	deriver *rules.Deriver
	routes  []*rules.Route
}

// formers returns the route sets that have retired routes.
func (w *worker) formers() (all []former) {
	for number := w.app.Set - 1; number > 0; number-- {
		set, _ := w.app.SetAt(number)
		if set == nil {
			continue
		}
		var routes []*rules.Route
		for _, r := range set.Routes {
			if retired := w.app.ByName[r.Name]; retired != nil && retired.Retired && retired.Output == r.Output {
				routes = append(routes, r)
			}
		}
		if len(routes) > 0 {
			all = append(all, former{w.cfg.NewDeriver(set), routes})
		}
	}
	return all
}

// ofRetired reports whether a record names a retired route.
func (w *worker) ofRetired(rec *kgo.Record) bool {
	name, says := own(rec, wire.HeaderRoute)
	route := w.app.ByName[name]
	return says && route != nil && route.Retired
}

// hasKeyOfRetired reports whether a retired route that writes to this output derives a key from the record.
func (w *worker) hasKeyOfRetired(rec *kgo.Record) bool {
	if !w.readFormers {
		w.former, w.readFormers = w.formers(), true
	}
	in := wire.InputOf(rec)
	return slices.ContainsFunc(w.former, func(f former) bool {
		return slices.ContainsFunc(f.routes, func(r *rules.Route) bool {
			return r.Output == rec.Topic && slices.ContainsFunc(r.Topics, func(topic string) bool {
				in.Topic = topic
				d := w.by(f.deriver, &in)
				return d.Finding == rules.Keyed && d.Route == r
			})
		})
	})
}
