package main

import (
	"io"
	"strconv"

	"oncebus/cmd/oncebus/cli"
)

// fact is a line of output with a name and a value. writeFacts leaves it out if it has no value.
type fact struct{ name, value string }

// writeFacts writes a line for each fact that has a value.
func writeFacts(w io.Writer, indent string, facts []fact) {
	for _, f := range facts {
		if f.value != "" {
			cli.Printf(w, "%s%s\t%s\n", indent, f.name, f.value)
		}
	}
}

// plural writes a number and its noun, such as 1 key and 2 keys.
func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}
