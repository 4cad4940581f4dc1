package processor_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/deadletter"
)

// tenantRoutes returns a route with tenants; more are further lines of the route.
func tenantRoutes(more ...string) string {
	return strings.Join(append([]string{strings.TrimSuffix(benchRoutes, "\n"), "tenant: {header: x-tenant}"}, more...), "\n    ") + "\n"
}

// ofTenant makes a raw record of a tenant. The same id has the same partition.
func ofTenant(tenant string, id int) *kgo.Record {
	r := signal(fmt.Sprint("id-", id), int32(id%4), time.Now().UnixMilli())
	r.Headers = append(r.Headers, kgo.RecordHeader{Key: "x-tenant", Value: []byte(tenant)})
	return r
}

// tenantsOf counts the records of a topic by tenant.
func (b *bench) tenantsOf(topic string) map[string]int {
	b.t.Helper()
	counts := map[string]int{}
	for _, r := range b.read(topic) {
		counts[header(r, "x-tenant")]++
	}
	return counts
}

// ofBothTenants makes the events of two tenants with equal ids, in turn.
func ofBothTenants(from, to int) (all []*kgo.Record) {
	for id := from; id < to; id++ {
		all = append(all, ofTenant("noisy", id), ofTenant("quiet", id))
	}
	return all
}

// TestTenantOverItsQuotaTakesNothingFromAnother covers a tenant with far more keys than its quota: it gets its quota,
// and dead letters that name it. Another tenant on the same topics and partitions loses no event. A duplicate of a
// known key is no new key, and does not become a dead letter.
func TestTenantOverItsQuotaTakesNothingFromAnother(t *testing.T) {
	t.Parallel()
	const keys = 400 // of each tenant
	for name, more := range map[string][]string{
		"routed":         {},
		"prepartitioned": {"prepartitioned: true"},
		"claims":         {"mode: claim", "outcomes: signals.outcomes", "replies: signals.replies"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, tenantRoutes(append(more, "quota: {keys: 40, tenants: {quiet: {keys: 100000}}}")...))
			b.createTopic("signals.raw", 4)
			i := b.ready(b.start(b.config("one")))
			b.produce(ofBothTenants(0, keys)...)
			b.drain(i, "signals.raw")
			if got := b.tenantsOf("signals.unique"); got["quiet"] != keys || got["noisy"] != 40 {
				t.Fatalf("emitted %v, want all %d of quiet, and 40 of noisy: 10 in each of 4 partitions", got, keys)
			}
			dead := b.read("dead")
			for _, r := range dead {
				reason := header(r, "oncebus-reason")
				if header(r, "x-tenant") != "noisy" || header(r, "oncebus-verdict") != "limited" || deadletter.Read(r).Class != deadletter.Limited ||
					reason != "quota: tenant noisy of route signals is over 40 keys: this partition has its share of 10 new keys in 1h0m0s; redrive it when some have left the window, or raise quota" {
					t.Fatalf("dead letter of %s with verdict %s: %s", header(r, "x-tenant"), header(r, "oncebus-verdict"), reason)
				}
			}
			if len(dead) != keys-40 {
				t.Errorf("%d dead letters, want %d", len(dead), keys-40)
			}
			var copies []*kgo.Record
			for _, r := range b.read("signals.unique") {
				id, err := strconv.Atoi(strings.TrimPrefix(string(r.Key), "k-id-"))
				must(t, err)
				copies = append(copies, ofTenant(header(r, "x-tenant"), id))
			}
			b.produce(copies...)
			b.drain(i, "signals.raw")
			if emitted, dead := b.tenantsOf("signals.unique"), b.tenantsOf("dead"); emitted["quiet"] != keys || emitted["noisy"] != 40 || dead["noisy"] != keys-40 || dead["quiet"] != 0 {
				t.Errorf("after the duplicates: emitted %v, dead letters %v", emitted, dead)
			}
		})
	}
}

// TestQuotaMovesWithTheTask protects that a task's grants are part of its checkpoints. A process with an empty disk
// goes on where the other process ended.
func TestQuotaMovesWithTheTask(t *testing.T) {
	t.Parallel()
	b := newBench(t, tenantRoutes("quota: {keys: 60}"))
	b.createTopic("signals.raw", 4)
	for n := range 6 { // less than the quota, so that partial checkpoints have the rest
		i := b.ready(b.start(b.config("one"))) // each with a directory of its own
		for k := range 5 {
			b.produce(ofBothTenants(100*n+10*k, 100*n+10*k+5)...)
			b.drain(i, "signals.raw")
		}
		must(t, i.stop())
	}
	emitted, dead := b.tenantsOf("signals.unique"), b.tenantsOf("dead")
	if emitted["noisy"] != 60 || emitted["quiet"] != 60 || dead["noisy"] != 90 || dead["quiet"] != 90 {
		t.Errorf("emitted %v, dead letters %v; want 60 of each tenant, 15 in each partition", emitted, dead)
	}
}

