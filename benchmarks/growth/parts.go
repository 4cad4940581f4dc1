//go:build unix

package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"oncebus/benchmarks/internal/bench"
)

// The goals.
const (
	goalChangelog  = 1.5  // bytes per event with the most namespaces, relative to the fewest
	goalRoutes     = 1.3  // CPU time per event with the most routes, relative to the fewest
	goalPartitions = 1000 // number of partitions for which goalStart holds
	goalStart      = 4.0  // s until ready
	goalBacklog    = 3.0  // p99 of live events during a backlog, relative to the p99 without one
	goalMemory     = 1.1  // highest memory of the last third, relative to the middle third
)

// part is one measurement.
type part struct {
	name, what string
	takes      func(s *settings) []time.Duration // an estimated duration for each case
	measure    func(r *run, ctx context.Context) error
	goals      func(of results) []bench.Goal // nil if the part has no goals
	charts     []curves
}

// curves describes a chart of some figures of all cases in a part.
type curves struct {
	suffix, title, x, y string // bars if x is empty
	figures             []string
}

// The figures that goals and charts use.
const (
	changelogBytes = "bytes of the changelog an event"
	eventRate      = "events a second"
	cpuMicros      = "µs of CPU an event"
	brokerMicros   = "the broker's"
	byteNanos      = "ns of CPU a byte"
	firstStart     = "first start to ready, s"
	againStart     = "start after kill -9 to ready, s"
	readyTime      = "s to ready"
	p50            = "p50"
	p99            = "p99"
	rssHighest     = "highest RSS, MiB"
	anonHighest    = "highest anonymous, MiB"
	toJSON         = "relative to JSON"
)

var parts = []part{
	{
		"changelog", "Bytes of the changelog on the broker's disk for an event at a steady rate, 12 partitions, by namespaces",
		func(s *settings) []time.Duration { return repeat(len(s.namespaces), s.traffic+caseTime) }, (*run).changelog,
		func(of results) []bench.Goal { return of.growth(changelogBytes, goalChangelog) },
		[]curves{{"changelog", "Changelog by namespaces", "namespaces", "bytes an event", []string{changelogBytes}}},
	},
	{
		"routes", "A backlog by routes on one topic, each with match, 12 partitions",
		func(s *settings) []time.Duration { return repeat(len(s.routes), s.loadTime(s.events)+caseTime) }, (*run).ofRoutes,
		func(of results) []bench.Goal { return of.growth(cpuMicros, goalRoutes) },
		[]curves{{"routes", "CPU by routes with match on one topic", "routes", "µs an event", []string{cpuMicros}}},
	},
	{
		"partitions", "A backlog, the first start and a start after kill -9, by partitions",
		func(s *settings) (all []time.Duration) {
			for _, n := range s.partitions {
				all = append(all, s.loadTime(s.events)+2*caseTime+time.Duration(n)*time.Duration(s.events/10_000)*time.Millisecond)
			}
			return all
		}, (*run).ofPartitions, results.startGoals,
		[]curves{
			{"partitions", "Rate by partitions", "partitions", "events a second", []string{eventRate}},
			{"partitions-cpu", "CPU by partitions", "partitions", "µs an event", []string{cpuMicros, brokerMicros}},
			{"start", "Start to ready by partitions", "partitions", "s", []string{firstStart, againStart}},
		},
	},
	{
		"starts", "Starts to ready: the first, after kill -9 and after a stop, by partitions",
		func(s *settings) []time.Duration {
			return repeat(len(s.partitions), s.loadTime(s.events)+flushed+5*caseTime)
		}, (*run).ofStarts, results.allStartGoals, nil,
	},
	{
		"backlog", "Latency of 100 events a second of one route, from their creation to a read_committed reader, in ms, alone and while a backlog of another route is judged",
		func(s *settings) []time.Duration {
			return repeat(1, warmUp+s.traffic+s.loadTime(s.backlog)+2*caseTime)
		}, (*run).catchUp,
		results.backlogGoals,
		[]curves{{"backlog", "Latency of a live route", "", "ms", []string{p50, p99}}},
	},
	{
		"memory", fmt.Sprintf("Memory of the process in steady traffic of 250 namespaces on 96 partitions, a sample each %v", sampleEvery),
		func(s *settings) []time.Duration { return repeat(1, s.steady+2*caseTime) }, (*run).steadyMemory,
		results.memoryGoals, nil, // nil, because this part has a chart of its samples
	},
	{
		"waiters", "Claims in progress whose duplicates wait for the outcome, 1 partition, by events of a key",
		func(s *settings) []time.Duration { return repeat(len(waiting), caseTime+s.loadTime(waitingEvents)) }, (*run).waiters,
		nil, []curves{{"waiters", "CPU by events of a key that wait", "events of a key", "µs an event", []string{cpuMicros}}},
	},
	{
		"members", "A backlog of events whose JSON object has many members, 12 partitions",
		func(s *settings) []time.Duration { return repeat(len(s.members), caseTime+s.loadTime(s.events)) }, (*run).ofMembers,
		nil, []curves{{"members", "CPU by members of a JSON object", "members", "ns a byte", []string{byteNanos}}},
	},
	{
		"formats", fmt.Sprintf("A backlog of the same orders in each format, schemas in a registry, 12 partitions: medians of %d rounds", formatRounds-1),
		func(s *settings) []time.Duration {
			return repeat(formatRounds*len(formatCases()), caseTime+2*s.loadTime(s.events))
		}, (*run).ofFormats,
		results.formatGoals, []curves{{"formats", "Rate of a format relative to JSON", "", "relative to JSON", []string{toJSON}}},
	},
	{
		"collisions", "The log of a process that gets as many events of a known key with other details as it gets keys, 12 partitions",
		func(s *settings) []time.Duration { return repeat(1, caseTime+s.loadTime(s.events/5)) }, (*run).collisions, nil, nil,
	},
	{
		"pages", "A response of the process with 254 routes and 384 partitions, after a backlog",
		func(s *settings) []time.Duration { return repeat(1, 2*caseTime+2*s.loadTime(s.events)) }, (*run).pages, nil, nil,
	},
}

