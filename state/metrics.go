package state

import (
	"github.com/prometheus/client_golang/prometheus"
)

// Where a look-up was answered.
const (
	answerOverlay = iota
	answerRecent
	answerPage
	answerFilter
	answerFalseHit
	answers
)

var answerNames = [answers]string{"overlay", "recent", "page", "filter", "false_hit"}

// metrics are the counters of a process's stores. None has a label for a task
// or key. The gauges are summed over the open stores when they are asked for.
type metrics struct {
	lookups      [answers]prometheus.Counter
	flushSeconds prometheus.Histogram
	merges       prometheus.Counter
	mergedRows   prometheus.Counter
	evicted      prometheus.Counter
	orphans      prometheus.Counter
	corrupt      prometheus.Counter
	collections  prometheus.Counter
	backpressure prometheus.Counter

	lookupsVec *prometheus.CounterVec
	gauges     []gauge
}

// gauge is a figure of a store that is summed over all open ones.
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
			Help:    "Time to write a task's recent rows as a run, waiting for a place included. More than the time a task takes to fill its table means that tasks wait.",
			Buckets: []float64{.005, .02, .05, .1, .25, .5, 1, 2.5, 5, 15, 60},
		}),
		merges:       counter("merges_total", "Merges of runs."),
		mergedRows:   counter("merged_rows_total", "Rows read by merges. Many times the rows written means that runs are too small: raise the memory for rows."),
		evicted:      counter("evicted_rows_total", "Rows removed because their window is over."),
		orphans:      counter("orphans_removed_total", "Runs found in the files that no manifest names, left by a kill or brought back by Badger, and removed."),
		corrupt:      counter("corrupt_stores_total", "Stores whose files could not be trusted. Each is set aside and rebuilt from the changelog; look at the disk."),
		collections:  counter("value_log_collections_total", "Value-log files rewritten to give space back."),
		backpressure: counter("backpressure_seconds_total", "Time tasks waited for flushes or merges. Growing steadily means that disk or CPU cannot keep up."),
		lookupsVec: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: metricPrefix + "lookups_total",
			Help: "Look-ups by where they were answered: overlay (rows of the open transaction), recent (rows in memory), page (read from a run), filter (absent, no read), false_hit (absent, but a page was read).",
		}, []string{"answer"}),
	}
	for i, name := range answerNames {
		m.lookups[i] = m.lookupsVec.WithLabelValues(name)
	}
	sum := func(name, help string, value func(Stats) float64) {
		m.gauges = append(m.gauges, gauge{prometheus.NewDesc(metricPrefix+name, help, nil, nil), value})
	}
	sum("rows", "Rows held, in memory and in runs; an overwritten row counts until its run is merged.", func(s Stats) float64 { return float64(s.Rows) })
	sum("recent_rows", "Rows in memory only. After a kill they are read from the changelog.", func(s Stats) float64 { return float64(s.RecentRows) })
	sum("runs", "Runs of all open stores.", func(s Stats) float64 { return float64(s.Runs) })
	sum("filter_bytes", "Memory of the runs' filters.", func(s Stats) float64 { return float64(s.FilterBytes) })
	sum("disk_bytes", "Disk space of all open stores.", func(s Stats) float64 { return float64(s.DiskBytes) })
	return m
}

func (m *metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{
		m.lookupsVec, m.flushSeconds, m.merges, m.mergedRows, m.evicted, m.orphans,
		m.corrupt, m.collections, m.backpressure,
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
	stats := make([]Stats, 0, len(h.stores))
	for s := range h.stores {
		stats = append(stats, s.gauges())
	}
	dirs := make([]string, 0, len(h.stores))
	for s := range h.stores {
		dirs = append(dirs, s.dir)
	}
	h.mu.Unlock()
	for _, dir := range dirs {
		stats = append(stats, Stats{DiskBytes: diskBytes(dir)})
	}
	for _, g := range h.metrics.gauges {
		var sum float64
		for _, st := range stats {
			sum += g.value(st)
		}
		ch <- prometheus.MustNewConstMetric(g.desc, prometheus.GaugeValue, sum)
	}
}

// publishCounters adds up what the owner counted since the last transaction.
func (s *Store) publishCounters() {
	s.recentRows.Store(int64(s.active.rows))
	for i, n := range s.lookups {
		if n > 0 {
			s.host.metrics.lookups[i].Add(float64(n))
			s.lookups[i] = 0
		}
	}
}
