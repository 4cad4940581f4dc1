//go:build unix

package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"oncebus/benchmarks/internal/bench"
)

func report(s settings, machine bench.Machine, f *faults, found *findings) error {
	var b strings.Builder
	name, title := "executions", "Executions under faults"
	if !s.fenced {
		name, title = name+"-unfenced", title+", without executor group and starts"
	}
	fmt.Fprintf(&b, "%d operations and %d duplicates over %v, %d requests by topic and %d by HTTP; lease %v, seed %d.\n\n",
		found.Operations, found.Duplicates, s.duration, found.ByTopic, found.ByHTTP, lease, s.seed)
	b.WriteString("| what | number |\n| --- | ---: |\n")
	for _, row := range []struct {
		what string
		n    int
	}{
		{"events in the output", found.Dispatched},
		{"executions, counted by the executors' files", found.Executed},
		{"operations that were not executed", found.Never},
		{"operations executed more than once", found.Repeated},
		{"of these, as several attempts", found.SeveralAttempts},
		{"requests without a reply or response", found.Unanswered},
		{"events with more than one reply", found.Twice},
		{"replies with the result of the operation", found.Results},
	} {
		fmt.Fprintf(&b, "| %s | %d |\n", row.what, row.n)
	}
	table(&b, "fault", f.struck)
	table(&b, "replies: verdict and claim status", found.ReplyVerdict)
	table(&b, "responses by HTTP: status, verdict and claim status", found.Responses)
	if len(found.Wrong) > 0 {
		fmt.Fprintf(&b, "\nFindings, %d in all:\n\n", len(found.Wrong))
		for _, w := range found.Wrong[:min(len(found.Wrong), wrongMax)] {
			fmt.Fprintf(&b, "- %s\n", w)
		}
	}
	return machine.Publish(s.results, bench.Report{Title: title, Name: "executions", File: name, Text: b.String(), Result: found})
}

func table(b *strings.Builder, head string, numbers map[string]int) {
	fmt.Fprintf(b, "\n| %s | times |\n| --- | ---: |\n", head)
	for _, name := range slices.Sorted(maps.Keys(numbers)) {
		fmt.Fprintf(b, "| %s | %d |\n", name, numbers[name])
	}
}
