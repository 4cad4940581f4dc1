package ingress

import (
	"fmt"
	"time"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/wire"
)

// allowTenant checks the rate of a tenant of a route before its event is produced. It returns how long the
// sender has to wait, 0 if not at all, and the tenant's quota. Every server lets the tenant's whole quota pass,
// because it knows of no other server; the tasks then decide on the sum of what all servers let pass.
func (e *endpoint) allowTenant(route *rules.Route, tenant string, now time.Time) (wait time.Duration, quota rules.TenantQuota) {
	if route.Quota == nil || tenant == "" {
		return 0, quota
	}
	quota, _ = route.Quota.Of([]byte(tenant))
	if quota.EventsPerSecond == 0 {
		return 0, quota
	}
	burst := max(1, int(quota.EventsPerSecond*dedup.TenantBurst.Seconds()))
	return e.tenants.allow([2]string{route.Name, tenant}, rules.Rate{PerSecond: quota.EventsPerSecond, Burst: burst}, now), quota
}

// overQuota returns the response to an event whose tenant is over its rate, and nil for every other event.
func (s *Server) overQuota(rq *request, e *endpoint, route *rules.Route, derived *rules.Derived) *response {
	wait, quota := e.allowTenant(route, derived.Tenant, rq.received)
	if wait == 0 {
		return nil
	}
	detail := fmt.Sprintf("%stenant %s of route %s is over %v", wire.ReasonQuota, derived.Tenant, route.Name, quota)
	return s.reject(rq, reasonQuota, problemQuota.respond(detail).with("Retry-After", retryAfter(wait)))
}
