package page

import (
	"encoding/json"
	"math"
	"slices"
	"time"

	"oncebus/dedup"
)

const (
	// fineStep and coarseStep are the times between samples, fineMax and coarseMax how many samples are kept:
	// five minutes in steps of one second, and one hour in steps of ten seconds.
	fineStep   = time.Second
	coarseStep = 10 * time.Second
	fineMax    = 300
	coarseMax  = 360
	// routeSeriesMax is how many routes have a separate series in the history: the first routes in the routes
	// file. All other routes share one series.
	routeSeriesMax = 20
	// historyBytesMax is the most memory that the samples of a process take.
	historyBytesMax = 128 << 10
)

// Names of series. The first two are prefixes, which the name of a verdict or of a route follows.
const (
	seriesVerdict    = "events_per_second/"
	seriesRoute      = "route_events_per_second/"
	seriesOther      = "route_events_per_second_of_others"
	seriesShare      = "duplicate_share"
	seriesLag        = "lag_records"
	seriesLagSeconds = "lag_seconds"
	seriesRestore    = "restore_remaining_records"
	seriesP50        = "commit_p50_seconds"
	seriesP99        = "commit_p99_seconds"
	seriesState      = "state_bytes"
	seriesHTTP       = "http_requests_per_second"
)

// history has the samples of the last hour, in two resolutions.
type history struct {
	names        []string
	routes       []string // routes that have a separate series
	fine, coarse ring
}

func newHistory(routes []string) *history {
	h := &history{routes: routes[:min(len(routes), routeSeriesMax)]}
	for _, v := range dedup.Verdicts {
		h.names = append(h.names, seriesVerdict+v.String())
	}
	for _, r := range h.routes {
		h.names = append(h.names, seriesRoute+r)
	}
	h.names = append(h.names, seriesOther, seriesShare, seriesLag, seriesLagSeconds, seriesRestore, seriesP50, seriesP99, seriesState, seriesHTTP)
	h.fine, h.coarse = newRing(fineMax, len(h.names)), newRing(coarseMax, len(h.names))
	return h
}

// sample is a row of the history. Its rates are averages over the time since the previous sample.
type sample struct {
	at     time.Time
	values []float32 // in the order of history.names
}

// sampleOf computes the sample of the reading now, whose rates are averages over the time since the reading
// earlier.
func (h *history) sampleOf(now, earlier *reading) sample {
	s := sample{at: now.at, values: make([]float32, 0, len(h.names))}
	seconds := now.at.Sub(earlier.at).Seconds()
	add := func(v float64) { s.values = append(s.values, float32(v)) }
	var all counts
	byRoute := map[string]float64{}
	for route, c := range now.events {
		d := c.since(earlier.events[route])
		all.add(&d)
		byRoute[route] = d.total()
	}
	for _, n := range all {
		add(n / seconds)
	}
	others := all.total()
	for _, r := range h.routes {
		add(byRoute[r] / seconds)
		others -= byRoute[r]
	}
	add(max(0, others) / seconds)
	add(ratio(all.duplicates(), all.total()))
	lag := now.lag()
	add(lag.Records)
	add(lag.Seconds)
	remaining := 0.0
	for _, t := range now.tasks {
		remaining += t.remaining
	}
	add(remaining)
	commits := now.allCommits().since(earlier.allCommits())
	add(commits.quantile(0.5))
	add(commits.quantile(0.99))
	add(now.state)
	add(max(0, sum(now.codes)-sum(earlier.codes)) / seconds)
	return s
}

// allCommits sums the commit times of all stages.
func (r *reading) allCommits() (all histogram) {
	for _, h := range r.commits {
		all = all.plus(h)
	}
	return all
}

func ratio(part, whole float64) float64 {
	if whole <= 0 {
		return 0
	}
	return part / whole
}

func sum(of map[string]float64) (all float64) {
	for _, v := range of {
		all += v
	}
	return all
}

// ring keeps the latest samples in memory that is allocated once.
type ring struct {
	times  []int64   // Unix ms
	values []float32 // the values of sample i begin at i*width
	width  int
	next   int // where the next sample goes
	filled bool
}

func newRing(n, width int) ring {
	return ring{times: make([]int64, n), values: make([]float32, n*width), width: width}
}

func (r *ring) add(s sample) {
	r.times[r.next] = s.at.UnixMilli()
	copy(r.values[r.next*r.width:], s.values)
	r.next++
	if r.next == len(r.times) {
		r.next, r.filled = 0, true
	}
}

// columns returns the times and the series, beginning with the oldest sample. A series that is always 0 is nil.
func (r *ring) columns() (times []int64, series [][]float64) {
	var order []int
	if r.filled {
		for i := r.next; i < len(r.times); i++ {
			order = append(order, i)
		}
	}
	for i := range r.next {
		order = append(order, i)
	}
	times = []int64{}
	for _, i := range order {
		times = append(times, r.times[i])
	}
	series = make([][]float64, r.width)
	for c := range series {
		column := make([]float64, len(order))
		for n, i := range order {
			column[n] = rounded(float64(r.values[i*r.width+c]))
		}
		if slices.ContainsFunc(column, func(v float64) bool { return v != 0 }) {
			series[c] = column
		}
	}
	return times, series
}

// rounded keeps five significant digits, which is more than a chart shows.
func rounded(v float64) float64 {
	if v == 0 || math.IsInf(v, 0) || math.IsNaN(v) {
		return 0
	}
	scale := math.Pow(10, 4-math.Floor(math.Log10(math.Abs(v))))
	return math.Round(v*scale) / scale
}

// columnsJSON is the JSON of a ring: Series[i] is the series whose name has the index i, null if it is always
// 0.
type columnsJSON struct {
	Times  []int64     `json:"times"` // Unix ms
	Series [][]float64 `json:"series"`
}

// historyJSON is the JSON of the history, which the stream sends in the event history.
type historyJSON struct {
	Names  []string    `json:"names"`
	Fine   columnsJSON `json:"fine"`
	Coarse columnsJSON `json:"coarse"`
}

func (h *history) encode() ([]byte, error) {
	out := historyJSON{Names: h.names}
	out.Fine.Times, out.Fine.Series = h.fine.columns()
	out.Coarse.Times, out.Coarse.Series = h.coarse.columns()
	return json.Marshal(out)
}

// sampleJSON is the JSON of a sample, which the stream sends in the event sample.
type sampleJSON struct {
	Ring   string    `json:"ring"` // fine or coarse
	Time   int64     `json:"time"` // Unix ms
	Values []float64 `json:"values"`
}

func (s sample) encode(ring string) ([]byte, error) {
	out := sampleJSON{Ring: ring, Time: s.at.UnixMilli(), Values: make([]float64, len(s.values))}
	for i, v := range s.values {
		out.Values[i] = rounded(float64(v))
	}
	return json.Marshal(out)
}
