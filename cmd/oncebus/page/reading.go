package page

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"oncebus/dedup"
)

// reading has the metrics of one moment, from which snapshots and samples are computed. If several processes
// share the registry, the label process tells them apart; otherwise the label is "".
type reading struct {
	at         time.Time
	events     map[string]*counts // by route
	tasks      map[taskKey]taskReading
	commits    map[string]histogram // by stage
	codes      map[string]float64   // HTTP responses by status code
	responses  histogram
	senders    map[[2]string]float64 // duplicates by route and sender
	hasSenders bool
	shadows    map[[2]string]float64 // events of shadows by route and fate
	hasHTTP    bool
	inFlight   float64
	brokerUp   *bool
	state      float64 // bytes
	free       *float64
	paused     bool
	started    float64 // Unix seconds
	cpu        float64 // seconds
	resident   float64
	goroutines float64
}

// counts has the number of events by verdict, in the order of dedup.Verdicts.
type counts [len(dedup.Verdicts)]float64

var verdictIndex = func() map[string]int {
	index := map[string]int{}
	for i, v := range dedup.Verdicts {
		index[v.String()] = i
	}
	return index
}()

func (c *counts) add(other *counts) {
	if other == nil {
		return
	}
	for i, n := range other {
		c[i] += n
	}
}

func (c *counts) total() (all float64) {
	for _, n := range c {
		all += n
	}
	return all
}

// duplicates sums the verdicts that mean a duplicate, as the alert OncebusDuplicateRateHigh does.
func (c *counts) duplicates() (n float64) {
	for i, v := range dedup.Verdicts {
		if v.IsDuplicate() {
			n += c[i]
		}
	}
	return n
}

// since returns the counts since earlier counts; nil stands for none.
func (c *counts) since(earlier *counts) (d counts) {
	for i, n := range c {
		if d[i] = n; earlier != nil {
			d[i] = max(0, n-earlier[i])
		}
	}
	return d
}

// taskKey identifies a task in the metrics.
type taskKey struct{ process, topic, partition string }

// taskReading has the metrics of a task; lagRecords and lagSeconds are -1 while they are not known.
type taskReading struct {
	lagRecords, lagSeconds, remaining float64
	stalled                           bool
}

// read gathers the metrics.
func read(from prometheus.Gatherer, at time.Time) (*reading, error) {
	families, err := from.Gather()
	if err != nil {
		return nil, err
	}
	r := &reading{
		at: at, events: map[string]*counts{}, tasks: map[taskKey]taskReading{}, commits: map[string]histogram{},
		codes: map[string]float64{}, senders: map[[2]string]float64{}, shadows: map[[2]string]float64{},
	}
	for _, f := range families {
		if take := takers[f.GetName()]; take != nil {
			for _, m := range f.GetMetric() {
				take(r, m)
			}
		}
	}
	return r, nil
}

// takers has, for each metric by its name, the function that stores a series of the metric in a reading.
var takers = map[string]func(*reading, *dto.Metric){
	"oncebus_events_total": func(r *reading, m *dto.Metric) {
		route := Label(m, "route")
		if r.events[route] == nil {
			r.events[route] = new(counts)
		}
		if i, ok := verdictIndex[Label(m, "verdict")]; ok {
			r.events[route][i] += value(m)
		}
	},
	"oncebus_task_lag_records": func(r *reading, m *dto.Metric) {
		r.task(m, func(t *taskReading) { t.lagRecords = value(m) })
	},
	"oncebus_task_lag_seconds": func(r *reading, m *dto.Metric) {
		r.task(m, func(t *taskReading) { t.lagSeconds = value(m) })
	},
	"oncebus_restore_remaining_records": func(r *reading, m *dto.Metric) {
		r.task(m, func(t *taskReading) { t.remaining = value(m) })
	},
	"oncebus_restore_stalled": func(r *reading, m *dto.Metric) {
		r.task(m, func(t *taskReading) { t.stalled = value(m) > 0 })
	},
	"oncebus_commit_seconds": func(r *reading, m *dto.Metric) {
		stage := Label(m, "stage")
		r.commits[stage] = r.commits[stage].plus(histogramOf(m))
	},
	"oncebus_http_requests_total": func(r *reading, m *dto.Metric) {
		r.codes[Label(m, "code")] += value(m)
	},
	"oncebus_http_request_seconds": func(r *reading, m *dto.Metric) {
		r.responses = r.responses.plus(histogramOf(m))
	},
	"oncebus_http_requests_in_flight": func(r *reading, m *dto.Metric) {
		r.hasHTTP = true
		r.inFlight += value(m)
	},
	"oncebus_shadow_events": func(r *reading, m *dto.Metric) {
		r.shadows[[2]string{Label(m, "route"), Label(m, "fate")}] += value(m)
	},
	"oncebus_sender_duplicates": func(r *reading, m *dto.Metric) {
		r.hasSenders = true
		r.senders[[2]string{Label(m, "route"), Label(m, "sender")}] += value(m)
	},
	"oncebus_broker_up": func(r *reading, m *dto.Metric) {
		up := value(m) > 0 && (r.brokerUp == nil || *r.brokerUp)
		r.brokerUp = &up
	},
	"oncebus_state_disk_bytes": func(r *reading, m *dto.Metric) { r.state += value(m) },
	"oncebus_disk_free_bytes": func(r *reading, m *dto.Metric) {
		if free := value(m); r.free == nil || free < *r.free {
			r.free = &free
		}
	},
	"oncebus_disk_paused":           func(r *reading, m *dto.Metric) { r.paused = r.paused || value(m) > 0 },
	"process_start_time_seconds":    func(r *reading, m *dto.Metric) { r.started = value(m) },
	"process_cpu_seconds_total":     func(r *reading, m *dto.Metric) { r.cpu = value(m) },
	"process_resident_memory_bytes": func(r *reading, m *dto.Metric) { r.resident = value(m) },
	"go_goroutines":                 func(r *reading, m *dto.Metric) { r.goroutines = value(m) },
}

