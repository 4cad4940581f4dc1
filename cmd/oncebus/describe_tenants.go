package main

import (
	"fmt"
	"maps"
	"slices"

	"oncebus/dedup/rules"
)

// describeTenants lists the facts of a route's tenants.
func describeTenants(r *rules.Route) []fact {
	if r.Tenant == nil {
		return nil
	}
	tenant, quota := r.Tenant.String()+"; without one: invalid", ""
	if r.Tenant.Default != "" {
		tenant = r.Tenant.String() + "; without one: " + r.Tenant.Default
	}
	if q := r.Quota; q != nil {
		if q.TenantQuota != (rules.TenantQuota{}) {
			quota = q.TenantQuota.String() + "; "
		}
		for _, name := range slices.Sorted(maps.Keys(q.Tenants)) {
			quota += fmt.Sprintf("%s: %v; ", name, q.Tenants[name])
		}
		quota += "further events: dead letters"
	}
	return []fact{{"tenant", tenant}, {"quota", quota}}
}
