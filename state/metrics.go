package state

import (
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

// The places in which a look-up can find its answer.
const (
	answerOverlay = iota
	answerRecent
	answerPage
	answerFilter
	answerFalseHit
	answers
)

var answerNames = [answers]string{"overlay", "recent", "page", "filter", "false_hit"}

// metrics are the counters of a process's stores. They have no labels for tasks or keys. The gauges are sums
// over the open stores, made at each scrape.
type metrics struct {
	lookups       [answers]prometheus.Counter
	flushSeconds  prometheus.Histogram
	merges        prometheus.Counter
	mergedRows    prometheus.Counter
	evictedRows   prometheus.Counter
	orphanRuns    prometheus.Counter
	corruptStores prometheus.Counter
	collections   prometheus.Counter
	backpressure  prometheus.Counter

	lookupsVec *prometheus.CounterVec
	gauges     []gauge
}

// gauge is a value of a store, summed over all open stores.
type gauge struct {
	desc  *prometheus.Desc
	value func(Stats) float64
}

const metricPrefix = "oncebus_state_"

func newMetrics() *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: metricPrefix + name, Help: help})
	}
	m := &metrics{
		flushSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    metricPrefix + "flush_seconds",
			Help:    "Time to write a task's recent rows as a run, including the wait for a background job. Tasks are blocked when it exceeds the time in which they fill a table.",
			Buckets: []float64{.005, .02, .05, .1, .25, .5, 1, 2.5, 5, 15, 60},
		}),
		merges:        counter("merges_total", "Merges of runs."),
		mergedRows:    counter("merged_rows_total", "Rows read by merges. If they are many times the rows written, runs are too small: raise the memory for rows."),
		evictedRows:   counter("evicted_rows_total", "Expired rows removed from disk."),
		orphanRuns:    counter("orphans_removed_total", "Runs removed because the manifest does not name them: a kill left them or Badger restored them."),
		corruptStores: counter("corrupt_stores_total", "Stores with damaged files. Each is quarantined and rebuilt from the changelog; check the disk."),
		collections:   counter("value_log_collections_total", "Value-log files rewritten to free disk space."),
		backpressure:  counter("backpressure_seconds_total", "Time tasks waited for flushes or merges. A steady increase means that disk or CPU is too slow."),
		lookupsVec: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: metricPrefix + "lookups_total",
			Help: "Look-ups by source of the answer: overlay (rows that the open transaction added), recent (rows in memory), page (read from a run), filter (absent, no read), false_hit (absent, but a page was read).",
		}, []string{"answer"}),
	}
	for i, name := range answerNames {
		m.lookups[i] = m.lookupsVec.WithLabelValues(name)
	}
	sum := func(name, help string, value func(Stats) float64) {
		m.gauges = append(m.gauges, gauge{prometheus.NewDesc(metricPrefix+name, help, nil, nil), value})
	}
	sum("rows", "Rows in memory and in runs; an overwritten row counts until its run is merged.", func(s Stats) float64 { return float64(s.Rows) })
	sum("recent_rows", "Rows in memory only. A restore after a kill reads them from the changelog.", func(s Stats) float64 { return float64(s.RecentRows) })
	sum("runs", "Runs of all open stores.", func(s Stats) float64 { return float64(s.Runs) })
	sum("filter_bytes", "Memory of the runs' filters.", func(s Stats) float64 { return float64(s.FilterBytes) })
	sum("disk_bytes", "Disk space of all open stores.", func(s Stats) float64 { return float64(s.DiskBytes) })
	return m
}

func (m *metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{
		m.lookupsVec, m.flushSeconds, m.merges, m.mergedRows, m.evictedRows, m.orphanRuns,
		m.corruptStores, m.collections, m.backpressure,
	}
}

// Describe implements prometheus.Collector.
func (h *Host) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range h.metrics.collectors() {
		c.Describe(ch)
	}
	for _, g := range h.metrics.gauges {
		ch <- g.desc
	}
}

// Collect implements prometheus.Collector.
func (h *Host) Collect(ch chan<- prometheus.Metric) {
	for _, c := range h.metrics.collectors() {
		c.Collect(ch)
	}
	h.mu.Lock()
	stores := slices.Collect(maps.Keys(h.stores))
	h.mu.Unlock()
	stats := make([]Stats, 0, len(stores))
	for _, s := range stores {
		stats = append(stats, s.Stats())
	}
	for _, g := range h.metrics.gauges {
		var sum float64
		for _, st := range stats {
			sum += g.value(st)
		}
		ch <- prometheus.MustNewConstMetric(g.desc, prometheus.GaugeValue, sum)
	}
}

// publishCounters adds the owner's counts since the last transaction to the
// metrics.
func (s *Store) publishCounters() {
	s.recentRows.Store(int64(s.active.applied.rows))
	for i, n := range s.lookups {
		if n > 0 {
			s.host.metrics.lookups[i].Add(float64(n))
			s.lookups[i] = 0
		}
	}
}
