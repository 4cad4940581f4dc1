package processor

import (
	"github.com/prometheus/client_golang/prometheus"

	"oncebus/processor/app"
)

// tenantCounts exports the events of tenants in the tasks of this process. No label has the name of a tenant:
// names may be secrets, and senders could make up any number of them.
type tenantCounts struct {
	board                 *board
	tenants, events, over *prometheus.Desc
}

func newTenantCounts(b *board) *tenantCounts {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc(name, help+" `oncebus stats` names the tenants.", []string{"route"}, nil)
	}
	return &tenantCounts{
		board:   b,
		tenants: desc("oncebus_tenants", "Tenants of a route with an account in a task of this process, at most; a tenant may have one in each task."),
		events:  desc("oncebus_tenant_events", "Events of tenants by route since the app began, in the tasks of this process. A gauge, as a task may move to another process."),
		over:    desc("oncebus_tenant_over_quota", "Events over the quota of their tenant by route since the app began, in the tasks of this process: dead letters. A gauge, as a task may move to another process."),
	}
}

// Describe implements prometheus.Collector.
func (t *tenantCounts) Describe(to chan<- *prometheus.Desc) {
	to <- t.tenants
	to <- t.events
	to <- t.over
}

// Collect implements prometheus.Collector.
func (t *tenantCounts) Collect(to chan<- prometheus.Metric) {
	all := map[string]app.TenantSums{}
	for _, task := range t.board.allTasks() {
		for _, one := range task.Tenants {
			sum := all[one.Route]
			sum.Add(&one.TenantCounts)
			sum.Tenants = max(sum.Tenants, one.Tenants)
			all[one.Route] = sum
		}
	}
	for route, one := range all {
		for desc, n := range map[*prometheus.Desc]float64{t.tenants: float64(one.Tenants), t.events: float64(one.Events), t.over: float64(one.Over)} {
			to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, n, route)
		}
	}
}
