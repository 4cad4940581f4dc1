//go:build unix

package main

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"oncebus/benchmarks/internal/bench"
	"oncebus/benchmarks/internal/openloop"
)

// The bound of the p99 of a verdict's latency.
const (
	boundCommits = 2
	boundRest    = 30 * time.Millisecond
)

// goalP99 has the points with a separate goal: their p99 must be below the given duration.
var goalP99 = map[point]time.Duration{
	{1000, 5 * time.Millisecond}:   15 * time.Millisecond,
	{10_000, 5 * time.Millisecond}: 40 * time.Millisecond,
}

// bound returns the goal for p99.
func (p point) bound() time.Duration {
	if goal, has := goalP99[p]; has {
		return goal
	}
	return boundCommits*p.Commit + boundRest
}

// goals compares p99 with the goals for their points.
func goals(runs []latencyRun) (goals []bench.Goal) {
	for _, p := range slices.SortedFunc(maps.Keys(goalP99), func(a, b point) int { return a.Rate - b.Rate }) {
		what, want := fmt.Sprintf("p99 at %d requests/s, commit interval %v", p.Rate, p.Commit), fmt.Sprintf("under %v", p.bound())
		ms := slices.DeleteFunc(slices.Clone(runs), func(m latencyRun) bool { return m.point != p })
		if len(ms) == 0 {
			goals = append(goals, bench.OpenGoal(what, want))
			continue
		}
		p99 := bench.SpreadBy(ms, func(m latencyRun) float64 { return m.Latency.P99 }).Median
		goals = append(goals, bench.NewGoal(what, want, bench.Millis(p99)+" ms", p99 < openloop.Millis(p.bound())))
	}
	return goals
}

const (
	// lateShare: the report marks a row if the generator was late by more than this share of the latency, at p99.
	// Such a row also measures the generator.
	lateShare = 0.1
	// backlogDrain: the report marks a row if the last response came later than this after its due time. The server
	// is then saturated.
	backlogDrain = time.Second
)

// result is written as JSON.
type result struct {
	Verdict []latencyRun
	Async   []throughputRun
	Flood   []floodRun
}

func (r result) report(machine bench.Machine, s settings) error {
	return machine.Publish(s.results, bench.Report{Title: "HTTP ingress", Name: "ingress", Text: r.markdown(s), Goals: goals(r.Verdict), Result: r})
}

func (r result) markdown(s settings) string {
	var b strings.Builder
	fmt.Fprintf(&b, `Requests of %d bytes of body, signed with HMAC-SHA-256, %d %% duplicates, on kept-alive HTTP/1.1 connections over loopback; the program itself with
a line of log for each request, to a file; %d partitions, %d worker(s); generator, program and broker share the machine. %v of
warm-up, %v measured, medians of %d round(s) with lowest and highest. In every run responses and output agreed: each accepted event was in the
output exactly once, or the run would have failed.

CPU: microseconds a request of the server's process, of the broker's, and of the generator's. Allocations: of the server's heap, a request.
`, bodyLen, s.duplicates, s.partitions, s.workers, s.warmup, s.measured, s.rounds)
	if len(r.Verdict) > 0 {
		verdictTable(&b, s, r.Verdict)
	}
	if len(r.Async) > 0 {
		asyncTable(&b, s, r.Async)
	}
	if len(r.Flood) > 0 {
		floodTable(&b, r.Flood)
	}
	return b.String()
}

func verdictTable(b *strings.Builder, s settings, runs []latencyRun) {
	b.WriteString(`
## Until the verdict (` + "`answer: verdict`" + `)

Milliseconds from when a request was due, in an open loop, until its whole response had arrived: the schedule is fixed, and an event that a stall delays is
counted with all of its wait. Of each event one request got 202 and all duplicates 409. A duplicate repeats the bytes of a request, 950 requests later.

| requests/s | commit interval | p50 | p99 | p99.9 | max | p99 at most | | responses a round | generator late | CPU, broker's, generator's | allocations | RSS MiB | |
| ---: | ---: | --- | --- | ---: | ---: | ---: | --- | --- | ---: | ---: | ---: | ---: | --- |
`)
	var marked []latencyRun
	for _, rate := range s.rates {
		for _, commit := range s.commits {
			ms := slices.DeleteFunc(slices.Clone(runs), func(m latencyRun) bool { return m.point != point{rate, commit} })
			if len(ms) == 0 {
				continue
			}
			spread := func(value func(latencyRun) float64) bench.Spread { return bench.SpreadBy(ms, value) }
			middle := func(value func(latencyRun) float64) float64 { return spread(value).Median }
			p99 := spread(func(m latencyRun) float64 { return m.Latency.P99 })
			sum := summed(ms, p99.Median)
			marked = append(marked, sum)
			fmt.Fprintf(b, "| %d | %v | %s | %s | %s | %s | %.0f | %s | %s | %s | %s | %.0f | %.0f | %s |\n", rate, commit,
				bench.WithSpread(spread(func(m latencyRun) float64 { return m.Latency.P50 })), bench.WithSpread(p99),
				bench.Millis(middle(func(m latencyRun) float64 { return m.Latency.P999 })), bench.Millis(middle(func(m latencyRun) float64 { return m.Latency.Max })),
				openloop.Millis(sum.bound()), sum.goal(), sum.statuses(), bench.Millis(sum.Behind.P99), cpuOf(ms, func(m latencyRun) PerRequest { return m.PerRequest }),
				middle(func(m latencyRun) float64 { return m.Allocations }), middle(func(m latencyRun) float64 { return m.RSSMaxMiB }),
				strings.Join(sum.marks(), ", "))
		}
	}
	b.WriteString(marksMeaning(marked))
}

