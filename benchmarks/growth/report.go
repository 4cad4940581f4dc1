//go:build unix

package main

import (
	"fmt"
	"slices"
	"strings"

	"oncebus/benchmarks/internal/bench"
)

// figure is a measured value.
type figure struct {
	Name  string
	Value float64
}

// result has the figures of one case.
type result struct {
	Part, Case string
	Figures    []figure
}

func (r *result) String() string {
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

func (r *run) report(machine bench.Machine) error {
	var b strings.Builder
	for _, p := range parts {
		of := slices.DeleteFunc(slices.Clone(r.results), func(one result) bool { return one.Part != p.name })
		if len(of) == 0 {
			continue
		}
		fmt.Fprintf(&b, "## %s\n\n%s.\n\n|", p.name, p.what)
		line := " --- |"
		b.WriteString(" case |")
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
		b.WriteString("\n")
	}
	text := machine.Head("Growth", bench.Command("growth")) + b.String()
	fmt.Print(text)
	return machine.Write(r.settings.results, "growth", r.results, map[string][]byte{".md": []byte(text)})
}
