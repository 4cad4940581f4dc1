package processor

import (
	"github.com/prometheus/client_golang/prometheus"

	"oncebus/dedup"
	"oncebus/dedup/rules"
)

// sampleEvery is how many records share one timing of key derivation or
// check: reading the clock twice costs as much as the decision itself.
const sampleEvery = 64

// Outcomes of a transaction, as the metric's label has them.
const (
	outcomeCommitted = "committed"
	outcomeAborted   = "aborted"
	outcomeUnknown   = "unknown"
)

// The stages of the way of a record, as labels have them.
const (
	stageRoute = "route"
	stageDedup = "dedup"
)

// metrics is every series of the processor. Labels that are known at the
// start are resolved there; per-task series go when their task closes.
type metrics struct {
	events               *prometheus.CounterVec
	transactions         *prometheus.CounterVec
	commit               *prometheus.HistogramVec
	keyDerivationSeconds prometheus.Histogram
	decisionSeconds      prometheus.Histogram
	lag                  *prometheus.GaugeVec
	tasks                *prometheus.GaugeVec
	restored             prometheus.Counter
	restoreLeft          *prometheus.GaugeVec
	restoreTime          prometheus.Histogram
	reread               prometheus.Counter
	rebuilt              *prometheus.CounterVec
	fenced               *prometheus.CounterVec
	rejoined             *prometheus.CounterVec
	quarantined          prometheus.Counter
	purged               prometheus.Counter
	brokerUp             prometheus.Gauge
	diskFree             prometheus.Gauge
	diskPaused           prometheus.Gauge
	oversize             *prometheus.CounterVec
	stalled              *prometheus.GaugeVec
	outcomes             *prometheus.CounterVec
	leaseExpirations     *prometheus.CounterVec
	byTally              [][]prometheus.Counter // [route index][tally]
}

func perStage(name, help string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{"stage"})
}

