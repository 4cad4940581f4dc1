//go:build unix

package main

import (
	"fmt"
	"slices"

	"oncebus/benchmarks/internal/bench"
)

// The goals, for up to 50 million live keys, on two cores with the broker on the same machine.
const (
	goalKeys         = 50_000_000
	goalRatio        = 0.8    // of the rate with the smallest number of keys
	goalMemory       = 1024.0 // resident memory in MiB
	goalLimit        = 1280.0 // MiB; with this limit of the cgroup the kernel kills no process
	goalDisk         = 30.0   // bytes per key
	goalExpiry       = 0.9    // of the rate while no keys expire
	goalStall        = 100.0  // ms
	goalReady        = 1.0    // s
	goalRebuild      = 2000.0 // k keys/s
	goalMicros       = 20.0   // p99 in µs of the derivation of a key, and of a check
	goalIdleCPU      = 1.0    // percent
	goalIdleRSS      = 100 << 20
	extrapolatedKeys = 1_000_000_000
)

// size has the measurements of all rounds with one number of keys.
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

// of returns the spread of one figure over the rounds.
func (s size) of(figure func(liveRun) float64) bench.Spread { return bench.SpreadBy(s.runs, figure) }

// restarts returns the spread of one figure over all restarts in all rounds.
func (s size) restarts(figure func(restart) float64) bench.Spread {
	var all []restart
	for _, r := range s.runs {
		all = append(all, r.Restarts...)
	}
	return bench.SpreadBy(all, figure)
}

func growingRate(r liveRun) float64      { return r.Growing.Rate }
func expiringRate(r liveRun) float64     { return r.Expiring.Rate }
func expiryRatio(r liveRun) float64      { return r.Expiring.Rate / r.Growing.Rate }
func stallWhileSteady(r liveRun) float64 { return r.Steady.Gaps.Stall() }
func rssMax(r liveRun) float64           { return float64(r.RSSMax) }
func anonymousMax(r liveRun) float64     { return float64(r.AnonymousMax) }
func keyP99(r liveRun) float64           { return r.KeyP99 }
func checkP99(r liveRun) float64         { return r.CheckP99 }
func rebuildRate(r liveRun) float64      { return r.Rebuild.rate() }
func readyAfter(r restart) float64       { return r.Ready }
func flowAfter(r restart) float64        { return r.Flow }

// goals compares the measurements with the goals. The goals for memory, disk, stalls and rebuild apply to the largest
// measured number of keys up to goalKeys; the text names it.
func (r *result) goals() (goals []bench.Goal) {
	if slices.Contains(r.s.what, "live-keys") {
		goals = r.liveGoals()
	}
	if slices.Contains(r.s.what, "idle") {
		goals = append(goals, r.idleGoal())
	}
	return append(append(goals, r.restartGoals()...), r.takeoverGoals()...)
}

func (r *result) liveGoals() []bench.Goal {
	sizes := slices.DeleteFunc(r.sizes(), func(s size) bool { return s.Keys > goalKeys })
	if len(sizes) == 0 {
		return []bench.Goal{bench.OpenGoal("live keys", "lines 4 and 5 of the issue")}
	}
	first, last := sizes[0], sizes[len(sizes)-1]
	var goals []bench.Goal
	for _, s := range sizes[1:] {
		growing := s.of(growingRate).Median / first.of(growingRate).Median
		expiring := s.of(expiringRate).Median / first.of(expiringRate).Median
		goals = append(goals, bench.NewGoal("at "+millions(s.Keys)+" live keys: rate relative to that at "+millions(first.Keys), fmt.Sprintf("at least %.1f", goalRatio),
			fmt.Sprintf("%.2f, and %.2f while keys expire", growing, expiring), min(growing, expiring) >= goalRatio))
	}
	at := "at " + millions(last.Keys) + " live keys: "
	key, check, disk := last.of(keyP99).Median, last.of(checkP99).Median, last.of(liveRun.diskPerKey).Median
	goals = append(goals,
		bench.AtMost(at+"resident memory", "%.0f MiB", last.of(rssMax).Median/mib, goalMemory),
		bench.AtMost(at+"anonymous memory", "%.0f MiB", last.of(anonymousMax).Median/mib, goalMemory),
		r.limitGoal(at, last),
		bench.NewGoal(at+"disk", fmt.Sprintf("at most %.0f B a key", goalDisk), fmt.Sprintf("%.1f B", disk), disk > 0 && disk <= goalDisk),
		bench.AtLeast(at+"rate while keys expire, relative to the rate while none does", "%.2f", last.of(expiryRatio).Median, goalExpiry),
		bench.AtMost(at+"longest stall of a partition while keys expire", "%.0f ms", last.of(stallWhileSteady).High, goalStall),
		bench.NewGoal(at+"p99 of a key's derivation and of a check with it", fmt.Sprintf("each under %.0f us", goalMicros), fmt.Sprintf("%.1f and %.1f us", key, check), max(key, check) < goalMicros),
		bench.AtLeast(at+"rebuild from the changelog", "%.0f k keys/s", last.of(rebuildRate).Median/1e3, goalRebuild))
	for _, s := range sizes[min(1, len(sizes)-1):] { // each larger size is compared with the smallest one
		ready := s.restarts(readyAfter)
		goals = append(goals, bench.NewGoal("at "+millions(s.Keys)+" live keys: ready after kill -9", fmt.Sprintf("within %.0f s", goalReady),
			fmt.Sprintf("%.2f s (%.2f to %.2f)", ready.Median, ready.Low, ready.High), ready.High > 0 && ready.High <= goalReady))
	}
	return goals
}

func (r *result) limitGoal(at string, s size) bench.Goal {
	what, want := fmt.Sprintf("%sprocesses killed in a memory cgroup of %.0f MiB", at, goalLimit), "0"
	if r.s.memory == 0 || float64(r.s.memory)/mib > goalLimit {
		return bench.OpenGoal(what, want)
	}
	killed := int(s.of(func(r liveRun) float64 { return float64(r.Limited.Killed) }).High)
	return bench.NewGoal(what, want, fmt.Sprint(killed), killed == 0)
}

func (r *result) idleGoal() bench.Goal {
	sh := r.s.idleShape
	what, want := fmt.Sprintf("%d idle processes, %d partitions: each", sh.Processes, sh.Partitions), "under 1 % CPU and 100 MiB"
	if len(r.Idle) == 0 {
		return bench.OpenGoal(what, want)
	}
	var cpu float64
	var rss int64
	for _, run := range r.Idle {
		cpu, rss = max(cpu, slices.Max(run.CPU)), max(rss, slices.Max(run.RSS))
	}
	return bench.NewGoal(what, want, fmt.Sprintf("at most %.2f %% CPU and %d MiB, in the worst of %d cases", cpu, rss>>20, len(r.Idle)), cpu < goalIdleCPU && rss < goalIdleRSS)
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

// line is the regression line through the measurements.
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
