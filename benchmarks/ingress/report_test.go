//go:build unix

package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"oncebus/benchmarks/internal/bench"
	"oncebus/benchmarks/internal/openloop"
	"oncebus/processor/kafkatest/program"
)

func TestBound(t *testing.T) {
	for p, want := range map[point]time.Duration{
		{1000, 5 * time.Millisecond}: 15 * time.Millisecond, {10_000, 5 * time.Millisecond}: 40 * time.Millisecond,
		{1000, 20 * time.Millisecond}: 70 * time.Millisecond, {10_000, 100 * time.Millisecond}: 230 * time.Millisecond,
	} {
		if got := p.bound(); got != want {
			t.Errorf("at %+v the bound is %v, want %v", p, got, want)
		}
	}
}

func TestGoals(t *testing.T) {
	got := goals([]latencyRun{{point: point{1000, 5 * time.Millisecond}, Latency: openloop.Quantiles{P99: 15}}, {point: point{1000, 20 * time.Millisecond}}})
	if len(got) != 2 || got[0].Verdict != bench.Missed || got[1].Verdict != bench.NotMeasured {
		t.Errorf("the goals are %+v", got)
	}
}

func TestConnectionsFitUnderTheIngressLimit(t *testing.T) {
	const maxRequests = 4096 // the ingress's default
	for _, p := range []point{{1, time.Millisecond}, {1000, 20 * time.Millisecond}, {10_000, 100 * time.Millisecond}, {1_000_000, time.Second}} {
		if n := p.connections(); n < connectionsMin || n >= maxRequests {
			t.Errorf("%d connections at %+v", n, p)
		}
	}
}

func TestReport(t *testing.T) {
	s := settings{rates: []int{1000, 10_000}, commits: []time.Duration{20 * time.Millisecond}, connections: []int{16}, rounds: 3, duplicates: 10}
	verdict := func(rate, round int, p99, late, drain float64, statuses map[int]int) latencyRun {
		return latencyRun{
			point: point{rate, 20 * time.Millisecond}, Round: round, Requests: 1000, Statuses: statuses, DrainMillis: drain,
			Latency: openloop.Quantiles{P50: p99 / 2, P99: p99, P999: 2 * p99, Max: 3 * p99}, Behind: openloop.Quantiles{P99: late},
			PerRequest: PerRequest{CPUMicros: 50, BrokerCPUMicros: 20, GeneratorCPUMicros: 10, Allocations: 90, RSSMaxMiB: 40},
		}
	}
	fine, refused := map[int]int{202: 900, 409: 100}, map[int]int{202: 800, 409: 100, 503: 100}
	var r result
	for round, p99 := range []float64{60, 50, 500} {
		r.Verdict = append(r.Verdict, verdict(1000, round, p99, 1, 60, fine), verdict(10_000, round, 10*p99, 300, 5000, refused))
		for i, c := range contenders {
			r.Async = append(r.Async, throughputRun{Contender: c, Connections: 16, Round: round, Rate: (1000 + p99) / float64(i+1)})
		}
	}
	text := r.markdown(s)
	for _, want := range []string{
		"| 1000 | 20ms | 30.0 (25.0, 250) | 60.0 (50.0, 500) | 120 | 180 | 70 | met | 202: 900, 409: 100 | 1.00 | 50.0, 20.0, 10.0 | 90 | 40 |  |",
		"| 70 | saturated | 202: 800, 409: 100, 503: 100 | 300 |",
		"| generator late, backlog, refused |",
		`"refused": some requests got neither`,
		"| 16 | plain produce | 1060 (1050, 1500) | 1.00 |",
		"| 16 | oncebus ingress | 530 (525, 750) | 0.50 |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the report lacks %q:\n%s", want, text)
		}
	}
	if strings.Contains(text, markWaited) {
		t.Error("a mark is explained that no row has")
	}
}

func TestGoal(t *testing.T) {
	for _, test := range []struct {
		p99, drain float64
		want       string
	}{{70, 10, "met"}, {71, 10, "missed"}, {71, 2000, "saturated"}} {
		m := latencyRun{point: point{1000, 20 * time.Millisecond}, DrainMillis: test.drain, Latency: openloop.Quantiles{P99: test.p99}}
		if got := m.goal(); got != test.want {
			t.Errorf("p99 %v ms, the last response after %v ms: %s, want %s", test.p99, test.drain, got, test.want)
		}
	}
}

func TestPerRequest(t *testing.T) {
	before := cost{server: program.Usage{CPU: time.Second}, broker: program.Usage{CPU: time.Second}, generator: time.Second, mallocs: 1000}
	after := cost{
		server: program.Usage{CPU: 2 * time.Second, RSSMax: 64 << 20}, broker: program.Usage{CPU: 3 * time.Second}, generator: 1500 * time.Millisecond, mallocs: 51_000,
	}
	want := PerRequest{CPUMicros: 1000, BrokerCPUMicros: 2000, GeneratorCPUMicros: 500, Allocations: 50, RSSMaxMiB: 64}
	if got := perRequest(before, after, 1000); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// TestAsyncDuplicates: the closed loop sends duplicates too, and never of a duplicate.
func TestAsyncDuplicates(t *testing.T) {
	f := flood{app: &app{bed: &bed{settings: settings{duplicates: 10}}}, responses: newResponses(10_000)}
	var duplicates []int
	for n := range 10_000 {
		if first := f.event(n); first != n {
			duplicates = append(duplicates, n)
			if slices.Contains(duplicates, first) {
				t.Fatalf("request %d duplicates %d, which is a duplicate", n, first)
			}
		}
	}
	if len(duplicates) < 850 || len(duplicates) > 1000 {
		t.Errorf("%d duplicates of 10,000, want about a tenth", len(duplicates))
	}
}
