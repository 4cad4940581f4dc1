package ingress

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"oncebus/processor/kafkatest/golden"
)

// TestEveryMetricIsInTheReadme: README.md has the table of metrics.
func TestEveryMetricIsInTheReadme(t *testing.T) {
	const path, from, to = "../../README.md", "<!-- http metrics -->\n", "<!-- /http metrics -->"
	registry := prometheus.NewRegistry()
	m := newMetrics(registry)
	m.prepare("r")
	m.reloadCounters(reloadSecrets)
	m.requests.WithLabelValues("r", "202", "unique")
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var table strings.Builder
	table.WriteString("| metric | type | labels | meaning |\n| --- | --- | --- | --- |\n")
	for _, family := range families {
		var labels []string
		for _, l := range family.GetMetric()[0].GetLabel() {
			labels = append(labels, "`"+l.GetName()+"`")
		}
		fmt.Fprintf(&table, "| `%s` | %s | %s | %s |\n", family.GetName(), strings.ToLower(family.GetType().String()), strings.Join(labels, ", "), family.GetHelp())
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, found := strings.Cut(string(text), from)
	have, tail, closed := strings.Cut(rest, to)
	switch {
	case !found || !closed:
		t.Fatalf("README.md has no %s ... %s", strings.TrimSpace(from), to)
	case have == table.String():
	case !golden.Rewrite():
		t.Fatalf("the metrics of README.md are not those of the program; go test -run %s -rewrite writes\n%s", t.Name(), table.String())
	default:
		if err := os.WriteFile(path, []byte(head+from+table.String()+to+tail), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
