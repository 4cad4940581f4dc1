package routesets

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"oncebus/dedup/rules"
)

// Compare returns the changes from the route set before to the set after, in the order of the routes in after,
// and then the routes that are missing there. forget has the namespaces whose stored keys the operator allows
// to be lost.
func Compare(before, after *rules.Routes, h History, forget []string) []Change {
	c := &comparison{
		before: before, after: after, history: h, forget: forget, pairs: map[*rules.Route]*rules.Route{},
		inputsBefore: inputsOf(before), inputsAfter: inputsOf(after),
	}
	c.pair()
	for _, r := range after.Routes {
		if old := c.pairs[r]; old != nil {
			c.changed(old, r)
		} else {
			c.added(r)
		}
	}
	for _, old := range before.Routes {
		if c.partner(old) == nil {
			c.removed(old)
		}
	}
	c.vanished()
	c.reordered()
	return c.changes
}

// comparison is one run of Compare: the two sets, and the changes found so far.
type comparison struct {
	before, after             *rules.Routes
	history                   History
	forget                    []string
	pairs                     map[*rules.Route]*rules.Route // from a route of after to the same route in before
	inputsBefore, inputsAfter map[string]bool
	changes                   []Change
}

func (c *comparison) add(kind Kind, route, field, why string, steps []string, what string, args ...any) {
	c.changes = append(c.changes, Change{Kind: kind, Route: route, Field: field, What: fmt.Sprintf(what, args...), Why: why, Steps: steps})
}

// pair finds the old route of each new route: the one with the same name, or else a removed route with the
// same namespace, topics and match, which an operator has renamed.
func (c *comparison) pair() {
	for _, r := range c.after.Routes {
		if old := c.before.Route(r.Name); old != nil {
			c.pairs[r] = old
		}
	}
	for _, r := range c.after.Routes {
		if c.pairs[r] != nil {
			continue
		}
		for _, old := range c.before.Routes {
			if c.partner(old) == nil && old.Namespace == r.Namespace && slices.Equal(old.Topics, r.Topics) && old.Written("match") == r.Written("match") {
				c.pairs[r] = old
				break
			}
		}
	}
}

// partner returns the new route of an old route; nil if the old route was removed.
func (c *comparison) partner(old *rules.Route) *rules.Route {
	for r, other := range c.pairs {
		if other == old {
			return r
		}
	}
	return nil
}

// changed adds the changes of a route that both sets have.
func (c *comparison) changed(old, r *rules.Route) {
	if old.Name != r.Name {
		c.add(Harmless, r.Name, "name", "", nil, "renamed from %s, with namespace %s", old.Name, r.Namespace)
		c.reused(r)
	}
	switch {
	case r.IsPromotionOf(old):
		c.promotes(old, r)
	case old.Namespace != r.Namespace:
		c.add(Confirm, r.Name, "namespace", "the keys of its events are looked up in the new namespace only", nil, "namespace %s -> %s", old.Namespace, r.Namespace)
		c.returns(r)
	case old.Secret != r.Secret:
		c.add(Refused, r.Name, "secret", "stored keys would never be found", stepsSecret, "secret %v -> %v", old.Secret, r.Secret)
	case old.TenantRule() != r.TenantRule():
		c.add(Refused, r.Name, "tenant", "stored keys would never be found", stepsTenant, "tenant %s -> %s", tenantText(old), tenantText(r))
	case r.Extends(old.KeyRule()):
		c.add(Confirm, r.Name, "key", "stored keys stay; an event without a key so far gets one, so the first of its copies is emitted, also where one was forwarded before",
			nil, "key %s -> %s", keyText(old), keyText(r))
	case old.KeyRule() != r.KeyRule():
		c.add(Refused, r.Name, "key", "stored keys would never be found", stepsKey, "key %s -> %s", keyText(old), keyText(r))
	case old.AdjacentStep() != r.AdjacentStep(): // adjacent_buckets is not part of the key rule
		c.add(Refused, r.Name, "key", whyAdjacent, stepsAdjacent, "adjacent_buckets %v -> %v", old.AdjacentStep() > 0, r.AdjacentStep() > 0)
	}
	if old.Off != r.Off {
		what, why := "on -> off", "each of its events is forwarded, with its copies, and nothing is stored; keys stored before stay until they are evicted"
		if old.Off {
			what, why = "off -> on", "a copy of an event that was forwarded while the route was off is emitted again; a key stored before is known until it is evicted"
		}
		c.add(Confirm, r.Name, "enabled", why, nil, "switched %s", what)
	}
	if old.Mode != r.Mode {
		c.add(Refused, r.Name, "mode", "the stored rows have another meaning", stepsMode, "mode %v -> %v", old.Mode, r.Mode)
	}
	if old.Prepartitioned != r.Prepartitioned {
		steps := stepsPartition
		if old.Prepartitioned {
			steps = stepsRouted
		}
		c.add(Refused, r.Name, "prepartitioned", "the rows of its keys are in another changelog", steps, "prepartitioned %v -> %v", old.Prepartitioned, r.Prepartitioned)
	}
	if !r.IsPromotionOf(old) {
		c.windows(old, r)
	}
	c.tenants(old, r)
	c.shadows(old, r)
	for _, topic := range r.Topics {
		if !slices.Contains(old.Topics, topic) {
			c.newTopic(r, topic)
		}
	}
	for _, topic := range old.Topics {
		if !slices.Contains(r.Topics, topic) {
			c.lostTopic(r.Name, topic)
		}
	}
	for _, field := range slices.Sorted(maps.Keys(fieldKinds)) {
		if a, b := old.Written(field), r.Written(field); a != b {
			k := fieldKinds[field]
			c.add(k.kind, r.Name, field, k.why, k.steps, "%s changed", field)
		}
	}
}

