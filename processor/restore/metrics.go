package restore

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"oncebus/processor/app"
)

// Metrics has the metrics of restores and of the state directory's disk.
type Metrics struct {
	Restored    prometheus.Counter
	restoreLeft *prometheus.GaugeVec
	restoreTime prometheus.Histogram
	restores    *prometheus.CounterVec
	standbyRows prometheus.Counter
	standbyLag  *prometheus.GaugeVec
	Quarantined prometheus.Counter
	DiskFree    prometheus.Gauge
	diskPause   prometheus.Gauge
	DiskPaused  prometheus.Gauge
	stalled     *prometheus.GaugeVec
	refused     *prometheus.GaugeVec
}

// localWarm and localCold are the values of the label local_state.
const localWarm, localCold = "warm", "cold"

// NewMetrics registers the metrics with reg.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	taskLabels := []string{"topic", "partition"}
	m := &Metrics{
		Restored: prometheus.NewCounter(prometheus.CounterOpts{Name: "oncebus_restored_rows_total",
			Help: "Changelog rows read to bring local state up to date."}),
		restoreLeft: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "oncebus_restore_remaining_records",
			Help: "Changelog offsets a restoring task still has to read; stuck above 0 means an open transaction or a lost leader."}, taskLabels),
		restoreTime: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "oncebus_restore_seconds",
			Help:    "Time a task took from assignment, or from an unknown commit outcome, to running.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 10)}),
		restores: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "oncebus_restores_total",
			Help: "Restores of tasks that ended, by local state: warm (read only the changelog after it) or cold (read all of the changelog)."}, []string{"local_state"}),
		standbyRows: prometheus.NewCounter(prometheus.CounterOpts{Name: "oncebus_standby_rows_total",
			Help: "Changelog rows read for tasks of other processes (ONCEBUS_STANDBY), and for new tasks before a move acts."}),
		standbyLag: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "oncebus_standby_lag_records",
			Help: "Changelog offsets that a standby lacks, up to the last stable offset: of a task of another process, or of one that a move prepares."}, taskLabels),
		Quarantined: prometheus.NewCounter(prometheus.CounterOpts{Name: "oncebus_quarantined_stores_total",
			Help: "Local stores quarantined as corrupt, foreign or out of step with the changelog, and rebuilt from it. Should stay 0: look at the disk."}),
		DiskFree: prometheus.NewGauge(prometheus.GaugeOpts{Name: "oncebus_disk_free_bytes",
			Help: "Free space on the disk of the state directory, at the last check."}),
		diskPause: prometheus.NewGauge(prometheus.GaugeOpts{Name: "oncebus_disk_pause_bytes",
			Help: "Free space of that disk below which tasks pause: ONCEBUS_DISK_MIN_FREE_PERCENT of it, or ONCEBUS_DISK_MIN_FREE_BYTES."}),
		DiskPaused: prometheus.NewGauge(prometheus.GaugeOpts{Name: "oncebus_disk_paused",
			Help: "1 while tasks are paused because that disk fills; they resume by themselves when it has space."}),
		stalled: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "oncebus_restore_stalled",
			Help: "1 while a restore has read nothing for a minute; the log and /readyz name the open transaction it waits for."}, taskLabels),
	}
	m.refused = prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "oncebus_refused_partitions",
		Help: "Partitions that wait for a decision of an operator, by problem; 'oncebus accept' lists them."}, []string{"problem"})
	for _, state := range []string{localWarm, localCold} {
		m.restores.WithLabelValues(state)
	}
	reg.MustRegister(m.refused, m.Restored, m.restoreLeft, m.restoreTime, m.restores, m.standbyRows, m.standbyLag, m.Quarantined, m.DiskFree, m.diskPause, m.DiskPaused, m.stalled)
	return m
}

// AddRefused adds n to the number of partitions that wait for a decision because of a problem.
func (m *Metrics) AddRefused(problem app.Problem, n float64) {
	m.refused.WithLabelValues(string(problem)).Add(n)
}

// DeleteSeries deletes the series of a closed task.
func (m *Metrics) DeleteSeries(id app.TaskID) {
	m.restoreLeft.DeleteLabelValues(id.Topic, strconv.Itoa(int(id.Partition)))
}