// summed combines several runs into one: it has the statuses of the first round, and the medians of all other
// figures.
func summed(ms []latencyRun, p99 float64) latencyRun {
	sum := latencyRun{point: ms[0].point, Statuses: ms[0].Statuses}
	sum.Latency.P99 = p99
	sum.Behind.P99 = bench.SpreadBy(ms, func(m latencyRun) float64 { return m.Behind.P99 }).Median
	sum.DrainMillis = bench.SpreadBy(ms, func(m latencyRun) float64 { return m.DrainMillis }).Median
	sum.Waited = int(bench.SpreadBy(ms, func(m latencyRun) float64 { return float64(m.Waited) }).Median)
	return sum
}

// goal reports whether p99 is as requested.
func (m latencyRun) goal() string {
	switch {
	case m.Latency.P99 <= openloop.Millis(m.bound()):
		return "met"
	case slices.Contains(m.marks(), markBacklog):
		return "saturated"
	}
	return "missed"
}

// statuses lists the responses.
func (m latencyRun) statuses() string {
	var parts []string
	for _, status := range slices.Sorted(maps.Keys(m.Statuses)) {
		parts = append(parts, fmt.Sprintf("%d: %d", status, m.Statuses[status]))
	}
	return strings.Join(parts, ", ")
}

const (
	markLate    = "generator late"
	markBacklog = "backlog"
	markWaited  = "waited for connections"
	markRefused = "refused"
)

func (m latencyRun) marks() (marks []string) {
	if m.Behind.P99 > lateShare*m.Latency.P99 {
		marks = append(marks, markLate)
	}
	if m.DrainMillis > openloop.Millis(backlogDrain) {
		marks = append(marks, markBacklog)
	}
	if m.Waited > 0 {
		marks = append(marks, markWaited)
	}
	for status := range m.Statuses {
		if status != http.StatusAccepted && status != http.StatusConflict && !slices.Contains(marks, markRefused) {
			marks = append(marks, markRefused)
		}
	}
	return marks
}

// marksMeaning explains the marks of the table.
func marksMeaning(rows []latencyRun) string {
	var b strings.Builder
	for _, mark := range []struct{ name, meaning string }{
		{markLate, fmt.Sprintf("the generator could not keep its schedule to within %.0f %% of the latency at p99; the row measures the generator too", lateShare*100)},
		{markBacklog, fmt.Sprintf("the last response came more than %v after its request was due: the rate is too high, and the latency grows with the time measured", backlogDrain)},
		{markWaited, "more requests were in flight than the generator has connections for; their wait is part of the latency"},
		{markRefused, "some requests got neither 202 nor 409"},
	} {
		if slices.ContainsFunc(rows, func(m latencyRun) bool { return slices.Contains(m.marks(), mark.name) }) {
			fmt.Fprintf(&b, "\n%q: %s.\n", mark.name, mark.meaning)
		}
	}
	return b.String()
}

func asyncTable(b *strings.Builder, s settings, runs []throughputRun) {
	fmt.Fprintf(b, `
## Once Kafka has it (`+"`answer: async`"+`)

Requests a second in a closed loop: each connection sends its next request when it has the response. All are compared with the plain produce: the least
HTTP server that takes the same request, produces its body with franz-go and acks of all in-sync replicas, and responds 202; no signature, no key,
no log. %q is that process alone, and the events are judged afterwards; %q also judges them, on the same cores.
Milliseconds from when a request was sent.

| connections | contender | requests/s | ratio to the plain produce | p50 | p99 | CPU, broker's, generator's | allocations | RSS MiB |
| ---: | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |
`, ingressAlone, ingressAndRun)
	for _, connections := range s.connections {
		var plainRate float64
		for _, c := range contenders {
			ms := slices.DeleteFunc(slices.Clone(runs), func(m throughputRun) bool { return m.Contender != c || m.Connections != connections })
			if len(ms) == 0 {
				continue
			}
			middle := func(value func(throughputRun) float64) float64 { return bench.SpreadBy(ms, value).Median }
			rate := bench.SpreadBy(ms, func(m throughputRun) float64 { return m.Rate })
			if c == plainProduce {
				plainRate = rate.Median
			}
			fmt.Fprintf(b, "| %d | %s | %.0f (%.0f, %.0f) | %s | %s | %s | %s | %.0f | %.0f |\n", connections, c, rate.Median, rate.Low, rate.High,
				bench.Ratio(rate.Median, plainRate), bench.Millis(middle(func(m throughputRun) float64 { return m.Latency.P50 })),
				bench.Millis(middle(func(m throughputRun) float64 { return m.Latency.P99 })), cpuOf(ms, func(m throughputRun) PerRequest { return m.PerRequest }),
				middle(func(m throughputRun) float64 { return m.Allocations }), middle(func(m throughputRun) float64 { return m.RSSMaxMiB }))
		}
	}
}

func cpuOf[R any](runs []R, costs func(R) PerRequest) string {
	middle := func(value func(PerRequest) float64) float64 {
		return bench.SpreadBy(runs, func(m R) float64 { return value(costs(m)) }).Median
	}
	return fmt.Sprintf("%.1f, %.1f, %.1f", middle(func(p PerRequest) float64 { return p.CPUMicros }),
		middle(func(p PerRequest) float64 { return p.BrokerCPUMicros }), middle(func(p PerRequest) float64 { return p.GeneratorCPUMicros }))
}