// keyText returns the key rule of a route without the namespace, secret and tenant before it.
func keyText(r *rules.Route) string {
	_, key, _ := strings.Cut(r.KeyRule(), " key=")
	return key
}

func tenantText(r *rules.Route) string { return cmp.Or(r.TenantRule(), "none") }

// tenants compares the default tenants: the tenants of records that name no tenant. The method changed has
// already refused a change of the place at which records name their tenant.
func (c *comparison) tenants(old, r *rules.Route) {
	if old.TenantRule() != r.TenantRule() || old.Tenant == nil || old.Tenant.Default == r.Tenant.Default {
		return
	}
	a, b := old.Tenant.Default, r.Tenant.Default
	if a == "" {
		c.add(Harmless, r.Name, "tenant", "", nil, "records without a tenant get tenant %s", b)
		return
	}
	why := "copies of stored events that name no tenant are emitted again"
	if b == "" {
		why = "records that name no tenant become dead letters"
	}
	c.add(Confirm, r.Name, "tenant", why, nil, "tenant of records that name none: %s -> %s", a, cmp.Or(b, "none, they are invalid"))
}

// windows compares window, grace and skew.
func (c *comparison) windows(old, r *rules.Route) {
	for _, x := range []struct {
		field string
		a, b  time.Duration
	}{{"window", old.Window, r.Window}, {"grace", old.Grace, r.Grace}, {"skew", old.Skew, r.Skew}} {
		if x.a == x.b {
			continue
		}
		why := "at once"
		if x.field == "window" && x.b > x.a {
			why = "a duplicate is found by the longer window only if its first event is still stored"
		}
		c.add(Confirm, r.Name, x.field, why, nil, "%s %s -> %s", x.field, Short(x.a), Short(x.b))
	}
}

