package processor

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"oncebus/processor/app"
	"oncebus/processor/kafka"
)

// Outcomes of a transaction: values of the label outcome.
const (
	outcomeCommitted = "committed"
	outcomeAborted   = "aborted"
	outcomeUnknown   = "unknown"
)

// metrics holds the series of the processor. Series whose labels are known at the start begin there with 0.
// A task deletes its own series when it closes.
type metrics struct {
	transactions *prometheus.CounterVec
	commit       *prometheus.HistogramVec
	lag          *prometheus.GaugeVec
	tasks        *prometheus.GaugeVec
	// unknownRoutes has no series until a task waits, because the routes are not known before.
	unknownRoutes *prometheus.GaugeVec
	rebuilt       *prometheus.CounterVec
	fenced        *prometheus.CounterVec
	rejoined      *prometheus.CounterVec
	purged        prometheus.Counter
	trimmed       prometheus.Counter
	brokerUp      prometheus.Gauge
	oversize      *prometheus.CounterVec
	timedOut      *prometheus.CounterVec
	bound         *prometheus.GaugeVec
	refused       *prometheus.CounterVec
	backlogs      prometheus.Gauge
	held          prometheus.Gauge
	schemaWaits   prometheus.Gauge
	// hanging has a series only for a partition with a hanging transaction.
	hanging *prometheus.GaugeVec
}

// observeHold publishes for how long a hold has been in force at a broker time; hold is nil without one.
func (m *metrics) observeHold(hold *app.Hold, now int64) {
	if hold == nil {
		m.held.Set(0)
		return
	}
	m.held.Set(max(0.001, float64(now-hold.Since.UnixMilli())/1000))
}

func perStage(name, help string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{"stage"})
}

