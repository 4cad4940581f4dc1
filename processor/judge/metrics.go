package judge

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/app"
)

// Metrics has the Prometheus series of judging and routing.
type Metrics struct {
	Events               *prometheus.CounterVec
	deadLetters          *prometheus.CounterVec
	collisions           *prometheus.CounterVec
	outcomes             *prometheus.CounterVec
	leaseExpirations     *prometheus.CounterVec
	unanswered           *prometheus.CounterVec
	ended                *prometheus.CounterVec
	keyDerivationSeconds prometheus.Histogram
	decisionSeconds      prometheus.Histogram
	Reread               prometheus.Counter
	Skipped              prometheus.Counter
	delays               *delayHistograms
	counters             sync.Map // by route name: []prometheus.Counter, by counterIndex
}

// NewMetrics registers the series, with a counter for each route and verdict.
func NewMetrics(reg prometheus.Registerer, routes *rules.Routes) *Metrics {
	m := &Metrics{
		Events: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "oncebus_events_total",
			Help: "Events judged in committed transactions, by route and verdict."}, []string{"route", "verdict"}),
		deadLetters: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "oncebus_dead_letters_total",
			Help: "Records produced to the dead-letter topic in committed transactions, by route. Their header oncebus-reason says why; oncebus_events_total has their verdicts."}, []string{"route"}),
		collisions: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "oncebus_collisions_total",
			Help: "Events with the key of another one and other details, by route, without those that collision: reject refuses to their senders: the key may not identify the event."}, []string{"route"}),
		outcomes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "oncebus_outcomes_total",
			Help: "Outcomes of claims by route, kind and result: applied, repeated (came twice), refused (old token, too late, unreadable), conflicting (refused: its attempt has another result) or superseded (answer to a start or renewal)."}, []string{"route", "kind", "result"}),
		leaseExpirations: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "oncebus_lease_expirations_total",
			Help: "Claims without an outcome within their lease, taken over by the next event. Executors die, or the lease is too short."}, []string{"route"}),
		unanswered: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "oncebus_unanswered_requests_total",
			Help: "Requests in claim mode that waited for an outcome and were answered without one, by route and cause: lease (it ended) or window (the claim was evicted)."}, []string{"route", "cause"}),
		keyDerivationSeconds: app.KeySeconds(reg),
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "oncebus_keys_ended_total",
			Help: "Keys that stream time left behind, by namespace and what ended: window (an event with the key comes out again) or retention (evicted). They count in steps of a 64th of their retention."}, []string{"namespace", "ended"}),
		decisionSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "oncebus_decision_seconds",
			Help:    "Time to look up and decide one event (one in 64 is timed).",
			Buckets: prometheus.ExponentialBuckets(0.0000005, 2, 16)}),
		Skipped: prometheus.NewCounter(prometheus.CounterOpts{Name: "oncebus_skipped_records_total",
			Help: "Records of the repartition topic that no build of oncebus could read here, and that an operator skipped with 'oncebus accept --skip'."}),
		Reread: prometheus.NewCounter(prometheus.CounterOpts{Name: "oncebus_reread_records_total",
			Help: "Records below a checkpoint that were read again and skipped; not duplicates."}),
	}
	m.delays = newDelayHistograms()
	reg.MustRegister(m.delays, m.Events, m.deadLetters, m.collisions, m.outcomes, m.leaseExpirations, m.unanswered, m.ended, m.decisionSeconds, m.Reread, m.Skipped)
	m.Prepare(routes)
	return m
}

// Prepare creates the series of routes, so that they show 0 before the first event.
func (m *Metrics) Prepare(routes *rules.Routes) {
	for _, r := range routes.Routes {
		m.counters.Store(r.Name, m.countersOf(r.Name, r.Mode == rules.ClaimMode))
	}
}

// Publish adds the counts of a committed transaction. counts has countersMax counters for each route of
// the app, by route index.
func (m *Metrics) Publish(rt *app.App, counts []uint64) {
	for i, c := range counts {
		if c == 0 {
			continue
		}
		route, counter := rt.Routes[i/countersMax], i%countersMax
		// With hundreds of namespaces the series of ended keys would be much of a scrape. So such a series
		// begins with the first ended key.
		if at := counterIndex(counter); at >= endedWindows {
			m.ended.WithLabelValues(route.Namespace, map[counterIndex]string{endedWindows: "window", endedRetentions: "retention"}[at]).Add(float64(c))
			continue
		}
		known, _ := m.counters.Load(route.Name)
		counters, _ := known.([]prometheus.Counter)
		if counter >= len(counters) { // of a route that is no longer there, or of claims in a route that is now in plain mode
			counters = m.countersOf(route.Name, counter > int(collisions))
		}
		counters[counter].Add(float64(c))
	}
}

// counterIndex is the index of a counter among the counters of a route: first the verdicts, then dead
// letters, collisions, outcomes by kind and result, the others, and at the end the ended keys of the
// route's namespace. The counters change when a transaction is committed.
type counterIndex int

const (
	deadLetters        = counterIndex(len(dedup.Verdicts))
	collisions         = deadLetters + 1
	firstOutcome       = deadLetters + 2
	unreadableOutcomes = firstOutcome + counterIndex(len(dedup.OutcomeKinds))*counterIndex(outcomeResults)
	leaseExpirations   = unreadableOutcomes + 1
	unansweredLease    = leaseExpirations + 1
	unansweredWindow   = leaseExpirations + 2
	endedWindows       = leaseExpirations + 3
	endedRetentions    = leaseExpirations + 4
	countersMax        = int(endedRetentions) + 1
)

// outcomeResult is the result of applying an outcome.
type outcomeResult int

const (
	outcomeApplied     outcomeResult = iota
	outcomeRepeated                  // the same outcome was applied before
	outcomeRefused                   // the token is old, or the outcome is too late
	outcomeConflicting               // the attempt was completed with another result
	outcomeSuperseded                // a start or renewal of an attempt that must not run any more
	outcomeResults
)

var outcomeResultNames = [outcomeResults]string{"applied", "repeated", "refused", "conflicting", "superseded"}

// unreadableOutcome is the label for an outcome from which no kind or token could be read.
const unreadableOutcome = "unreadable"

// countersOf returns the counters of a route in the order of counterIndex. A route in plain mode gets
// only the counters of verdicts, dead letters and collisions: with hundreds of routes, the others would
// be most of a scrape.
func (m *Metrics) countersOf(route string, claims bool) []prometheus.Counter {
	var all []prometheus.Counter
	for _, v := range dedup.Verdicts {
		all = append(all, m.Events.WithLabelValues(route, v.String()))
	}
	all = append(all, m.deadLetters.WithLabelValues(route), m.collisions.WithLabelValues(route))
	if !claims {
		return all
	}
	for _, kind := range dedup.OutcomeKinds {
		for _, result := range outcomeResultNames {
			all = append(all, m.outcomes.WithLabelValues(route, kind.String(), result))
		}
	}
	return append(all, m.outcomes.WithLabelValues(route, unreadableOutcome, outcomeResultNames[outcomeRefused]), m.leaseExpirations.WithLabelValues(route),
		m.unanswered.WithLabelValues(route, "lease"), m.unanswered.WithLabelValues(route, "window"))
}
