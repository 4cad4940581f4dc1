//go:build unix

package main

import (
	"fmt"
	"runtime"
	"slices"
	"strings"

	"oncebus/benchmarks/internal/bench"
)

const mib = 1 << 20

// report prints the tables and, with -results, writes them with JSON and plots.
func (r *result) report(machine bench.Machine) error {
	var b strings.Builder
	if !r.Complete {
		b.WriteString("**This run ended early with an error. The results before the error follow.**\n\n")
	}
	fmt.Fprintf(&b, "The program (go build ./cmd/oncebus) with its defaults, except for these: commit interval %v, flush age %v, session timeout %v, 1 %% of the disk free. Signals of about 230 bytes in prepartitioned topics, %d %% duplicates, %d %% of them of keys from anywhere in the window. "+
		"A backlog is written into an open transaction and released at once, so that the generator is idle while a rate is measured. Every output was read back: each key once, no other, no dead letter.\n\n",
		r.s.commitInterval, r.s.flushAge, r.s.sessionTimeout, r.s.duplicates, r.s.old)
	if sizes := r.sizes(); len(sizes) > 0 {
		r.liveTables(&b, sizes)
		extrapolation(&b, sizes)
	}
	r.shapeTable(&b)
	r.rebalanceTable(&b)
	r.idleTable(&b)
	r.restartTable(&b)
	r.takeoverTable(&b)
	r.seedTable(&b)
	r.changesTables(&b)
	name := "scale"
	if !slices.Equal(r.s.what, parts) {
		name += "-" + strings.Join(r.s.what, "-")
	}
	return machine.Publish(r.s.results, bench.Report{Title: "Scale", Name: "scale", File: name, Text: b.String(), Goals: r.goals(), Charts: r.charts(), Result: r})
}

