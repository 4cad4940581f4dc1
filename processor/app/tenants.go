package app

import (
	"math"
	"slices"
	"time"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/kafka"
	"oncebus/processor/wire"
)

// The number of tenants with an account in one task, for each route. It is tenantsMost, or less if many routes
// have tenants, but at least tenantsLeast. A full checkpoint has some 100 bytes for each account.
const tenantsMost, tenantsLeast, tenantsAll = 1024, 64, 4096

// tenants has the accounts of the tenants of a task. The counts of the open transaction and the committed
// counts share one tenants, which has both.
type tenants struct {
	routes   []*Route         // routes with a tenant, in the order of the file
	accounts []*dedup.Tenants // one for each of routes
	at       []int            // by route index: the route's index in routes, or -1
	// carried are the accounts of routes that this process does not have. During a rolling update the task may
	// come from a process that has the route, and move on to another such process. So this process must keep the
	// accounts.
	carried []wire.RouteTenants
}

// newTenants returns the accounts of a task; nil for an app at level 1, whose checkpoints have no accounts.
func newTenants(rt *App) *tenants {
	if rt.Set == 0 {
		return nil
	}
	t := &tenants{at: make([]int, len(rt.Routes))}
	for i, route := range rt.Routes {
		t.at[i] = -1
		if route.Tenant != nil && !route.IsShadow() {
			t.at[i] = len(t.routes)
			t.routes = append(t.routes, route)
		}
	}
	for _, route := range t.routes {
		t.accounts = append(t.accounts, dedup.NewTenants(route.Window, min(tenantsMost, max(tenantsLeast, tenantsAll/len(t.routes)))))
	}
	return t
}

// HasTenants reports whether the task has accounts of the tenants of a route.
func (c *Counts) HasTenants(route *Route) bool {
	return c.tenants != nil && c.tenants.at[route.Index] >= 0
}

// TenantTurn begins the turn of an event of a tenant. HasTenants must be true for the route.
func (c *Counts) TenantTurn(route *Route, name []byte, own bool, at dedup.TenantTime) dedup.TenantTurn {
	return c.tenants.accounts[c.tenants.at[route.Index]].Turn(name, own, at)
}

// Tenants returns the accounts for a full checkpoint, including the open transaction.
func (c *Counts) Tenants() []wire.RouteTenants {
	if c.tenants == nil {
		return nil
	}
	all := make([]wire.RouteTenants, 0, len(c.tenants.routes)+len(c.tenants.carried))
	for i, route := range c.tenants.routes {
		all = append(all, wire.RouteTenants{Route: route.Name, TenantState: c.tenants.accounts[i].State()})
	}
	return append(all, c.tenants.carried...)
}

// AppendTenants appends what the open transaction has changed, for a partial checkpoint that follows a full one
// with the result of Tenants.
func (c *Counts) AppendTenants(dst []byte) []byte {
	if c.tenants == nil {
		return dst
	}
	for i, one := range c.tenants.accounts {
		if one.IsChanged() {
			dst = one.AppendChanges(wire.AppendTenantRoute(dst, i))
		}
	}
	return dst
}

// LoadTenants replaces the accounts by those of a checkpoint. It drops the accounts of a route that no longer
// has tenants, and carried accounts beyond the bound of one checkpoint (tenantsAll).
func (c *Counts) LoadTenants(rt *App, all []wire.RouteTenants) {
	if c.tenants == nil {
		return
	}
	c.tenants.carried = nil
	left := tenantsAll
	for i := range all {
		route := rt.ByName[all[i].Route]
		switch {
		case route == nil && len(all[i].Accounts) <= left:
			left -= len(all[i].Accounts)
			c.tenants.carried = append(c.tenants.carried, all[i])
		case route != nil && c.HasTenants(route):
			c.tenants.accounts[c.tenants.at[route.Index]].Load(&all[i].TenantState)
		}
	}
	c.tenants.carried = slices.Clip(c.tenants.carried)
}

// TenantSums are the sums over all tenants of a route in one task.
type TenantSums struct {
	Route   string
	Tenants int // tenants with an account
	dedup.TenantCounts
}

// ListTenants returns the committed sums of each route with tenants.
func (c *Counts) ListTenants() (all []TenantSums) {
	if c.tenants == nil {
		return nil
	}
	for i, route := range c.tenants.routes {
		one := TenantSums{Route: route.Name}
		one.TenantCounts, one.Tenants = c.tenants.accounts[i].Counts()
		all = append(all, one)
	}
	return all
}

// commit makes final what the open transaction has changed.
func (t *tenants) commit() {
	if t == nil {
		return
	}
	for _, one := range t.accounts {
		if one.IsChanged() {
			one.Commit()
		}
	}
}

// discard undoes what the open transaction has changed.
func (t *tenants) discard() {
	if t == nil {
		return
	}
	for _, one := range t.accounts {
		one.Discard()
	}
}

// ShareOf returns the share of one task in the quota of a tenant: the quota divided evenly by the number of
// tasks. The number of keys is rounded up.
func ShareOf(q rules.TenantQuota, tasks int32) (share dedup.TenantShare) {
	n := int64(max(1, tasks))
	if q.Keys > 0 {
		share.Keys = (int64(q.Keys) + n - 1) / n
	}
	if q.EventsPerSecond > 0 {
		share.Interval = time.Duration(math.Round(float64(n) * float64(time.Second) / q.EventsPerSecond))
	}
	return share
}

// refuseQuotas returns an operator error if an app at level 1 has quotas: its checkpoints have no accounts of
// tenants.
func refuseQuotas(m *Manifest, routes *rules.Routes) error {
	for _, r := range routes.Routes {
		if r.Quota != nil && m.level() < 2 {
			return kafka.OperatorErrorf("route %s: app is at level %d, and quota needs level 2: leave it out, run oncebus finalize once all processes have this build, and apply it then", r.Name, m.level())
		}
	}
	return nil
}
