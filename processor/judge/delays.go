package judge

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"oncebus/processor/app"
)

// Delays counts how long after its first event each duplicate of the open transaction came, by route
// index.
type Delays struct {
	routes []delays
	used   bool
}

// delays has the delays of one route: counts by bucket (the bounds are app.DelayBounds) and their sum.
type delays struct {
	counts [len(app.DelayBounds) + 1]uint64
	sum    int64 // ms
}

func newDelays(routes int) Delays { return Delays{routes: make([]delays, routes)} }

// count adds the delay of one duplicate: number is its bucket (see app.DelayOf), ms its length.
func (d *Delays) count(route *app.Route, number int, ms int64) {
	d.used = true
	one := &d.routes[route.Index]
	one.counts[number]++
	one.sum += max(ms, 0)
}

func (d *Delays) reset() {
	if d.used {
		clear(d.routes)
		d.used = false
	}
}

// delayHistograms has the delays of committed transactions, as a Prometheus collector. It takes all delays of a
// transaction at once. The histogram type of the Prometheus library takes one delay at a time under a lock, and
// every duplicate would have to wait for that.
type delayHistograms struct {
	desc *prometheus.Desc

	mu  sync.Mutex
	all map[string]*delays // by route name
}

func newDelayHistograms() *delayHistograms {
	return &delayHistograms{
		desc: prometheus.NewDesc("oncebus_duplicate_delay_seconds",
			"Event time of duplicates after the first event of their key, by route. A route has none before its first duplicate, and one that comes before the first event counts as 0.",
			[]string{"route"}, nil),
		all: map[string]*delays{},
	}
}

// PublishDelays adds the delays of a committed transaction.
func (m *Metrics) PublishDelays(rt *app.App, d *Delays) {
	if !d.used {
		return
	}
	h := m.delays
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range d.routes {
		one := h.all[rt.Routes[i].Name]
		if one == nil {
			one = new(delays)
			h.all[rt.Routes[i].Name] = one
		}
		for k, n := range d.routes[i].counts {
			one.counts[k] += n
		}
		one.sum += d.routes[i].sum
	}
}

// Describe implements prometheus.Collector.
func (h *delayHistograms) Describe(descs chan<- *prometheus.Desc) { descs <- h.desc }

// Collect implements prometheus.Collector.
func (h *delayHistograms) Collect(metrics chan<- prometheus.Metric) {
	for _, m := range h.histograms() {
		metrics <- m
	}
}

// histograms returns the histograms of all routes. Collect sends them after the lock is released:
// otherwise a slow scrape would keep tasks from publishing their delays.
func (h *delayHistograms) histograms() (all []prometheus.Metric) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for name, one := range h.all {
		total, buckets := uint64(0), make(map[float64]uint64, len(app.DelayBounds))
		for k, n := range one.counts {
			if total += n; k < len(app.DelayBounds) {
				buckets[app.DelayBounds[k]] = total
			}
		}
		if total > 0 {
			all = append(all, prometheus.MustNewConstHistogram(h.desc, total, float64(one.sum)/1000, buckets, name))
		}
	}
	return all
}