func (r *result) liveTables(b *strings.Builder, sizes []size) {
	fmt.Fprintf(b, "## Live keys\n\nOne process, %d partitions. Rounds: %d, above %s keys 1; medians, in brackets the slowest and the fastest fifth of any round. "+
		"Growing: no key expires. Expiring: one expires for each new one. Memory is the highest of a run's processes, restarts and rebuild included; resident counts mapped files, anonymous does not.\n\n",
		r.s.partitions, r.s.rounds, millions(largeKeys))
	b.WriteString("| live keys | growing, k events/s | CPU us an event | broker's | expiring, k events/s | CPU us an event | ratio to growing | rows removed | filled at k events/s |\n" +
		"| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n")
	for _, s := range sizes {
		fmt.Fprintf(b, "| %s | %s | %.2f | %.2f | %s | %.2f | %.2f | %.0f | %.0f |\n", s.span(),
			rates(s, growing), s.of(func(r liveRun) float64 { return r.Growing.CPU }).Median, s.of(func(r liveRun) float64 { return r.Growing.BrokerCPU }).Median,
			rates(s, expiring), s.of(func(r liveRun) float64 { return r.Expiring.CPU }).Median, s.of(expiryRatio).Median,
			s.of(func(r liveRun) float64 { return float64(r.EvictedRows) }).Median, s.of(func(r liveRun) float64 { return r.FillRate / 1e3 }).Median)
	}
	b.WriteString("\nFilled: generator and reader on the same cores.\n\n| live keys | resident MiB | with restarts and rebuild | anonymous MiB | Go heap MiB at rest | highest | disk B a key |\n| ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n")
	for _, s := range sizes {
		fmt.Fprintf(b, "| %s | %.0f | %.0f | %.0f | %.0f | %.0f | %s |\n", millions(s.Keys), s.of(func(r liveRun) float64 { return float64(r.RSSFirst) }).Median/mib, s.of(rssMax).Median/mib,
			s.of(anonymousMax).Median/mib, s.of(func(r liveRun) float64 { return float64(r.GoHeap) }).Median/mib,
			s.of(func(r liveRun) float64 { return float64(r.GoHeapMax) }).Median/mib, bench.Figure("%.1f", s.of(liveRun.diskPerKey).Median))
	}
	r.limitTable(b, sizes)
	fmt.Fprintf(b, "\nkill -9 in the midst of a backlog, then a start at once; times from that start, %d restarts a round. Rebuild: a start without the state directory.\n\n", r.s.kills)
	b.WriteString("| live keys | rows in memory at the kill | rows read from the changelog | ready, s | first commit, s | rebuilt, k keys/s | in s |\n| ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n")
	for _, s := range sizes {
		ready, flow := s.restarts(readyAfter), s.restarts(flowAfter)
		fmt.Fprintf(b, "| %s | %.0f | %.0f | %s | %s | %.0f | %.1f |\n", millions(s.Keys), s.restarts(func(r restart) float64 { return float64(r.Unflushed) }).Median,
			s.restarts(func(r restart) float64 { return float64(r.Read) }).Median, spread("%.2f", ready), spread("%.2f", flow),
			s.of(rebuildRate).Median/1e3, s.of(func(r liveRun) float64 { return r.Rebuild.Seconds }).Median)
	}
	fmt.Fprintf(b, "\nGaps between two commits of a partition while input waits in it, ms, seen every %v: median and longest (of all rounds). With a backlog they follow the fetches, which bring much of one partition at a time; steady traffic has %.0f %% of the rate with expiry, and keys expire in it. A stall is by how much its longest gap is longer than its median.\n\n", watchEvery, 100*steadyShare)
	b.WriteString("| live keys | fill | longest | growing | longest | expiring | longest | steady | longest | stall |\n| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n")
	for _, s := range sizes {
		fmt.Fprintf(b, "| %s |", millions(s.Keys))
		for _, gaps := range []func(liveRun) gapFigures{
			func(r liveRun) gapFigures { return r.FillGaps }, func(r liveRun) gapFigures { return r.Growing.Gaps }, func(r liveRun) gapFigures { return r.Expiring.Gaps },
			func(r liveRun) gapFigures { return r.Steady.Gaps },
		} {
			fmt.Fprintf(b, " %.0f | %.0f |", s.of(func(r liveRun) float64 { return gaps(r).Median }).Median, s.of(func(r liveRun) float64 { return gaps(r).Longest }).High)
		}
		fmt.Fprintf(b, " %.0f |\n", s.of(stallWhileSteady).High)
	}
	b.WriteString("\n")
}

// limitTable has what the kernel counted, if memory was limited.
func (r *result) limitTable(b *strings.Builder, sizes []size) {
	if r.s.memory == 0 {
		return
	}
	fmt.Fprintf(b, "\nThe processes ran in a memory cgroup with a limit of %d MiB. The pages of files that they read and write count too, and the kernel drops them when the limit is reached.\n\n"+
		"| live keys | highest usage MiB | limit reached, times | processes killed |\n| ---: | ---: | ---: | ---: |\n", r.s.memory/mib)
	for _, s := range sizes {
		most := func(figure func(*limited) float64) float64 {
			return s.of(func(r liveRun) float64 { return figure(r.Limited) }).High
		}
		fmt.Fprintf(b, "| %s | %.0f | %.0f | %.0f |\n", millions(s.Keys), most(func(l *limited) float64 { return float64(l.Highest) / mib }),
			most(func(l *limited) float64 { return float64(l.Reached) }), most(func(l *limited) float64 { return float64(l.Killed) }))
	}
}

// span formats the numbers of keys between which a size was measured.
func (s size) span() string {
	return fmt.Sprintf("%s to %s", millions(s.Keys), millions(s.runs[0].Horizon))
}

func growing(r liveRun) drainRun  { return r.Growing }
func expiring(r liveRun) drainRun { return r.Expiring }

// rates formats k events/s, with the slowest and the fastest fifth.
func rates(s size, of func(liveRun) drainRun) string {
	return fmt.Sprintf("%.0f (%.0f to %.0f)", s.of(func(r liveRun) float64 { return of(r).Rate }).Median/1e3,
		s.of(func(r liveRun) float64 { return of(r).Slices.Low }).Low/1e3, s.of(func(r liveRun) float64 { return of(r).Slices.High }).High/1e3)
}

