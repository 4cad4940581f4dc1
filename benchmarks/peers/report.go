//go:build unix

package main

import (
	"fmt"
	"math"
	"strings"
	"time"

	"oncebus/benchmarks/internal/bench"
)

// report prints the table and, with -results, writes the files.
func report(s settings, machine bench.Machine, results []result) error {
	return machine.Publish(s.results, bench.Report{
		Title: "Peers with faults", Name: "peers", Text: table(s, results), Result: results,
		Charts: map[string]bench.Chart{"-events": eventsChart(results), "-recovery": recoveryChart(results)},
	})
}

// eventsChart has the lost and the doubled events of each system.
func eventsChart(results []result) bench.Chart {
	c := bench.Chart{Title: "Events lost and doubled by the same faults", Y: "events", Series: []bench.Series{{Name: "lost"}, {Name: "doubled"}}}
	for _, r := range results {
		c.Groups = append(c.Groups, r.System)
		for i, n := range []int{r.Lost, r.Doubled} {
			c.Series[i].Points = append(c.Series[i].Points, bar(float64(n)))
		}
	}
	return c
}

// recoveryChart shows the longest time without events for each system, by kind of fault.
func recoveryChart(results []result) bench.Chart {
	c := bench.Chart{Title: "Longest time until every partition had a later event", Y: "s"}
	for _, k := range kinds {
		series := bench.Series{Name: string(k)}
		for _, r := range results {
			y := math.NaN() // the plan has no such fault
			for _, o := range r.Outcomes {
				if o.Kind == k && !(y > o.Recovery.Seconds()) {
					y = o.Recovery.Seconds()
				}
			}
			series.Points = append(series.Points, bar(y))
		}
		c.Series = append(c.Series, series)
	}
	for _, r := range results {
		c.Groups = append(c.Groups, r.System)
	}
	return c
}

// bar is a bar without a whisker.
func bar(y float64) bench.Point { return bench.Point{X: math.NaN(), Y: y, Low: y, High: y} }

func table(s settings, results []result) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d events/s, %d %% duplicates, %d partitions, commit interval %v, session timeout %v, seed %d. Each system met %d kills of a process, "+
		"%d pauses of %v and %d kills of the broker, at the same moments. A process that ended was started again after %v. "+
		"The broker served again after %.1f s at most. "+
		"Each cell of a fault is lost / doubled events, and the longest time until every partition had a later event in the output.\n\n",
		s.rate, s.duplicates, s.partitions, s.commit, bench.SessionTimeout, s.seed, s.counts[kill], s.counts[pause], pauseFor, s.counts[restart], restartAfter, brokerAway(results).Seconds())
	b.WriteString("| system | processes | events | lost | doubled |")
	for _, k := range kinds {
		fmt.Fprintf(&b, " %s |", k)
	}
	b.WriteString(" unplanned ends |\n| --- | ---: | ---: | ---: | ---: |" + strings.Repeat(" ---: |", len(kinds)+1) + "\n")
	for _, r := range results {
		fmt.Fprintf(&b, "| %s | %d | %d | %d | %d |", r.System, r.Processes, r.Events, r.Lost, r.Doubled)
		for _, k := range kinds {
			fmt.Fprintf(&b, " %s |", r.of(k))
		}
		unplanned := fmt.Sprint(r.Unplanned)
		if !r.Complete {
			unplanned += ", the input was not finished"
		}
		fmt.Fprintf(&b, " %s |\n", unplanned)
	}
	return b.String()
}

// brokerAway returns the longest time from a kill of the broker until the broker served again.
func brokerAway(results []result) (longest time.Duration) {
	for _, r := range results {
		for _, o := range r.Outcomes {
			if o.Kind == restart {
				longest = max(longest, o.Took)
			}
		}
	}
	return longest
}

// of returns the cell of the table for a kind of fault.
func (r result) of(k kind) string {
	lost, doubled, longest, n, all := 0, 0, time.Duration(0), 0, true
	for _, o := range r.Outcomes {
		if o.Kind == k {
			n++
			lost, doubled, longest, all = lost+o.Lost, doubled+o.Doubled, max(longest, o.Recovery), all && o.Recovered
		}
	}
	if n == 0 {
		return "-"
	}
	cell := fmt.Sprintf("%d / %d, %.1f s", lost, doubled, longest.Seconds())
	if !all {
		cell += ", not all"
	}
	return cell
}