// task changes the reading of the task to which a metric belongs.
func (r *reading) task(m *dto.Metric, change func(*taskReading)) {
	k := taskKey{Label(m, "process"), Label(m, "topic"), Label(m, "partition")}
	t := r.tasks[k]
	change(&t)
	r.tasks[k] = t
}

// Label returns the value of a label of m; "" if m does not have the label.
func Label(m *dto.Metric, name string) string {
	for _, l := range m.GetLabel() {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}

func value(m *dto.Metric) float64 {
	switch {
	case m.GetCounter() != nil:
		return m.GetCounter().GetValue()
	case m.GetGauge() != nil:
		return m.GetGauge().GetValue()
	}
	return m.GetUntyped().GetValue()
}

// lag sums up the lag of all tasks.
func (r *reading) lag() (lag Lag) {
	for _, t := range r.tasks {
		if t.lagRecords < 0 {
			lag.Unknown++
			continue
		}
		lag.Records += t.lagRecords
		lag.Seconds = max(lag.Seconds, t.lagSeconds)
	}
	return lag
}

// histogram has the cumulative counts of a histogram's buckets except for +Inf, and the count of all
// observations.
type histogram struct {
	bounds []float64
	counts []uint64
	count  uint64
}

func histogramOf(m *dto.Metric) histogram {
	h := m.GetHistogram()
	out := histogram{count: h.GetSampleCount()}
	for _, b := range h.GetBucket() {
		if !math.IsInf(b.GetUpperBound(), 1) {
			out.bounds = append(out.bounds, b.GetUpperBound())
			out.counts = append(out.counts, b.GetCumulativeCount())
		}
	}
	return out
}

// plus returns the sum of two histograms with the same buckets.
func (h histogram) plus(other histogram) histogram {
	if h.bounds == nil {
		return other
	}
	sum := histogram{bounds: h.bounds, counts: slices.Clone(h.counts), count: h.count + other.count}
	for i := range sum.counts {
		sum.counts[i] += other.counts[i]
	}
	return sum
}

// since returns the observations since an earlier histogram of the same series.
func (h histogram) since(earlier histogram) histogram {
	if earlier.bounds == nil {
		return h
	}
	diff := histogram{bounds: h.bounds, counts: slices.Clone(h.counts), count: h.count - earlier.count}
	for i := range diff.counts {
		diff.counts[i] -= earlier.counts[i]
	}
	return diff
}

// quantile estimates the q-quantile as Prometheus's histogram_quantile does: it interpolates linearly within a
// bucket, and returns the highest bound for a quantile above that bound. Without observations it returns 0.
func (h histogram) quantile(q float64) float64 {
	if h.count == 0 || len(h.bounds) == 0 {
		return 0
	}
	rank := q * float64(h.count)
	i := slices.IndexFunc(h.counts, func(n uint64) bool { return float64(n) >= rank })
	if i < 0 {
		return h.bounds[len(h.bounds)-1]
	}
	low, below := 0.0, uint64(0)
	if i > 0 {
		low, below = h.bounds[i-1], h.counts[i-1]
	}
	in := h.counts[i] - below
	if in == 0 {
		return low
	}
	return low + (h.bounds[i]-low)*(rank-float64(below))/float64(in)
}

// compareTasks orders tasks by topic, partition and process.
func compareTasks(a, b Task) int {
	topicA, partitionA := splitTask(a.Task)
	topicB, partitionB := splitTask(b.Task)
	if c := strings.Compare(topicA, topicB); c != 0 {
		return c
	}
	if c := len(partitionA) - len(partitionB); c != 0 {
		return c // the numbers have no leading zeros, so the shorter one is less
	}
	if c := strings.Compare(partitionA, partitionB); c != 0 {
		return c
	}
	return strings.Compare(a.Process, b.Process)
}

// splitTask splits the name of a task into topic and partition.
func splitTask(task string) (topic, partition string) {
	i := strings.LastIndexByte(task, '/')
	if i < 0 {
		return task, ""
	}
	return task[:i], task[i+1:]
}
