package main

import (
	"io"
	"strconv"
	"strings"
	"time"

	"oncebus/cmd/oncebus/cli"
)

// fact is one named line of output; without a value it is left out.
type fact struct{ name, value string }

// writeFacts writes the facts that have a value, a line each.
func writeFacts(w io.Writer, indent string, facts []fact) {
	for _, f := range facts {
		if f.value != "" {
			cli.Printf(w, "%s%s\t%s\n", indent, f.name, f.value)
		}
	}
}

// shortDuration writes a duration without its zero parts: 24h, not 24h0m0s.
func shortDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// plural writes how many of noun there are: 1 copy, 2 copies.
func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	if stem, ok := strings.CutSuffix(noun, "y"); ok {
		return strconv.Itoa(n) + " " + stem + "ies"
	}
	return strconv.Itoa(n) + " " + noun + "s"
}
