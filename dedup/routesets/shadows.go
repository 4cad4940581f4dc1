package routesets

import (
	"strconv"

	"oncebus/dedup/rules"
)

// promotes adds the change of a route that takes over the key rule of its shadow. The shadow's rows become
// the route's rows, so no row is lost.
func (c *comparison) promotes(old, r *rules.Route) {
	s := old.Shadow.Route
	switch {
	case s.KeyRule() != r.KeyRule():
		c.add(Refused, r.Name, "key", "stored keys would never be found", []string{"write the key of the shadow: " + keyText(s)}, "namespace %s is that of the shadow, but key is %s", r.Namespace, keyText(r))
	case s.Window != r.Window || s.Grace != r.Grace:
		c.add(Refused, r.Name, "window", "the shadow was tried out with others", []string{"write window: " + Short(s.Window) + " and grace: " + Short(s.Grace) + "; change them after the promotion"},
			"the shadow has window %s and grace %s, the route would have %s and %s", Short(s.Window), Short(s.Grace), Short(r.Window), Short(r.Grace))
	case !old.Shadow.IsFull():
		c.add(Refused, r.Name, "key", "its rows are those of some keys only", []string{"apply the shadow with sample: 100%, and promote that"}, "the shadow looks at %s of the keys", percent(old.Shadow.Sample))
	default:
		c.add(Refused, r.Name, "key", "only a promotion keeps the keys of earlier events", stepsPromote, "key %s -> %s, with the rows of shadow %s", keyText(old), keyText(r), r.Namespace)
		c.changes[len(c.changes)-1].Promotes = r.Namespace
	}
}

// isPromoted reports whether the namespace of a route is replaced by the namespace of its shadow.
func (c *comparison) isPromoted(old *rules.Route) bool {
	r := c.partner(old)
	return r != nil && r.IsPromotionOf(old)
}

// shadows compares the shadows of a route. Beginning and removing a shadow is harmless, because a shadow
// changes no verdict. A shadow with another rule must have another namespace, so that it does not find rows
// that the former shadow made.
func (c *comparison) shadows(old, r *rules.Route) {
	before, after := "", ""
	if old.Shadow != nil {
		before = old.Shadow.Route.Namespace
	}
	if r.Shadow != nil {
		after = r.Shadow.Route.Namespace
	}
	if before != "" && before != after && !r.IsPromotionOf(old) {
		c.add(Harmless, r.Name, "shadow", "", nil, "shadow %s removed, with its counts and rows", before)
	}
	switch {
	case after == "":
	case before == after && !sameShadow(old.Shadow, r.Shadow):
		c.add(Refused, r.Name, "shadow", "its rows are those of another rule", []string{"give the shadow another name"}, "shadow %s changed", after)
	case before != after:
		c.begins(r)
	}
}

// begins adds the change for a shadow that the old set does not have. The namespace of the shadow must be new.
// If a former shadow had used it, events that the app emitted since that shadow was removed would have no rows
// there.
func (c *comparison) begins(r *rules.Route) {
	s := r.Shadow
	if _, used := c.history.Namespaces[s.Route.Namespace]; used {
		c.add(Refused, r.Name, "shadow", "events were emitted meanwhile that it has not seen", []string{"give it a name that no shadow of the route had: shadow: {name: again, ...}"}, "shadow %s was removed before", s.Route.Namespace)
		return
	}
	c.add(Harmless, r.Name, "shadow", "", nil, "shadow %s begins: key %s for %s of the keys", s.Route.Namespace, keyText(s.Route), percent(s.Sample))
}

func sameShadow(a, b *rules.Shadow) bool {
	return a.Route.KeyRule() == b.Route.KeyRule() && a.Window == b.Window && a.Grace == b.Grace && a.Sample == b.Sample
}

// percent returns a share as it is written in the routes file.
func percent(share float64) string { return strconv.FormatFloat(share*100, 'g', 6, 64) + "%" }
