//go:build unix

package main

import (
	"fmt"
	"slices"

	"oncebus/benchmarks/internal/bench"
)

// goal is a target that was set before the measurement, with the result.
type goal struct {
	What    string
	Want    string
	Got     string
	Verdict string
}

// The verdicts on a goal.
const (
	met         = "met"
	missed      = "missed"
	notMeasured = "not measured"
)

func verdict(holds bool) string {
	if holds {
		return met
	}
	return missed
}

// The goals, for 50 million live keys relative to 1 million, on two cores with the
// broker on the same machine.
const (
	goalKeys         = 50_000_000
	goalRatio        = 0.7
	goalRSS          = 1 << 30 // bytes
	goalDisk         = 60.0    // bytes a key
	goalExpiry       = 0.9     // of the rate without
	goalStall        = 100.0   // ms
	goalReady        = 2.0     // s
	goalRebuild      = 500_000.0
	goalMicros       = 20.0 // p99 of a key's derivation and of a check
	goalIdleCPU      = 1.0  // percent
	goalIdleRSS      = 100 << 20
	extrapolatedKeys = 1_000_000_000
)

// size has the measurements of all rounds of one number of keys.
type size struct {
	Keys int
	runs []liveRun
}

func (r *result) sizes() []size {
	var sizes []size
	for _, keys := range r.s.keys {
		s := size{Keys: keys}
		for _, run := range r.LiveKeys {
			if run.Keys == keys {
				s.runs = append(s.runs, run)
			}
		}
		if len(s.runs) > 0 {
			sizes = append(sizes, s)
		}
	}
	return sizes
}

// of returns the spread of a figure over the rounds.
func (s size) of(figure func(liveRun) float64) bench.Spread {
	var values []float64
	for _, r := range s.runs {
		values = append(values, figure(r))
	}
	return bench.SpreadOf(values)
}

// restarts returns the spread of a figure over all restarts of all rounds.
func (s size) restarts(figure func(restart) float64) bench.Spread {
	var values []float64
	for _, r := range s.runs {
		for _, one := range r.Restarts {
			values = append(values, figure(one))
		}
	}
	if len(values) == 0 {
		return bench.Spread{}
	}
	return bench.SpreadOf(values)
}

func growingRate(r liveRun) float64      { return r.Growing.Rate }
func expiringRate(r liveRun) float64     { return r.Expiring.Rate }
func expiryRatio(r liveRun) float64      { return r.Expiring.Rate / r.Growing.Rate }
func stallWhileSteady(r liveRun) float64 { return r.Steady.Gaps.Stall() }
func rssMax(r liveRun) float64           { return float64(r.RSSMax) }
func keyP99(r liveRun) float64           { return r.KeyP99 }
func checkP99(r liveRun) float64         { return r.CheckP99 }
func rebuildRate(r liveRun) float64      { return r.Rebuild.rate() }
func readyAfter(r restart) float64       { return r.Ready }
func flowAfter(r restart) float64        { return r.Flow }

// goals compares the measurements with the goals. Those for 50 million keys apply to
// the largest measured size up to that, which the text names.
func (r *result) goals() []goal {
	return append(r.liveGoals(), r.idleGoal())
}

