//go:build unix

package main

import (
	"fmt"
	"math"
	"os"
	"slices"
	"strings"

	"oncebus/benchmarks/internal/bench"
)

// figure is a measured value.
type figure struct {
	Name  string
	Value float64
}

// result has the figures of one case. X is the size that the case varies.
type result struct {
	Part, Case string
	X          float64
	Figures    []figure
}

// results are the results of one part.
type results []result

// of returns the figure with this name; NaN if there is none.
func (r result) of(name string) float64 {
	for _, f := range r.Figures {
		if f.Name == name {
			return f.Value
		}
	}
	return math.NaN()
}

func (r result) String() string {
	var parts []string
	for _, f := range r.Figures {
		parts = append(parts, fmt.Sprintf("%s %s", f.Name, format(f.Value)))
	}
	return fmt.Sprintf("%s, %s: %s", r.Part, r.Case, strings.Join(parts, ", "))
}

func format(v float64) string {
	if v >= 100 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// add adds the figures of a case.
func (r *run) add(part, name string, x float64, figures ...figure) {
	one := result{part, name, x, figures}
	fmt.Fprintln(os.Stderr, one)
	r.results = append(r.results, one)
}

// part returns the results of a part.
func (r *run) part(name string) results {
	return slices.DeleteFunc(slices.Clone(r.results), func(one result) bool { return one.Part != name })
}

func (r *run) report(machine bench.Machine) error {
	var b strings.Builder
	var goals []bench.Goal
	charts := map[string]bench.Chart{}
	for _, p := range parts {
		of := r.part(p.name)
		if len(of) == 0 {
			continue
		}
		fmt.Fprintf(&b, "## %s\n\n%s.\n\n%s\n", p.name, p.what, of.table())
		if p.goals != nil {
			goals = append(goals, p.goals(of)...)
		}
		for _, c := range p.charts {
			charts["-"+c.suffix] = of.chart(c)
		}
	}
	if len(r.memory) > 0 {
		charts["-memory"] = memoryChart(r.memory)
	}
	name := "growth"
	if len(r.only) < len(parts) {
		name += "-" + strings.Join(r.only, "-")
	}
	return machine.Publish(r.settings.results, bench.Report{Title: "Growth", Name: "growth", File: name, Text: b.String(), Goals: goals, Charts: charts, Result: struct {
		Results []result
		Memory  []sample `json:",omitempty"`
	}{r.results, r.memory}})
}

// table has a row for each case and a column for each figure.
func (of results) table() string {
	var b strings.Builder
	line := " --- |"
	b.WriteString("| case |")
	for _, f := range of[0].Figures {
		fmt.Fprintf(&b, " %s |", f.Name)
		line += " ---: |"
	}
	b.WriteString("\n|" + line + "\n")
	for _, one := range of {
		fmt.Fprintf(&b, "| %s |", one.Case)
		for _, f := range one.Figures {
			fmt.Fprintf(&b, " %s |", format(f.Value))
		}
		b.WriteString("\n")
	}
	return b.String()
}

// chart draws figures of all cases. Sizes differ by factors, so their axis is logarithmic.
func (of results) chart(c curves) bench.Chart {
	chart := bench.Chart{Title: c.title, X: c.x, Y: c.y, LogX: true}
	for _, name := range c.figures {
		s := bench.Series{Name: name}
		for _, one := range of {
			y := one.of(name)
			s.Points = append(s.Points, bench.Point{X: one.X, Y: y, Low: y, High: y})
		}
		chart.Series = append(chart.Series, s)
	}
	if c.x == "" {
		for _, one := range of {
			chart.Groups = append(chart.Groups, one.Case)
		}
	}
	return chart
}

func memoryChart(samples []sample) bench.Chart {
	rss, anonymous := bench.Series{Name: "resident"}, bench.Series{Name: "anonymous"}
	for _, one := range samples {
		rss.Points = append(rss.Points, bench.Point{X: one.Seconds, Y: one.RSS, Low: one.RSS, High: one.RSS})
		anonymous.Points = append(anonymous.Points, bench.Point{X: one.Seconds, Y: one.Anonymous, Low: one.Anonymous, High: one.Anonymous})
	}
	return bench.Chart{Title: "Memory in steady traffic of 250 namespaces on 96 partitions", X: "s", Y: "MiB", Series: []bench.Series{rss, anonymous}}
}