// TestRateOfATenant protects that events over the rate become dead letters, duplicates included, while events of
// another tenant do not.
func TestRateOfATenant(t *testing.T) {
	t.Parallel()
	b := newBench(t, tenantRoutes("quota: {tenants: {noisy: {events_per_second: 0.01}}}")) // one in 400 s for each of 4 partitions
	b.createTopic("signals.raw", 4)
	i := b.ready(b.start(b.config("one")))
	b.produce(ofBothTenants(0, 100)...)
	b.produce(ofBothTenants(0, 100)...)
	b.drain(i, "signals.raw")
	if emitted, dead := b.tenantsOf("signals.unique"), b.tenantsOf("dead"); emitted["noisy"] != 4 || emitted["quiet"] != 100 || dead["noisy"] != 196 || dead["quiet"] != 0 {
		t.Errorf("emitted %v, dead letters %v", emitted, dead)
	}
	for _, r := range b.read("dead") {
		if reason := header(r, "oncebus-reason"); !strings.HasPrefix(reason, "quota: tenant noisy of route signals is over 0.01 events per second: this partition grants the next event in 6m") {
			t.Fatalf("reason %q", reason)
		}
	}
}

// TestShareOfAQuota protects that the shares of all tasks add up to the quota, with numbers of keys rounded up.
func TestShareOfAQuota(t *testing.T) {
	routes, err := rules.ParseRoutes("routes.yaml", []byte(tenantRoutes("quota: {keys: 10, events_per_second: 2.5, tenants: {a: {keys: 1}}}")))
	must(t, err)
	for _, c := range []struct {
		tenant   string
		tasks    int32
		keys     int64
		interval time.Duration
	}{{"b", 1, 10, 400 * time.Millisecond}, {"b", 4, 3, 1600 * time.Millisecond}, {"a", 4, 1, 1600 * time.Millisecond}, {"b", 0, 10, 400 * time.Millisecond}} {
		quota, _ := routes.Routes[0].Quota.Of([]byte(c.tenant))
		if got := app.ShareOf(quota, c.tasks); got.Keys != c.keys || got.Interval != c.interval {
			t.Errorf("tenant %s, %d tasks: %+v", c.tenant, c.tasks, got)
		}
	}
}

// TestHistoryPutsNoTenantOverItsQuota covers an app that starts on a topic with the events of hours: it reads them
// within seconds, and its inputs one after the other. A tenant that sent these events below its quota gets all of
// them, also if the process ends meanwhile. Events that it then sends at once are over its rate.
func TestHistoryPutsNoTenantOverItsQuota(t *testing.T) {
	t.Parallel()
	b := newBench(t, tenantRoutes("quota: {keys: 1600, events_per_second: 1}")) // it has some 600 keys in an hour
	h := history{partitions: 8, span: 6 * time.Hour, ids: 3600}
	b.createTopic("signals.raw", int32(h.partitions))
	records := h.records(5)
	for _, r := range records {
		r.Timestamp = r.Timestamp.Add(time.Since(time.UnixMilli(testTime)) - h.span)
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: "x-tenant", Value: []byte("acme")})
	}
	b.produce(records...)
	one := b.startWith(b.config("one"), often)
	b.wait("some events", func() bool { return len(b.read("signals.unique")) > h.ids/4 })
	must(t, one.stop())
	i := b.ready(b.startWith(b.config("two"), often))
	b.drain(i, "signals.raw")
	if emitted, dead := b.tenantsOf("signals.unique"), b.tenantsOf("dead"); emitted["acme"] != h.ids || len(dead) > 0 {
		t.Errorf("emitted %v, dead letters %v; want all %d ids", emitted, dead, h.ids)
	}
	b.upToDate()
	for id := range 1000 {
		b.produce(ofTenant("acme", 10_000+id))
	}
	b.drain(i, "signals.raw")
	if dead := b.tenantsOf("dead"); dead["acme"] < 700 {
		t.Errorf("%d dead letters of 1000 events at once", dead["acme"])
	}
}
