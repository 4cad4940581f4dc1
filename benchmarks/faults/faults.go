//go:build unix

package main

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
)

// allFaults is the matrix: every fault, sorted by row.
var allFaults = slices.Concat(processFaults, brokerFaults, networkFaults, stateFaults, groupFaults, miniFaults, machineFaults, logFaults, recreatedFaults, clockFaults, httpFaults)

// selectFaults returns the faults that match the filter (rows or names; an empty filter matches all) and that are
// possible with the size of the cluster, its release of Kafka, and this machine.
func selectFaults(all []*fault, filter []string, nodes int, kafka string) []*fault {
	var chosen []*fault
	for _, f := range all {
		if f.nodes > nodes || f.loop && loopDisks() != nil || f.kafka4 && strings.HasPrefix(kafka, "3.") || len(filter) > 0 && !slices.Contains(filter, f.row) && !slices.Contains(filter, f.name) {
			continue
		}
		chosen = append(chosen, f)
	}
	return chosen
}

func byName(a, b *fault) int { return cmp.Compare(a.name, b.name) }

// printFaults lists the matrix.
func printFaults() {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "row\tfault\tbrokers")
	for _, f := range allFaults {
		fmt.Fprintf(w, "%s\t%s\t%d\n", f.row, f.name, max(1, f.nodes))
	}
	_ = w.Flush() // an error could only be written to the same terminal
}