func newMetrics(reg prometheus.Registerer) *metrics {
	taskLabels := []string{"topic", "partition"}
	m := &metrics{
		transactions: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "oncebus_transactions_total",
			Help: "Transactions by stage and outcome. After an unknown one the task reads its changelog; many of them point at the transaction coordinator."}, []string{"stage", "outcome"}),
		commit: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "oncebus_commit_seconds",
			Help:    "Time from the end of processing to the known end of the transaction: flush, offsets, end.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 14)}, []string{"stage"}),
		lag: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "oncebus_task_lag_records",
			Help: "Records between a task's next offset and the end of its partition; -1 until first read. Rising lag means events wait."}, taskLabels),
		tasks: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "oncebus_tasks",
			Help: "Assigned tasks by state; ready when all are running."}, []string{"state"}),
		unknownRoutes: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "oncebus_unknown_route_tasks",
			Help: "Tasks that wait at a record of a route that the routes file of this process does not have, by that route. Should return to 0 with the end of a rolling update."}, []string{"route"}),
		rebuilt: perStage("oncebus_clients_rebuilt_total",
			"Clients replaced after an error, such as an unknown commit outcome, by stage."),
		fenced: perStage("oncebus_fenced_total",
			"Times another process with the same ONCEBUS_INSTANCE_ID replaced a worker in its group, by stage. Should stay 0."),
		rejoined: perStage("oncebus_rejoins_total", "Times this process joined its group again because a partition had no owner, by stage."),
		purged: prometheus.NewCounter(prometheus.CounterOpts{Name: "oncebus_purged_records_total",
			Help: "Records of the repartition topic deleted below the checkpoints."}),
		trimmed: prometheus.NewCounter(prometheus.CounterOpts{Name: "oncebus_trimmed_records_total",
			Help: "Offsets of the changelogs deleted because no event needs their rows. Stands while stream time does, or without the right Delete."}),
		schemaWaits: prometheus.NewGauge(prometheus.GaugeOpts{Name: "oncebus_schema_waits",
			Help: "Partitions that wait until the schema of a record was read, because the schema registry does not answer, or has no such schema yet."}),
		brokerUp: prometheus.NewGauge(prometheus.GaugeOpts{Name: "oncebus_broker_up",
			Help: "1 while a broker responds, else 0."}),
		oversize: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "oncebus_oversize_batches_total",
			Help: "Batches skipped with a dead letter, by topic, because they decompress to more than ONCEBUS_MAX_DECOMPRESSED_BATCH_BYTES, or their records take more memory than ONCEBUS_MAX_DECOMPRESSED_BYTES, or they are damaged. Find their producer."}, []string{"topic"}),
		timedOut: perStage("oncebus_transaction_timeouts_total",
			"Transactions that took longer than ONCEBUS_TRANSACTION_TIMEOUT, by stage. Each makes the worker's next one smaller."),
		bound: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "oncebus_transaction_records_max",
			Help: "Most input records of a worker's next transaction, by stage and worker: 50000, less after transactions that timed out, until it has grown back."}, []string{"stage", "worker"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "oncebus_refused_records_total",
			Help: "Records that a broker refused for good, by topic: too large, or invalid for the topic. Their events are dead letters with the broker's error."}, []string{"topic"}),
		backlogs: prometheus.NewGauge(prometheus.GaugeOpts{Name: "oncebus_paused_backlogs",
			Help: "Input partitions with a backlog that the routing stage does not fetch for the moment, because the tasks are behind it. Live events go first."}),
		held: prometheus.NewGauge(prometheus.GaugeOpts{Name: "oncebus_hold_seconds",
			Help: "For how long a hold is in force, 0 without one. Meanwhile no input is processed, and the ingress responds with 503; oncebus release ends it."}),
	}
	m.hanging = prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "oncebus_hanging_transactions",
		Help: "1 for a partition with an open transaction that its coordinator has completed, or does not know, and that oncebus cannot close. Readers wait before it."}, taskLabels)
	reg.MustRegister(m.hanging, m.transactions, m.commit, m.lag, m.tasks, m.unknownRoutes, m.rebuilt, m.fenced, m.rejoined, m.purged, m.trimmed, m.brokerUp, m.oversize, m.timedOut, m.bound, m.refused, m.backlogs, m.held, m.schemaWaits)
	for _, stage := range []string{app.StageRoute, app.StageDedup} {
		m.commit.WithLabelValues(stage)
		m.rebuilt.WithLabelValues(stage)
		m.rejoined.WithLabelValues(stage)
		m.fenced.WithLabelValues(stage)
		m.timedOut.WithLabelValues(stage)
		for _, outcome := range []string{outcomeCommitted, outcomeAborted, outcomeUnknown} {
			m.transactions.WithLabelValues(stage, outcome)
		}
	}
	for state := range taskStates {
		m.tasks.WithLabelValues(state.String())
	}
	return m
}

// stageSeries are the series of one stage's transactions.
type stageSeries struct {
	committed, aborted, unknown, timedOut prometheus.Counter
	commitSeconds                         prometheus.Observer
}

func (m *metrics) ofStage(stage string) stageSeries {
	return stageSeries{
		committed:     m.transactions.WithLabelValues(stage, outcomeCommitted),
		aborted:       m.transactions.WithLabelValues(stage, outcomeAborted),
		unknown:       m.transactions.WithLabelValues(stage, outcomeUnknown),
		timedOut:      m.timedOut.WithLabelValues(stage),
		commitSeconds: m.commit.WithLabelValues(stage),
	}
}

// registerClock exports the estimate of broker time.
func registerClock(reg prometheus.Registerer, clock *app.BrokerClock) {
	reg.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "oncebus_broker_clock_offset_seconds",
			Help: "Broker time minus this machine's clock. Leases and events from the future are measured in broker time."}, func() float64 { return clock.Offset().Seconds() }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "oncebus_broker_clock_steps_total",
			Help: "Changes of the estimated broker time by 10 s or more, after a suspend of this machine or a change of a clock. Each restarts the leases."}, func() float64 { return float64(clock.Steps()) }))
}

