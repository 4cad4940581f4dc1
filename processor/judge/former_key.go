package judge

import (
	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/wire"
)

// forwardFormer handles a record whose key was derived by the rule before a promotion, because the router or
// ingress that wrote it had not read the new route set yet. The judge derives the key by the rule in force and
// forwards the record to the task of that key. During the hold of the promotion the record waits instead,
// because other tasks may still emit events by the old rule.
func (t *Judge) forwardFormer(j *Judging, ev *event, env *wire.Envelope) error {
	switch {
	case t.Blind || env.IsSeed:
		return nil // the task applies it after the restore; a seed has no event to derive from
	case j.Held:
		return &UnknownRouteError{Route: ev.route.Name, Offset: ev.rec.Offset, Set: t.App.Set, Held: true}
	}
	var in rules.Input
	var derived rules.Derived
	t.setOriginal(&in, ev)
	j.Keys.deriver.DeriveTo(&derived, &in)
	if derived.Finding == rules.SchemaPending {
		return pendingOf(ev.rec, &derived)
	}
	if derived.Route != nil { // nil if the route was removed since
		ev.route = t.App.Routes[derived.Route.Index]
	}
	if derived.Finding != rules.Keyed {
		ev.Details = wire.DetailsOf(&derived)
		j.applyKeyPolicy(ev, &derived)
		return nil
	}
	next := *env
	next.Route, next.Digest, next.Hashed, next.Key = ev.route.WireName, derived.Digest, derived.Hashed, derived.Key
	next.EventTime, next.Details = derived.Time, wire.DetailsOf(&derived)
	next.Tenant = j.tenantOf(&derived)
	router := Router{App: t.App}
	if misfit := router.send(j.Emitter, ev.rec, &next, t.App.Hasher.Partition(&derived.Routing)); misfit != "" {
		ev.key, ev.digest, ev.Details, ev.verdict, ev.reason = &derived.Key, derived.Digest, next.Details, dedup.Invalid, misfit
		j.byPolicy(ev, rules.DeadLetter)
	}
	return nil
}
