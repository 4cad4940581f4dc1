//go:build unix

package main

import (
	"fmt"
	"strings"
)

// result has the measurements of one engine.
type result struct {
	Engine         string
	WriteCPUMicros float64 // CPU for each key, loading without look-ups
	Load           loaded
	Open           opened
}

// markdown returns the results as a table, one column an engine.
func markdown(set settings, results []result) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d keys, %d tasks in one process with a store each, transactions of %d rows, 16-byte uniform digests, one inserting goroutine. "+
		"CPU is user and system time of the process, including background work until it ends. "+
		"Packed runs sync every write; the row for each key does not.\n\n", set.Keys, set.Tasks, set.Txn)
	b.WriteString("| | packed runs | a Badger row for each key | ratio |\n| --- | --- | --- | --- |\n")
	runs, rows := results[0], results[1]
	line := func(name, unit string, value func(result) float64) {
		a, c := value(runs), value(rows)
		ratio := "-"
		if a > 0 && c > 0 {
			ratio = fmt.Sprintf("%.1f", c/a)
		}
		fmt.Fprintf(&b, "| %s | %s%s | %s%s | %s |\n", name, figure(a), unit, figure(c), unit, ratio)
	}
	const mib = 1 << 20
	line("CPU for each key, writes alone", " µs", func(r result) float64 { return r.WriteCPUMicros })
	line("CPU for each key, a look-up before each write", " µs", func(r result) float64 { return r.Load.CPUMicros })
	line("time to load, with look-ups", " s", func(r result) float64 { return r.Load.WallSeconds })
	line("look-up, absent key, mean", " ns", func(r result) float64 { return r.Load.Negative.Mean })
	line("look-up, absent key, p50", " ns", func(r result) float64 { return r.Load.Negative.P50 })
	line("look-up, absent key, p99", " ns", func(r result) float64 { return r.Load.Negative.P99 })
	line("look-up, held key, mean", " ns", func(r result) float64 { return r.Load.Positive.Mean })
	line("look-up, held key, p50", " ns", func(r result) float64 { return r.Load.Positive.P50 })
	line("look-up, held key, p99", " ns", func(r result) float64 { return r.Load.Positive.P99 })
	line("anonymous memory, peak of the load", " MiB", func(r result) float64 { return float64(r.Load.AnonymousPeak) / mib })
	line("anonymous memory, at rest", " MiB", func(r result) float64 { return float64(r.Load.Anonymous) / mib })
	line("resident memory, mapped files included", " MiB", func(r result) float64 { return float64(r.Load.ResidentTotal) / mib })
	line("Go heap", " MiB", func(r result) float64 { return float64(r.Load.GoHeap) / mib })
	line("disk for each key", " B", func(res result) float64 { return float64(res.Load.DiskBytes) / float64(set.Keys) })
	line("open after kill -9, all tasks", " s", func(r result) float64 { return r.Open.Seconds })
	line("rows to read again from the changelog", "", func(r result) float64 { return float64(r.Open.RowsBehind) })
	return b.String()
}

func figure(v float64) string {
	switch {
	case v == float64(int64(v)) || v >= 1000:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.3f", v)
	}
}