// RegisterBudget exports the budget of the decompressed batches of a process.
func RegisterBudget(reg prometheus.Registerer, budget *kafka.Budget) {
	reg.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "oncebus_decompressed_bytes",
			Help: "Memory of decompressed batches and their records that the process has not freed yet."}, func() float64 { return float64(budget.Used()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "oncebus_decompressed_bytes_max",
			Help: "ONCEBUS_MAX_DECOMPRESSED_BYTES. A single batch may take more."}, func() float64 { return float64(budget.Limit()) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "oncebus_decompressions_refused_total",
			Help: "Batches that were fetched again later because the memory for decompressed batches was in use. If it rises all the time, raise ONCEBUS_MAX_DECOMPRESSED_BYTES, or find the producer of large batches."}, func() float64 { return float64(budget.Refusals()) }))
}

// keyCounts exports the sums of the key counts that the process's tasks published last.
type keyCounts struct {
	board                 *board
	total, active, oldest *prometheus.Desc
}

func newKeyCounts(b *board) *keyCounts {
	return &keyCounts{
		board: b,
		total: prometheus.NewDesc("oncebus_keys", "Stored keys, by namespace and status of their rows, in the tasks of this process. The other rows of oncebus_state_rows are evicted, overwritten or freed.",
			[]string{"namespace", "status"}, nil),
		active: prometheus.NewDesc("oncebus_keys_active", "Keys of oncebus_keys whose window is not over in stream time. The others are expired: stored for late events.",
			[]string{"namespace", "status"}, nil),
		oldest: prometheus.NewDesc("oncebus_keys_oldest_seconds", "Age of the oldest of these keys in event time. After keys were freed it may be a 64th of their retention too high.",
			[]string{"namespace", "status"}, nil),
	}
}

// Describe implements prometheus.Collector.
func (k *keyCounts) Describe(to chan<- *prometheus.Desc) {
	to <- k.total
	to <- k.active
	to <- k.oldest
}

// Collect implements prometheus.Collector.
func (k *keyCounts) Collect(to chan<- prometheus.Metric) {
	for _, n := range sumKeys(k.board.allTasks()) {
		to <- prometheus.MustNewConstMetric(k.total, prometheus.GaugeValue, float64(n.Total), n.Namespace, n.Status)
		to <- prometheus.MustNewConstMetric(k.active, prometheus.GaugeValue, float64(n.Active), n.Namespace, n.Status)
		to <- prometheus.MustNewConstMetric(k.oldest, prometheus.GaugeValue, float64(n.OldestMS)/1000, n.Namespace, n.Status)
	}
}

// lagTimes exports how long the oldest unprocessed record of each task has waited. It computes the time at the
// scrape, because a task that makes no progress publishes nothing.
type lagTimes struct {
	board *board
	clock *app.BrokerClock
	desc  *prometheus.Desc
}

func newLagTimes(b *board, clock *app.BrokerClock) *lagTimes {
	return &lagTimes{board: b, clock: clock, desc: prometheus.NewDesc("oncebus_task_lag_seconds",
		"How long the oldest record that a task has not processed has waited, in broker time; 0 without lag, -1 until first read. In a prepartitioned topic it is measured from the records' own timestamps.",
		[]string{"topic", "partition"}, nil)}
}

// Describe implements prometheus.Collector.
func (l *lagTimes) Describe(to chan<- *prometheus.Desc) { to <- l.desc }

// Collect implements prometheus.Collector. It exports a task once: while its partition moves between two
// workers of the process, both may publish it.
func (l *lagTimes) Collect(to chan<- prometheus.Metric) {
	now, seen := l.clock.Now(), map[app.TaskID]bool{}
	for _, t := range l.board.unsortedTasks() {
		if seen[t.id] {
			continue
		}
		seen[t.id] = true
		to <- prometheus.MustNewConstMetric(l.desc, prometheus.GaugeValue, t.clock.seconds(now), t.id.Topic, strconv.Itoa(int(t.id.Partition)))
	}
}
