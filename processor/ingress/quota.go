package ingress

import (
	"fmt"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/wire"
)

// tenantsMax bounds the tenants of a route whose rate is tracked, some 200 bytes each. The least
// recently seen one is dropped: the tasks have its quota too.
const tenantsMax = 16_384

// tenantLimiters limit the events of each tenant of a route, before they are produced; nil does
// not limit. This server lets the whole quota pass, because it knows of no other one. The
// tasks decide about what several servers let pass.
type tenantLimiters struct {
	route *rules.Route
	mu    sync.Mutex // so that concurrent first requests of a tenant share one limiter
	by    *lru.Cache[string, *rateLimiter]
}

func newTenantLimiters(r *rules.Route) *tenantLimiters {
	if r.Quota == nil {
		return nil
	}
	by, err := lru.New[string, *rateLimiter](tenantsMax)
	if err != nil {
		panic(err) // lru rejects only a size that is not positive
	}
	return &tenantLimiters{route: r, by: by}
}

// allow is rateLimiter.allow for one tenant. It also returns the tenant's quota.
func (t *tenantLimiters) allow(tenant string, now time.Time) (wait time.Duration, quota rules.TenantQuota) {
	if t == nil || tenant == "" {
		return 0, quota
	}
	quota, _ = t.route.Quota.Of([]byte(tenant))
	if quota.EventsPerSecond == 0 {
		return 0, quota
	}
	t.mu.Lock()
	l, ok := t.by.Get(tenant)
	if !ok {
		burst := int(quota.EventsPerSecond * dedup.TenantBurst.Seconds())
		l = newRateLimiter(rules.Rate{PerSecond: quota.EventsPerSecond, Burst: max(1, burst)})
		t.by.Add(tenant, l)
	}
	t.mu.Unlock()
	return l.allow(now), quota
}

// overQuota returns the response to an event whose tenant is over its rate; nil if it is not.
func (s *Server) overQuota(rq *request, e *endpoint, route *rules.Route, derived *rules.Derived) *response {
	wait, quota := e.tenants[route.Name].allow(derived.Tenant, rq.received)
	if wait == 0 {
		return nil
	}
	detail := fmt.Sprintf("%stenant %s of route %s is over %v", wire.ReasonQuota, derived.Tenant, route.Name, quota)
	return s.reject(rq, reasonQuota, problemQuota.respond(detail).with("Retry-After", retryAfter(wait)))
}