func spread(format string, s bench.Spread) string {
	if s.High == 0 {
		return "-"
	}
	return fmt.Sprintf(format+" ("+format+" to "+format+")", s.Median, s.Low, s.High)
}

// extrapolation writes the cost of each further key, and the extrapolated cost of a billion keys.
func extrapolation(b *strings.Builder, sizes []size) {
	var keys []int
	for _, s := range sizes {
		keys = append(keys, s.Keys)
	}
	if len(keys) < 2 {
		return
	}
	fmt.Fprintf(b, "**Extrapolated, not measured:** the straight line nearest to what was measured at %v keys, and where it is at %s.\n\n| | each million keys more | **extrapolated** to %s |\n| --- | ---: | ---: |\n",
		keys, millions(extrapolatedKeys), millions(extrapolatedKeys))
	for _, row := range []struct {
		name, unit string
		scale      float64
		figure     func(size) float64
	}{
		{"resident memory", "MiB", mib, func(s size) float64 { return s.of(rssMax).Median }},
		{"anonymous memory", "MiB", mib, func(s size) float64 { return s.of(anonymousMax).Median }},
		{"disk", "MiB", mib, func(s size) float64 { return s.of(liveRun.diskPerKey).Median * float64(s.Keys) }},
		{"ready after kill -9", "s", 1, func(s size) float64 { return s.restarts(readyAfter).Median }},
		{"rebuild", "s", 1, func(s size) float64 { return s.of(func(r liveRun) float64 { return r.Rebuild.Seconds }).Median }},
	} {
		var figures []float64
		for _, s := range sizes {
			figures = append(figures, row.figure(s))
		}
		if l, ok := fit(keys, figures); ok {
			fmt.Fprintf(b, "| %s | %.4g %s | %.4g %s |\n", row.name, l.Slope*1e6/row.scale, row.unit, l.at(extrapolatedKeys)/row.scale, row.unit)
		}
	}
	b.WriteString("\n")
}

// rounds returns the measurements of a shape in all rounds.
func (r *result) rounds(sh shape, figure func(drainRun) float64) bench.Spread {
	of := slices.DeleteFunc(slices.Clone(r.Shapes), func(run shapeRun) bool { return run.Shape != sh })
	return bench.SpreadBy(of, func(run shapeRun) float64 { return figure(run.Rate) })
}

func (r *result) shapeTable(b *strings.Builder) {
	if len(r.Shapes) == 0 {
		return
	}
	first := r.rounds(r.s.shapes[0], func(m drainRun) float64 { return m.Rate }).Median
	fmt.Fprintf(b, "## Workers, processes, partitions\n\n%d events each, medians of %d rounds, in brackets lowest and highest; everything on the same %d cores.\n\n"+
		"| processes | workers of each | partitions | k events/s | ratio to the first | CPU us an event | broker's |\n| ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n", r.s.events, r.s.rounds, runtime.NumCPU())
	for _, sh := range r.s.shapes {
		rate := r.rounds(sh, func(m drainRun) float64 { return m.Rate / 1e3 })
		fmt.Fprintf(b, "| %d | %d | %d | %s | %s | %.2f | %.2f |\n", sh.Processes, sh.Workers, sh.Partitions, spread("%.0f", rate), bench.Ratio(rate.Median*1e3, first),
			r.rounds(sh, func(m drainRun) float64 { return m.CPU }).Median, r.rounds(sh, func(m drainRun) float64 { return m.BrokerCPU }).Median)
	}
	b.WriteString("\n")
}