// Short returns a duration without units that are zero.
func Short(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// added adds the changes for a route that the old set does not have.
func (c *comparison) added(r *rules.Route) {
	kind, why := Harmless, ""
	for _, topic := range inputs(r) {
		switch {
		case c.inputsBefore[topic]:
			kind, why = Confirm, "it takes records of topic "+topic+" that other routes take now"
		case c.history.wasInput(topic) && kind == Harmless:
			kind, why = Confirm, backlog(topic)
		}
	}
	c.add(kind, r.Name, "", why, nil, "added, with topic %s", strings.Join(r.Topics, ", "))
	c.reused(r)
	c.returns(r)
}

func backlog(topic string) string {
	return "topic " + topic + " was read before: the app goes on where it stopped, with all records since"
}

// inputs returns the topics that a route reads.
func inputs(r *rules.Route) []string {
	if r.Mode == rules.ClaimMode {
		return append(slices.Clone(r.Topics), r.Claim.Outcomes)
	}
	return r.Topics
}

// reused adds the changes for a name that a route of an older set had. Records of that former route may still
// arrive, from a front that was not connected for a while.
func (c *comparison) reused(r *rules.Route) {
	old := c.history.former(r.Name)
	if old == nil {
		return
	}
	switch {
	case old.Mode != r.Mode:
		c.add(Refused, r.Name, "name", "records of the former route would be judged in another mode", []string{"choose another name"},
			"name %s was that of a route with mode %v", r.Name, old.Mode)
	case old.Namespace != r.Namespace:
		c.add(Confirm, r.Name, "name", "records of the former route that are still to come get the new namespace", nil, "name %s was that of a route with namespace %s", r.Name, old.Namespace)
	}
}

// returns adds the changes for a namespace that is new for the route, but in which the app has stored rows
// before, for a former route or for another route.
func (c *comparison) returns(r *rules.Route) {
	pin, ok := c.history.Namespaces[r.Namespace]
	if !ok {
		return
	}
	switch {
	case pin.Mode != r.Mode.String():
		c.add(Refused, r.Name, "namespace", "the stored rows have another meaning", []string{"give the route a new namespace"}, "namespace %s has rows of mode %s", r.Namespace, pin.Mode)
	case pin.KeyRule != r.KeyRule() && !r.Extends(pin.KeyRule):
		c.add(Refused, r.Name, "namespace", "stored keys would never be found", []string{"give the route a new namespace"}, "namespace %s has keys of another key rule", r.Namespace)
	case c.lastStep(r) != r.AdjacentStep():
		c.add(Refused, r.Name, "namespace", whyAdjacent, []string{"give the route a new namespace"}, "namespace %s has rows of adjacent_buckets %v", r.Namespace, c.lastStep(r) > 0)
	}
}

// lastStep returns the step of adjacent buckets of the newest former route with the namespace of r. If no
// former route had that namespace, it returns the step of r itself.
func (c *comparison) lastStep(r *rules.Route) int64 {
	for _, set := range append([]*rules.Routes{c.before}, c.history.Former...) {
		for _, old := range set.Routes {
			if old.Namespace == r.Namespace {
				return old.AdjacentStep()
			}
		}
	}
	return r.AdjacentStep()
}

// newTopic adds the change for a topic that a route did not read before.
func (c *comparison) newTopic(r *rules.Route, topic string) {
	switch {
	case c.inputsBefore[topic]:
		c.add(Confirm, r.Name, "topics", "records of the topic get the namespace of another route", nil, "takes records of topic %s, which other routes take now", topic)
	case c.history.wasInput(topic):
		c.add(Confirm, r.Name, "topics", backlog(topic), nil, "topic %s added", topic)
	default:
		c.add(Harmless, r.Name, "topics", "", nil, "topic %s added", topic)
	}
}

// lostTopic adds the change for a topic that a route no longer reads.
func (c *comparison) lostTopic(name, topic string) {
	why := "its records go to other routes, and their keys with them"
	if !c.inputsAfter[topic] {
		why = "what is not read of it until then stays unread"
	}
	c.add(Confirm, name, "topics", why, nil, "topic %s removed", topic)
}

// removed adds the change for a route that the new set does not have.
func (c *comparison) removed(old *rules.Route) {
	why := "records that are routed already are still processed; what is unread of its topics stays unread"
	if old.Prepartitioned {
		why = "what is unread of its topic stays unread"
	}
	if old.Mode == rules.ClaimMode {
		why += "; outcomes are taken until none of its claims is open"
	}
	c.add(Confirm, old.Name, "", why, nil, "removed")
}

// vanished adds the changes for namespaces that the new set does not have although it still reads their topics:
// without the keys that are stored in such a namespace, the app would emit copies of events that it has already
// emitted.
func (c *comparison) vanished() {
	var done []string
	for _, old := range c.before.Routes {
		gone := !slices.ContainsFunc(c.after.Routes, func(r *rules.Route) bool { return r.Namespace == old.Namespace })
		stays := slices.IndexFunc(old.Topics, func(topic string) bool { return c.inputsAfter[topic] })
		if !gone || stays < 0 || c.isPromoted(old) || slices.Contains(done, old.Namespace) {
			continue
		}
		done = append(done, old.Namespace)
		if slices.Contains(c.forget, old.Namespace) {
			c.add(Confirm, old.Name, "namespace", "copies of stored events are emitted again, as --forget-keys allows", nil, "namespace %s gives up its keys", old.Namespace)
			continue
		}
		c.add(Refused, old.Name, "namespace", "copies of stored events would be emitted again", []string{
			fmt.Sprintf("keep the namespace: write `namespace: %s` in the route that takes its topic", old.Namespace),
			fmt.Sprintf("or give its keys up: oncebus apply --forget-keys %s", old.Namespace),
		}, "namespace %s vanishes, but topic %s stays", old.Namespace, old.Topics[stays])
	}
}

// reordered adds the changes of the order of routes that share a topic. The order matters because a record
// belongs to the first route that matches it.
func (c *comparison) reordered() {
	var earlier []*rules.Route // the routes before r that the old set has, too
	for _, r := range c.after.Routes {
		old := c.pairs[r]
		if old == nil {
			continue
		}
		for _, other := range earlier {
			oldOther := c.pairs[other]
			shared := slices.ContainsFunc(r.Topics, func(t string) bool {
				return slices.Contains(other.Topics, t) && slices.Contains(old.Topics, t) && slices.Contains(oldOther.Topics, t)
			})
			if shared && oldOther.Index > old.Index {
				c.add(Confirm, r.Name, "match", "records that both match go to another route than before", nil, "now after route %s, with which it shares a topic", other.Name)
			}
		}
		earlier = append(earlier, r)
	}
}
