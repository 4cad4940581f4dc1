package rules

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestCheckIsLinearInTheFile: a file with twice as many routes of one kind, right or wrong, has no more than twice the mistakes and warnings, and costs
// no more than twice the memory, with some room. The most routes of a file are 255.
func TestCheckIsLinearInTheFile(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pick := func(name string, of ...string) string { return rapid.SampledFrom(of).Draw(t, name) }
		route := "  - {name: " + pick("name", "same", "r%[1]d") + ", topics: [" + pick("topic", "in", "in%[1]d", "out%[1]d, in", "in, in") + "], window: " + pick("window", "1h", "-1h", "x") +
			", output: " + pick("output", "out", "out%[1]d", "in", "oncebus-manifest") + ", key: [" + pick("key", "raw", "{field: a}, raw, {field: b}", "{fields: [{topic: true}]}", "{field: /id}", "id", "{order: {account: a}}") + "]" +
			pick("match", "", ", match: {field: m, in: [v%[1]d]}", ", match: {field: m, in: [a]}", ", match: {field: m, in: [a, b, v%[1]d]}", ", match: {header: m, in: [1.10]}") +
			pick("more", "", ", namespace: n", ", duplicates: {to: in}", ", dead_letter: out%[1]d", ", http: {path: /p, signature: {scheme: none}}", ", unknown: 1", ", tenant: {header: t}") + "}\n"
		cost := func(routes int) (said int, allocs float64) {
			var file strings.Builder
			file.WriteString("routes:\n")
			for n := range routes {
				line := route
				if strings.Contains(route, "%") {
					line = fmt.Sprintf(route, n+100)
				}
				file.WriteString(line)
			}
			parse := func() (int, error) {
				rs, err := ParseRoutes("routes.yaml", []byte(file.String()))
				if rs == nil {
					return 0, err
				}
				return len(strings.Join(rs.Warnings, "\n")), err
			}
			warned, err := parse()
			if err != nil {
				warned += len(err.Error())
			}
			return warned, testing.AllocsPerRun(1, func() { _, _ = parse() })
		}
		const half, room = 40, 1.3
		said, allocs := cost(half)
		saidTwice, allocsTwice := cost(2 * half)
		if limit := 2*room*float64(said) + 1000; float64(saidTwice) > limit {
			t.Fatalf("%d bytes of mistakes and warnings for %d routes, %d for twice as many, of\n%s", said, half, saidTwice, route)
		}
		if limit := 2*room*allocs + 1000; allocsTwice > limit {
			t.Fatalf("%.0f allocations for %d routes, %.0f for twice as many, of\n%s", allocs, half, allocsTwice, route)
		}
	})
}
