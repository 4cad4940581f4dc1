package rules

import (
	"math"
	"strconv"

	"go.yaml.in/yaml/v4"
)

// Quota bounds what each tenant of a route may use. The quota is for the route as a whole: each task of the
// route enforces its share of the quota.
type Quota struct {
	TenantQuota                        // for a tenant without a quota of its own
	Tenants     map[string]TenantQuota // quotas of single tenants, by name
}

// TenantQuota bounds one tenant; 0 for no bound.
type TenantQuota struct {
	Keys            int     // new keys within the window
	EventsPerSecond float64 // events in broker time, on average
}

// Of returns the quota of a tenant, and whether the tenant has a quota of its own. q may be nil.
func (q *Quota) Of(tenant []byte) (of TenantQuota, own bool) {
	if q == nil {
		return TenantQuota{}, false
	}
	if of, own = q.Tenants[string(tenant)]; !own {
		of = q.TenantQuota
	}
	return of, own
}

// String returns the quota as it is shown to a person.
func (q TenantQuota) String() string {
	events := strconv.FormatFloat(q.EventsPerSecond, 'f', -1, 64) + " events per second"
	switch {
	case q.Keys > 0 && q.EventsPerSecond > 0:
		return strconv.Itoa(q.Keys) + " keys, " + events
	case q.Keys > 0:
		return strconv.Itoa(q.Keys) + " keys"
	}
	return events
}

// Bounds of a quota. eventsLeast is so high that the share of a single task is still more than one event in a
// few hours.
const (
	eventsLeast = 0.01
	eventsMost  = 1_000_000
	quotasMax   = 1000 // tenants with a quota of their own
)

var quotaFields = []fieldOf[Quota]{
	{"keys", func(d *decoder, q *Quota, n *yaml.Node, at string) { q.Keys = d.integer(n, at, 1, liveKeysMax) }},
	{"events_per_second", func(d *decoder, q *Quota, n *yaml.Node, at string) { q.EventsPerSecond = d.eventsPerSecond(n, at) }},
	{"tenants", func(d *decoder, q *Quota, n *yaml.Node, at string) { q.Tenants = d.tenantQuotas(n, at) }},
}

var tenantQuotaFields = []fieldOf[TenantQuota]{
	{"keys", func(d *decoder, q *TenantQuota, n *yaml.Node, at string) { q.Keys = d.integer(n, at, 1, liveKeysMax) }},
	{"events_per_second", func(d *decoder, q *TenantQuota, n *yaml.Node, at string) {
		q.EventsPerSecond = d.eventsPerSecond(n, at)
	}},
}

// quota reads the quota of a route. If the quota of a single tenant leaves out a bound, the bound for all
// tenants applies.
func (d *decoder) quota(n *yaml.Node, at string) *Quota {
	q := &Quota{}
	nodes := decodeObject(d, n, at, q, quotaFields)
	if nodes != nil && len(nodes) == 0 {
		d.fail(n, at, "want keys, events_per_second or both")
	}
	for name, own := range q.Tenants {
		if own.Keys == 0 {
			own.Keys = q.Keys
		}
		if own.EventsPerSecond == 0 {
			own.EventsPerSecond = q.EventsPerSecond
		}
		q.Tenants[name] = own
	}
	return q
}

func (d *decoder) tenantQuotas(n *yaml.Node, at string) map[string]TenantQuota {
	if n.Kind != yaml.MappingNode {
		d.fail(n, at, "want a quota for each name, such as {acme: {keys: 1000000}}, found %s", describe(n))
		return nil
	}
	if len(n.Content)/2 > quotasMax {
		d.fail(n, at, "%d tenants, at most %d have a quota of their own", len(n.Content)/2, quotasMax)
	}
	all := map[string]TenantQuota{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		name := d.tenantName(n.Content[i], at)
		if _, twice := all[name]; twice {
			d.fail(n.Content[i], at, "%s is listed twice", name)
		}
		var own TenantQuota
		decodeObject(d, n.Content[i+1], join(at, name), &own, tenantQuotaFields)
		all[name] = own
	}
	return all
}

// eventsPerSecond reads a rate.
func (d *decoder) eventsPerSecond(n *yaml.Node, at string) float64 {
	var v float64
	err := n.Decode(&v)
	if n.Kind != yaml.ScalarNode || err != nil || math.IsNaN(v) || v < eventsLeast || v > eventsMost {
		d.fail(n, at, "want events per second, from %v to %d, found %s", eventsLeast, eventsMost, describe(n))
		return eventsLeast
	}
	return v
}