// caseTime estimates how long it takes to create and delete topics and to start and stop a process.
const caseTime = 20 * time.Second

// loadTime estimates how long the events of a backlog take on a slow machine.
func (s *settings) loadTime(events int) time.Duration {
	return time.Duration(events) * time.Second / 50_000
}

func repeat(n int, each time.Duration) []time.Duration {
	return slices.Repeat([]time.Duration{each}, n)
}

// growth returns the goal that a figure of every case is at most bound times the figure of the first case.
func (of results) growth(figure string, bound float64) []bench.Goal {
	if len(of) < 2 {
		return []bench.Goal{bench.OpenGoal(figure+", largest case relative to the first", fmt.Sprintf("at most %.2f", bound))}
	}
	highest := 0.0
	for _, one := range of[1:] {
		highest = max(highest, one.of(figure))
	}
	return []bench.Goal{bench.AtMost(fmt.Sprintf("%s, %s to %s, relative to the first", figure, of[0].Case, of[len(of)-1].Case), "%.2f", highest/of[0].of(figure), bound)}
}

func (of results) startGoals() (goals []bench.Goal) {
	at := slices.IndexFunc(of, func(one result) bool { return one.X == goalPartitions })
	for _, figure := range []string{firstStart, againStart} {
		what := fmt.Sprintf("%d partitions: %s", goalPartitions, figure)
		if at < 0 {
			goals = append(goals, bench.OpenGoal(what, fmt.Sprintf("at most %.1f", goalStart)))
		} else {
			goals = append(goals, bench.AtMost(what, "%.1f", of[at].of(figure), goalStart))
		}
	}
	return goals
}

// allStartGoals has a goal for each kind of start, with the highest number of partitions.
func (of results) allStartGoals() (goals []bench.Goal) {
	for _, one := range of {
		if one.X == goalPartitions {
			goals = append(goals, bench.AtMost(one.Case+": "+readyTime, "%.1f", one.of(readyTime), goalStart))
		}
	}
	return goals
}

func (of results) backlogGoals() []bench.Goal {
	quiet, busy := of[0].of(p99), of[1].of(p99)
	return []bench.Goal{bench.NewGoal("p99 of live events during a backlog of another route, relative to quiet", fmt.Sprintf("under %.1f", goalBacklog), fmt.Sprintf("%.2f", busy/quiet), busy < goalBacklog*quiet)}
}

// memoryGoals compares the last third of the time with the middle third. In the first third the process starts and
// fills its bounded buffers.
func (of results) memoryGoals() []bench.Goal {
	return []bench.Goal{bench.AtMost("highest RSS of the last third of the time, relative to the middle third", "%.2f", of[2].of(rssHighest)/of[1].of(rssHighest), goalMemory)}
}
