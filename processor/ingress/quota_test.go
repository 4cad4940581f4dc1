package ingress

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"oncebus/dedup/rules"
)

// quotaRoutes has a route whose tenants have a quota.
func quotaRoutes(quota string) string {
	return strings.Replace(withHTTP("headers: [x-tenant]"), "    window: 1h\n", "    window: 1h\n    tenant: {header: x-tenant}\n    quota: "+quota+"\n", 1)
}

// TestTenantOverItsRateGets429: before anything is stored, and only that tenant.
func TestTenantOverItsRateGets429(t *testing.T) {
	t.Parallel()
	b := newBench(t, quotaRoutes("{events_per_second: 0.25, tenants: {big: {events_per_second: 1000}}}"), oneTask)
	i := b.serve(nil)
	now := time.Now()
	i.now = func() time.Time { return now }
	post := func(tenant, id string) reply { return i.post("/signals", event(id), "X-Tenant", tenant) }
	post("acme", "a").want(t, "the first of acme", 202)
	post("acme", "b").want(t, "the second of acme: 10 s have 2.5 events", 202)
	refused := post("acme", "c").header(t, "over the quota", "Retry-After", "4")
	if p := refused.problem(t, "over the quota", "quota", 429); p.Detail != "quota: tenant acme of route signals is over 0.25 events per second" || p.Verdict != "" {
		t.Errorf("problem %+v", p)
	}
	post("globex", "a").want(t, "another tenant", 202)
	for n := range 20 {
		post("big", fmt.Sprint("a", n)).want(t, "a tenant with a quota of its own", 202)
	}
	post("", "a").problem(t, "without a tenant", "invalid", 400)
	if n := i.count("oncebus_http_refused_total", "reason", "quota", "route", "signals"); n != 1 {
		t.Errorf("%v refused", n)
	}
	if n := len(b.read("signals.unique", 23)); n != 23 {
		t.Errorf("%d events, want 23: the refused one was never stored", n)
	}
}

// TestTenantOverItsKeysGets429: by its verdict, with the tenant and the way out.
func TestTenantOverItsKeysGets429(t *testing.T) {
	t.Parallel()
	b := newBench(t, quotaRoutes("{keys: 2}"), oneTask)
	i := b.serve(nil)
	post := func(tenant, id string) reply { return i.post("/signals", event(id), "X-Tenant", tenant) }
	post("acme", "a").want(t, "a", 202)
	post("acme", "b").want(t, "b", 202)
	post("acme", "a").want(t, "a again", 409)
	over := post("acme", "c").header(t, "over the quota", "Retry-After", "60")
	if p := over.problem(t, "over the quota", "quota", 429); p.Verdict != "limited" || !strings.HasPrefix(p.Detail, "quota: tenant acme of route signals is over 2 keys: ") {
		t.Errorf("problem %+v", p)
	}
	post("globex", "c").want(t, "another tenant", 202)
}

// TestTenantLimitersAreBounded: tenants that senders make up take no memory without end.
func TestTenantLimitersAreBounded(t *testing.T) {
	t.Parallel()
	route := parseRoutes(t, quotaRoutes("{events_per_second: 1}")).Routes[0]
	e := &endpoint{tenants: newRateLimiters[[2]string]()}
	now := time.Now()
	for n := range limitersMax + 100 {
		if wait, _ := e.allowTenant(route, fmt.Sprint("t", n), now); wait != 0 {
			t.Fatalf("tenant %d waits %v", n, wait)
		}
	}
	if e.tenants.by.Len() != limitersMax {
		t.Errorf("%d limiters", e.tenants.by.Len())
	}
	if wait, _ := e.allowTenant(&rules.Route{}, "a", now); wait != 0 {
		t.Error("a route without a quota limits")
	}
}
