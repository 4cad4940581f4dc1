package judge

import (
	"github.com/prometheus/client_golang/prometheus"

	"oncebus/dedup"
	"oncebus/dedup/rules"
)

// Metrics are the series of judging and routing.
type Metrics struct {
	Events               *prometheus.CounterVec
	outcomes             *prometheus.CounterVec
	leaseExpirations     *prometheus.CounterVec
	keyDerivationSeconds prometheus.Histogram
	decisionSeconds      prometheus.Histogram
	Reread               prometheus.Counter
	byTally              [][]prometheus.Counter // [route index][tally]
}

// NewMetrics registers the series, with one per route and verdict.
func NewMetrics(reg prometheus.Registerer, routes *rules.Routes) *Metrics {
	m := &Metrics{
		Events: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "oncebus_events_total",
			Help: "Events judged in committed transactions, by route and verdict."}, []string{"route", "verdict"}),
		outcomes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "oncebus_outcomes_total",
			Help: "Outcomes of claims by route, kind and result: applied, repeated (came twice) or refused (old token, too late, unreadable)."}, []string{"route", "kind", "result"}),
		leaseExpirations: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "oncebus_lease_expirations_total",
			Help: "Claims without an outcome within their lease, taken over by the next event. Executors die, or the lease is too short."}, []string{"route"}),
		keyDerivationSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "oncebus_key_derivation_seconds",
			Help:    "Time to derive the dedup key of one event (one in 64 is timed).",
			Buckets: prometheus.ExponentialBuckets(0.0000005, 2, 16)}),
		decisionSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "oncebus_decision_seconds",
			Help:    "Time to look up and decide one event (one in 64 is timed).",
			Buckets: prometheus.ExponentialBuckets(0.0000005, 2, 16)}),
		Reread: prometheus.NewCounter(prometheus.CounterOpts{Name: "oncebus_reread_records_total",
			Help: "Records below a checkpoint that were read again and skipped; not duplicates."}),
	}
	reg.MustRegister(m.Events, m.outcomes, m.leaseExpirations, m.keyDerivationSeconds, m.decisionSeconds, m.Reread)
	for _, r := range routes.Routes {
		m.byTally = append(m.byTally, m.tallied(r.Name))
	}
	return m
}

// Publish adds what a committed transaction counted.
func (m *Metrics) Publish(counts []uint64) {
	for i, c := range counts {
		if c > 0 {
			m.byTally[i/tallies][i%tallies].Add(float64(c))
		}
	}
}

// A tally is something that is counted by route when its transaction is
// committed: verdicts, then outcomes by kind and result, then the rest.
type counterIndex int

const (
	tallyOutcomes   = counterIndex(len(dedup.Verdicts))
	tallyUnreadable = tallyOutcomes + counterIndex(len(dedup.OutcomeKinds))*counterIndex(outcomeResults)
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
func (m *Metrics) tallied(route string) []prometheus.Counter {
	var counters []prometheus.Counter
	for _, v := range dedup.Verdicts {
		counters = append(counters, m.Events.WithLabelValues(route, v.String()))
	}
	for _, kind := range dedup.OutcomeKinds {
		for _, result := range outcomeResultNames {
			counters = append(counters, m.outcomes.WithLabelValues(route, kind.String(), result))
		}
	}
	return append(counters, m.outcomes.WithLabelValues(route, unreadableOutcome, outcomeResultNames[outcomeRefused]), m.leaseExpirations.WithLabelValues(route))
}