func newMetrics(reg prometheus.Registerer, routes *rules.Routes) *metrics {
	taskLabels := []string{"topic", "partition"}
	m := &metrics{
		events: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "oncebus_events_total",
			Help: "Events judged in committed transactions, by route and verdict."}, []string{"route", "verdict"}),
		transactions: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "oncebus_transactions_total",
			Help: "Transactions by stage and outcome. After an unknown one the task reads its changelog; many of them point at the transaction coordinator."}, []string{"stage", "outcome"}),
		commit: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "oncebus_commit_seconds",
			Help:    "Time from the end of processing to the known end of the transaction: flush, offsets, end.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 14)}, []string{"stage"}),
		keyDerivationSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "oncebus_key_derivation_seconds",
			Help:    "Time to derive the dedup key of one event (one in 64 is timed).",
			Buckets: prometheus.ExponentialBuckets(0.0000005, 2, 16)}),
		decisionSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "oncebus_decision_seconds",
			Help:    "Time to look up and decide one event (one in 64 is timed).",
			Buckets: prometheus.ExponentialBuckets(0.0000005, 2, 16)}),
		lag: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "oncebus_task_lag_records",
			Help: "Records between a task's next offset and the end of its partition; -1 until first read. Rising lag means events wait."}, taskLabels),
		tasks: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "oncebus_tasks",
			Help: "Assigned tasks by state; ready when all are running."}, []string{"state"}),
		restored: prometheus.NewCounter(prometheus.CounterOpts{Name: "oncebus_restored_rows_total",
			Help: "Changelog rows read to bring local state up to date."}),
		restoreLeft: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "oncebus_restore_remaining_records",
			Help: "Changelog offsets a restoring task still has to read; stuck above 0 means an open transaction or a lost leader."}, taskLabels),
		restoreTime: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "oncebus_restore_seconds",
			Help:    "Time a task took from assignment, or from an unknown commit outcome, to running.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 10)}),
		reread: prometheus.NewCounter(prometheus.CounterOpts{Name: "oncebus_reread_records_total",
			Help: "Records below a checkpoint that were read again and skipped; not duplicates."}),
		rebuilt: perStage("oncebus_clients_rebuilt_total",
			"Clients replaced after an error, such as an unknown commit outcome, by stage."),
		fenced: perStage("oncebus_fenced_total",
			"Times another process with the same ONCEBUS_INSTANCE_ID replaced a worker in its group, by stage. Should stay 0."),
		rejoined: perStage("oncebus_rejoins_total", "Times this process joined its group again because a partition had no owner, by stage."),
		quarantined: prometheus.NewCounter(prometheus.CounterOpts{Name: "oncebus_quarantined_stores_total",
			Help: "Local stores quarantined as corrupt, foreign or out of step with the changelog, and rebuilt from it. Should stay 0: look at the disk."}),
		purged: prometheus.NewCounter(prometheus.CounterOpts{Name: "oncebus_purged_records_total",
			Help: "Records of the repartition topic deleted below the checkpoints."}),
		brokerUp: prometheus.NewGauge(prometheus.GaugeOpts{Name: "oncebus_broker_up",
			Help: "1 while a broker responds, else 0."}),
		diskFree: prometheus.NewGauge(prometheus.GaugeOpts{Name: "oncebus_disk_free_bytes",
			Help: "Free space on the disk of the state directory, at the last check."}),
		diskPaused: prometheus.NewGauge(prometheus.GaugeOpts{Name: "oncebus_disk_paused",
			Help: "1 while tasks are paused because that disk fills; they resume by themselves when it has space."}),
		oversize: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "oncebus_oversize_batches_total",
			Help: "Batches skipped with a dead letter, by topic, because they decompress to more than ONCEBUS_MAX_DECOMPRESSED_BATCH_BYTES. Find their producer."}, []string{"topic"}),
		outcomes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "oncebus_outcomes_total",
			Help: "Outcomes of claims by route, kind and result: applied, repeated (came twice) or refused (old token, too late, unreadable)."}, []string{"route", "kind", "result"}),
		leaseExpirations: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "oncebus_lease_expirations_total",
			Help: "Claims without an outcome within their lease, taken over by the next event. Executors die, or the lease is too short."}, []string{"route"}),
		stalled: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "oncebus_restore_stalled",
			Help: "1 while a restore has read nothing for a minute; the log and /readyz name the open transaction it waits for."}, taskLabels),
	}
	reg.MustRegister(m.events, m.transactions, m.commit, m.keyDerivationSeconds, m.decisionSeconds, m.lag, m.tasks, m.restored,
		m.restoreLeft, m.restoreTime, m.reread, m.rebuilt, m.fenced, m.rejoined, m.quarantined, m.purged, m.brokerUp, m.diskFree, m.diskPaused, m.oversize, m.stalled, m.outcomes, m.leaseExpirations)
	for _, r := range routes.Routes {
		m.byTally = append(m.byTally, m.tallied(r.Name))
	}
	for _, stage := range []string{stageRoute, stageDedup} {
		m.commit.WithLabelValues(stage)
		m.rebuilt.WithLabelValues(stage)
		m.rejoined.WithLabelValues(stage)
		m.fenced.WithLabelValues(stage)
		for _, outcome := range []string{outcomeCommitted, outcomeAborted, outcomeUnknown} {
			m.transactions.WithLabelValues(stage, outcome)
		}
	}
	for state := range taskStates {
		m.tasks.WithLabelValues(state.String())
	}
	return m
}

// publish adds what a committed transaction counted.
func (m *metrics) publish(counts []uint64) {
	for i, c := range counts {
		if c > 0 {
			m.byTally[i/tallies][i%tallies].Add(float64(c))
		}
	}
}

// A tally is something that is counted by route when its transaction is
// committed: verdicts, then outcomes by kind and result, then the rest.
type tally int

const (
	tallyOutcomes   = tally(len(dedup.Verdicts))
	tallyUnreadable = tallyOutcomes + tally(len(dedup.OutcomeKinds))*tally(outcomeResults)
	tallyReclaimed  = tallyUnreadable + 1
	tallies         = int(tallyReclaimed) + 1
)

// outcomeResult is what became of an outcome.
type outcomeResult int

const (
	outcomeApplied  outcomeResult = iota
	outcomeRepeated               // it came twice: counts once
	outcomeRefused                // its token is old, or it comes too late
	outcomeResults
)

var outcomeResultNames = [outcomeResults]string{"applied", "repeated", "refused"}

// unreadableOutcome is the label of an outcome without a kind or a token.
const unreadableOutcome = "unreadable"

// tallied returns the counters of a route in the order of tallies.
func (m *metrics) tallied(route string) []prometheus.Counter {
	var counters []prometheus.Counter
	for _, v := range dedup.Verdicts {
		counters = append(counters, m.events.WithLabelValues(route, v.String()))
	}
	for _, kind := range dedup.OutcomeKinds {
		for _, result := range outcomeResultNames {
			counters = append(counters, m.outcomes.WithLabelValues(route, kind.String(), result))
		}
	}
	return append(counters, m.outcomes.WithLabelValues(route, unreadableOutcome, outcomeResultNames[outcomeRefused]), m.leaseExpirations.WithLabelValues(route))
}