func (r *result) rebalanceTable(b *strings.Builder) {
	if len(r.Rebalances) == 0 {
		return
	}
	sh := r.s.rebalance
	fmt.Fprintf(b, "## Rebalance\n\n%d processes of %d workers, %d partitions, %d keys known, %d events/s; the last process comes and goes %d times. Silent: the longest time in which a task commits nothing while input waits in it, from the event on. "+
		"Members are static: one that stops or dies keeps its tasks for the session timeout, in case it comes back.\n\n| event | tasks moved | moved tasks silent, ms: median | longest | other tasks, longest | all tasks run after, s |\n| --- | ---: | ---: | ---: | ---: | ---: |\n",
		sh.Processes, sh.Workers, sh.Partitions, r.s.known, r.s.rate, r.s.cycles)
	for _, event := range []string{processStarts, processStops, processDies} {
		var moved, silent, longest, others, balanced []float64
		for _, m := range r.Rebalances {
			if m.Event == event {
				moved, silent, longest = append(moved, float64(m.Moved)), append(silent, m.Silence.Median), append(longest, m.Silence.High)
				others, balanced = append(others, m.Others), append(balanced, m.Balanced)
			}
		}
		if len(moved) == 0 {
			continue
		}
		fmt.Fprintf(b, "| %s | %.0f | %s | %.0f | %.0f | %s |\n", event, bench.SpreadOf(moved).Median, spread("%.0f", bench.SpreadOf(silent)), slices.Max(longest), slices.Max(others), spread("%.1f", bench.SpreadOf(balanced)))
	}
	b.WriteString("\n")
}

func (r *result) idleTable(b *strings.Builder) {
	if len(r.Idle) == 0 {
		return
	}
	sh := r.s.idleShape
	fmt.Fprintf(b, "## Idle\n\n%d processes of %d workers, %d partitions, watched for %v. Of the processes: lowest to highest.\n\n| routes | keys seen before | CPU %% | resident MiB | highest since the start |\n| --- | ---: | ---: | ---: | ---: |\n",
		sh.Processes, sh.Workers, sh.Partitions, r.s.idle)
	for _, run := range r.Idle {
		kind := "keyed"
		if run.Routed {
			kind = "routed"
		}
		fmt.Fprintf(b, "| %s | %d | %.2f to %.2f | %d to %d | %d to %d |\n", kind, run.Keys, slices.Min(run.CPU), slices.Max(run.CPU),
			slices.Min(run.RSS)/mib, slices.Max(run.RSS)/mib, slices.Min(run.RSSMax)/mib, slices.Max(run.RSSMax)/mib)
	}
	b.WriteString("\n")
}

// charts returns the plots, by the suffix of their file's name.
func (r *result) charts() map[string]bench.Chart {
	charts := map[string]bench.Chart{}
	if sizes := r.sizes(); len(sizes) > 0 {
		rate := bench.Chart{Title: "Rate against live keys", X: "live keys", Y: "events/s", LogX: true, Series: []bench.Series{{Name: "no key expires"}, {Name: "keys expire"}}}
		restarts := bench.Chart{Title: "Restart after kill -9 against live keys", X: "live keys", Y: "seconds from the start", LogX: true, Series: []bench.Series{{Name: "ready"}, {Name: "first commit"}}}
		for _, s := range sizes {
			for i, m := range []bench.Spread{s.of(growingRate), s.of(expiringRate)} {
				rate.Series[i].Points = append(rate.Series[i].Points, point(s.Keys, m))
			}
			for i, m := range []bench.Spread{s.restarts(readyAfter), s.restarts(flowAfter)} {
				restarts.Series[i].Points = append(restarts.Series[i].Points, point(s.Keys, m))
			}
		}
		charts["-rate"], charts["-restart"] = rate, restarts
	}
	if len(r.Shapes) > 0 {
		c := bench.Chart{Title: "Rate of processes x workers x partitions", Y: "events/s", Series: []bench.Series{{Name: "oncebus keyed"}}}
		for _, sh := range r.s.shapes {
			c.Groups = append(c.Groups, sh.String())
			c.Series[0].Points = append(c.Series[0].Points, point(0, r.rounds(sh, func(m drainRun) float64 { return m.Rate })))
		}
		charts["-workers"] = c
	}
	return charts
}

func point(keys int, s bench.Spread) bench.Point {
	return bench.Point{X: float64(keys), Y: s.Median, Low: s.Low, High: s.High}
}