func (r *result) liveGoals() []goal {
	sizes := r.sizes()
	sizes = slices.DeleteFunc(sizes, func(s size) bool { return s.Keys > goalKeys })
	if len(sizes) == 0 {
		return []goal{{What: "live keys", Want: "lines 4 and 5 of the issue", Got: "-", Verdict: notMeasured}}
	}
	first, last := sizes[0], sizes[len(sizes)-1]
	at := "at " + millions(last.Keys) + " live keys: "
	ratio := goal{What: "rate relative to that at " + millions(first.Keys), Want: fmt.Sprintf("at least %.1f", goalRatio), Got: "-", Verdict: notMeasured}
	if len(sizes) > 1 {
		growing := last.of(growingRate).Median / first.of(growingRate).Median
		expiring := last.of(expiringRate).Median / first.of(expiringRate).Median
		ratio.Got = fmt.Sprintf("%.2f, and %.2f while keys expire", growing, expiring)
		ratio.Verdict = verdict(min(growing, expiring) >= goalRatio)
	}
	rss, disk := last.of(rssMax).Median, last.of(liveRun.diskPerKey).Median
	expiry, stall := last.of(expiryRatio).Median, last.of(stallWhileSteady).High
	goals := []goal{
		ratio,
		{What: "resident memory", Want: "at most 1024 MiB", Got: fmt.Sprintf("%.0f MiB", rss/(1<<20)), Verdict: verdict(rss <= goalRSS)},
		{What: "disk", Want: "at most 60 B a key", Got: fmt.Sprintf("%.1f B", disk), Verdict: verdict(disk > 0 && disk <= goalDisk)},
		{What: "rate while keys expire, relative to the rate while none does", Want: "at least 0.90", Got: fmt.Sprintf("%.2f", expiry), Verdict: verdict(expiry >= goalExpiry)},
		{What: "longest stall of a partition while keys expire", Want: "at most 100 ms", Got: fmt.Sprintf("%.0f ms", stall), Verdict: verdict(stall <= goalStall)},
	}
	key, check := last.of(keyP99).Median, last.of(checkP99).Median
	goals = append(goals, goal{What: "p99 of a key's derivation and of a check with it", Want: "each under 20 us", Got: fmt.Sprintf("%.1f and %.1f us", key, check), Verdict: verdict(max(key, check) < goalMicros)})
	rebuild := last.of(rebuildRate).Median
	goals = append(goals, goal{What: "rebuild from the changelog", Want: "at least 500 k keys/s", Got: fmt.Sprintf("%.0f k keys/s", rebuild/1e3), Verdict: verdict(rebuild >= goalRebuild)})
	for i := range goals {
		goals[i].What = at + goals[i].What
	}
	for i, s := range sizes {
		if i == 0 && len(sizes) > 1 {
			continue // the others are compared with the smallest
		}
		ready := s.restarts(readyAfter)
		goals = append(goals, goal{What: "at " + millions(s.Keys) + " live keys: ready after kill -9", Want: "within 2 s",
			Got: fmt.Sprintf("%.2f s (%.2f to %.2f)", ready.Median, ready.Low, ready.High), Verdict: verdict(ready.High > 0 && ready.High <= goalReady)})
	}
	return goals
}

func (r *result) idleGoal() goal {
	sh := r.s.idleShape
	g := goal{What: fmt.Sprintf("%d idle processes, %d partitions: each", sh.Processes, sh.Partitions), Want: "under 1 % CPU and 100 MiB", Got: "-", Verdict: notMeasured}
	if len(r.Idle) == 0 {
		return g
	}
	var cpu float64
	var rss int64
	for _, run := range r.Idle {
		cpu, rss = max(cpu, slices.Max(run.CPU)), max(rss, slices.Max(run.RSS))
	}
	g.Got = fmt.Sprintf("at most %.2f %% CPU and %d MiB, in the worst of %d cases", cpu, rss>>20, len(r.Idle))
	g.Verdict = verdict(cpu < goalIdleCPU && rss < goalIdleRSS)
	return g
}

// millions formats a number of keys.
func millions(keys int) string {
	switch {
	case keys < 1_000_000:
		return fmt.Sprintf("%d k", keys/1000)
	case keys < 1_000_000_000:
		return fmt.Sprintf("%.3g million", float64(keys)/1e6)
	}
	return fmt.Sprintf("%.3g billion", float64(keys)/1e9)
}

// line is the regression line of the measurements.
type line struct {
	Base, Slope float64 // intercept, slope
}

// fit returns the line through the figures by least squares, false if there
// are fewer than two sizes.
func fit(keys []int, figures []float64) (l line, ok bool) {
	if len(keys) < 2 {
		return l, false
	}
	var x, y, xx, xy float64
	n := float64(len(keys))
	for i := range keys {
		k := float64(keys[i])
		x, y, xx, xy = x+k, y+figures[i], xx+k*k, xy+k*figures[i]
	}
	l.Slope = (n*xy - x*y) / (n*xx - x*x)
	l.Base = (y - l.Slope*x) / n
	return l, true
}

func (l line) at(keys int) float64 { return l.Base + l.Slope*float64(keys) }
