package judge

import (
	"fmt"
	"time"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/wire"
)

// A tenant over its quota must not slow down another tenant: its events become dead letters at once, and no
// partition is paused. Each task enforces its share of the quota. The task's checkpoint contains what the task
// has granted to each tenant, so that this is committed with the events and moves with the task.

// tenantTurn is what the quota of an event's tenant says about the event.
type tenantTurn struct {
	dedup.TenantTurn
	taken bool // false if the route has no tenants, or the event was not checked
	quota rules.TenantQuota
	share dedup.TenantShare
}

// tenantOf returns the tenant of a derived key; nil if there is none.
func (e *Emitter) tenantOf(derived *rules.Derived) []byte {
	if derived.Tenant == "" {
		return nil
	}
	name := e.bytes.take(len(derived.Tenant))
	copy(name, derived.Tenant)
	return name
}

// takeTenant charges an event to its tenant's rate. If the tenant is over its rate, it makes the event
// a dead letter and returns false.
func (t *Judge) takeTenant(j *Judging, ev *event) bool {
	if len(ev.tenant) == 0 || !t.OpenCounts.HasTenants(ev.route) {
		return true
	}
	x := &ev.turn
	var own bool
	x.quota, own = ev.route.Quota.Of(ev.tenant)
	x.share = app.ShareOf(x.quota, t.App.Topology.Topics[t.ID.Topic].Partitions)
	x.TenantTurn, x.taken = t.OpenCounts.TenantTurn(ev.route, ev.tenant, own, t.tenantTime(ev)), true
	wait := x.Take(x.share)
	if wait == 0 {
		return true
	}
	t.applyQuota(j, ev, fmt.Sprintf("this partition grants the next event in %v; redrive it then, or raise quota", wait.Round(time.Millisecond)))
	return false
}

// tenantTime returns when an event was sent. For an HTTP request, or a record of a prepartitioned topic, it
// returns when the task got the event: such a route has no inputs that could be read at different speeds.
func (t *Judge) tenantTime(ev *event) dedup.TenantTime {
	at, follows := t.sourcesOf(ev.route.NamespaceID)
	switch {
	case !follows:
		return dedup.NewTenantTime(ev.brokerTime, ev.brokerTime, ev.brokerTime)
	case ev.isFromIngress():
		return dedup.NewTenantTime(ev.brokerTime, ev.brokerTime, t.Open.Sources[at].ReadSince())
	}
	return dedup.NewTenantTime(ev.brokerTime, ev.timestamp, t.Open.Sources[at].ReadSince())
}

// hasRoom reports whether a new key is within the quota of the event's tenant. If not, it makes the
// event a dead letter.
func (t *Judge) hasRoom(j *Judging, ev *event) bool {
	x := &ev.turn
	if !x.taken || x.HasRoom(x.share) {
		return true
	}
	t.applyQuota(j, ev, fmt.Sprintf("this partition has its share of %d new keys in %v; redrive it when some have left the window, or raise quota", x.share.Keys, ev.route.Window))
	return false
}

// addKey counts an emitted event with a new key against the tenant's quota.
func (x *tenantTurn) addKey() {
	if x.taken {
		x.AddKey()
	}
}

// applyQuota makes an event that is over a quota a dead letter.
func (t *Judge) applyQuota(j *Judging, ev *event, cause string) {
	ev.verdict, ev.claimed = dedup.Limited, nil
	ev.reason = fmt.Sprintf(wire.ReasonQuota+"tenant %s of route %s is over %v: %s", rules.AppendSender(nil, ev.tenant), ev.route.Name, ev.turn.quota, cause)
	j.byPolicy(ev, rules.DeadLetter)
}

// isNewKey reports whether an event with this verdict is the first event of its key in the window.
func (c *candidate) isNewKey(verdict dedup.Verdict) bool {
	return c.replaced == nil || verdict == dedup.AfterWindow
}
