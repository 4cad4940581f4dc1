//go:build unix

package main_test

import (
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.yaml.in/yaml/v4"

	"oncebus/cmd/oncebus/access"
	"oncebus/cmd/oncebus/settings"
	"oncebus/processor"
	"oncebus/processor/ingress"

	main "oncebus/cmd/oncebus"
)

// inventory is a registry that also keeps the collectors, for their descriptors: a vector without a series is in no scrape.
type inventory struct {
	*prometheus.Registry
	collectors []prometheus.Collector
}

func (i *inventory) Register(c prometheus.Collector) error {
	i.collectors = append(i.collectors, c)
	return i.Registry.Register(c)
}

func (i *inventory) MustRegister(cs ...prometheus.Collector) {
	i.collectors = append(i.collectors, cs...)
	i.Registry.MustRegister(cs...)
}

// metric is one metric that a process may export.
type metric struct{ name, kind, labels, help string }

// descriptor is the output of prometheus.Desc's String method; a Desc has no other
// accessor.
var descriptor = regexp.MustCompile(`^Desc\{fqName: "([^"]+)", help: ("(?:[^"\\]|\\.)*"), (?:unit: "[^"]*", )?constLabels: \{([^}]*)\}, variableLabels: \{([^}]*)\}\}$`)

// labelName is the name of a label with one value for the process.
var labelName = regexp.MustCompile(`(\w+)="`)

// exported lists the metrics of oncebus: of the build, the processor with its Kafka clients, and the ingress.
func exported(t *testing.T) []metric {
	t.Helper()
	registry := &inventory{Registry: prometheus.NewRegistry()}
	main.RegisterBuild(registry)
	s, routes, err := settings.Load([]string{"ONCEBUS_BROKERS=127.0.0.1:1", "ONCEBUS_STATE_DIR=" + t.TempDir(), "ONCEBUS_INSTANCE_ID=pages",
		"ONCEBUS_INGRESS_ADDR=127.0.0.1:0", "ONCEBUS_INGRESS_SECRET_SIGNALS=secret-of-the-pages"}, filepath.Join(moduleRoot, "deployments", "routes", "signals.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	if _, err := processor.New(s.Processor, routes, registry, log); err != nil {
		t.Fatal(err)
	}
	if _, err := ingress.New(s.Ingress, routes, nil, registry, log); err != nil {
		t.Fatal(err)
	}
	if _, err := access.New(s.Admin, registry, log); err != nil {
		t.Fatal(err)
	}
	list := registry.list(t)
	for _, m := range list {
		if !strings.HasPrefix(m.name, "oncebus_") {
			t.Errorf("metric %s does not have the prefix oncebus_", m.name)
		}
	}
	return list
}

// exportedByRuntime lists the metrics of the Go runtime and the process.
func exportedByRuntime(t *testing.T) []metric {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("skipped: the metrics of the process are those of Linux")
	}
	registry := &inventory{Registry: prometheus.NewRegistry()}
	main.RegisterRuntime(registry)
	return registry.list(t)
}

// list returns the metrics of the registered collectors, by name.
func (i *inventory) list(t *testing.T) []metric {
	t.Helper()
	list := map[string]metric{}
	for _, c := range i.collectors {
		for desc := range collect(c.Describe) {
			m := descriptor.FindStringSubmatch(desc.String())
			if m == nil {
				t.Fatalf("cannot read %s", desc)
			}
			help, labels := "", strings.FieldsFunc(m[4], func(r rune) bool { return r == ',' })
			for _, constant := range labelName.FindAllStringSubmatch(m[3], -1) {
				labels = append(labels, constant[1])
			}
			if _, err := fmt.Sscanf(m[2], "%q", &help); err != nil {
				t.Fatal(err)
			}
			slices.Sort(labels)
			for i := range labels {
				labels[i] = code(labels[i])
			}
			list[m[1]] = metric{m[1], kindOf(t, c, desc), strings.Join(labels, ", "), help}
		}
	}
	return slices.SortedFunc(maps.Values(list), func(a, b metric) int { return strings.Compare(a.name, b.name) })
}

// collect returns the values that a collector sends.
func collect[T any](send func(chan<- T)) func(yield func(T) bool) {
	return func(yield func(T) bool) {
		ch := make(chan T)
		go func() { defer close(ch); send(ch) }()
		more := true
		for v := range ch {
			more = more && yield(v)
		}
	}
}

// kindOf returns the type of a collector's metric with the descriptor.
func kindOf(t *testing.T, c prometheus.Collector, desc *prometheus.Desc) string {
	switch c.(type) {
	case *prometheus.CounterVec:
		return "counter"
	case *prometheus.GaugeVec:
		return "gauge"
	case *prometheus.HistogramVec:
		return "histogram"
	}
	for m := range collect(c.Collect) {
		var text dto.Metric
		if m.Desc().String() != desc.String() {
			continue
		}
		if err := m.Write(&text); err != nil {
			t.Fatal(err)
		}
		switch {
		case text.Counter != nil:
			return "counter"
		case text.Histogram != nil:
			return "histogram"
		case text.Summary != nil:
			return "summary"
		}
		return "gauge"
	}
	// A custom collector without samples yet: its name has the type.
	switch {
	case strings.Contains(desc.String(), `_total"`):
		return "counter"
	case strings.Contains(desc.String(), `_delay_seconds"`):
		return "histogram"
	}
	return "gauge"
}

func metricRows(t *testing.T) string {
	alerts := alertRules(t)
	rows := newTable("metric", "type", "labels", "meaning", "alerts")
	for _, m := range exported(t) {
		var serves []string
		for _, a := range alerts {
			if slices.Contains(a.metrics(), m.name) {
				serves = append(serves, code(strings.TrimPrefix(a.Alert, "Oncebus")))
			}
		}
		rows.row(code(m.name), m.kind, m.labels, m.help, strings.Join(serves, ", "))
	}
	return rows.String()
}

func runtimeRows(t *testing.T) string {
	rows := newTable("metric", "type", "labels", "meaning")
	for _, m := range exportedByRuntime(t) {
		help, _, _ := strings.Cut(m.help, ". ") // the rest says which figures of the runtime it has
		rows.row(code(m.name), m.kind, m.labels, strings.TrimSuffix(help, ".")+".")
	}
	return rows.String()
}

// alertRule is one rule of alerts.yml.
type alertRule struct {
	Alert       string
	Expr        string
	For         string
	Labels      struct{ Severity string }
	Annotations struct{ Summary, Description, Runbook string }
}

var metricName = regexp.MustCompile(`\boncebus_[a-z_]+`)

// metrics returns the metrics that the rule reads.
func (a *alertRule) metrics() []string { return metricName.FindAllString(a.Expr, -1) }

func alertRules(t *testing.T) []alertRule {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(moduleRoot, "deployments", "prometheus", "alerts.yml"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct{ Rules []alertRule }
	}
	if err := yaml.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	var rules []alertRule
	for _, g := range file.Groups {
		rules = append(rules, g.Rules...)
	}
	return rules
}

// braces matches the placeholders of an alert's summary.
var braces = regexp.MustCompile(`\{\{ (?:\$labels\.|\$)(\w+)(?: \| \w+)? \}\}`)

// alertHeading matches the heading of an alert's section.
var alertHeading = regexp.MustCompile(`(?m)^### (Oncebus\w+)$`)

func alertRows(t *testing.T) string {
	known := exported(t)
	rows := newTable("alert", "severity", "summary")
	page, err := os.ReadFile(filepath.Join(moduleRoot, "deployments", "METRICS.md"))
	if err != nil {
		t.Fatal(err)
	}
	var sections []string // without an alert
	for _, heading := range alertHeading.FindAllStringSubmatch(string(page), -1) {
		sections = append(sections, heading[1])
	}
	for _, a := range alertRules(t) {
		for _, name := range a.metrics() {
			if !slices.ContainsFunc(known, func(m metric) bool { return m.name == name }) {
				t.Errorf("alert %s uses %s, which no process exports", a.Alert, name)
			}
		}
		here := "#" + anchor(a.Alert)
		rows.row("["+a.Alert+"]("+here+")", a.Labels.Severity, braces.ReplaceAllString(a.Annotations.Summary, "{$1}"))
		if want := "deployments/METRICS.md" + here; a.Annotations.Runbook != want {
			t.Errorf("alert %s has the runbook %q, want %s", a.Alert, a.Annotations.Runbook, want)
		}
		_, section, _ := strings.Cut(string(page), "\n### "+a.Alert+"\n")
		section, _, _ = strings.Cut(section, "\n#")
		for _, item := range []string{"Means", "At risk", "Look at", "Do", "Over"} {
			if !strings.Contains(section, "\n- **"+item+"**") {
				t.Errorf("METRICS.md does not say under %s: %s", a.Alert, item)
			}
		}
		if !strings.Contains(section, "](OPERATIONS.md#") {
			t.Errorf("METRICS.md has no link from %s to what to do in OPERATIONS.md", a.Alert)
		}
		sections = slices.DeleteFunc(sections, func(name string) bool { return name == a.Alert })
	}
	for _, name := range sections {
		t.Errorf("METRICS.md describes %s, which is no alert", name)
	}
	return rows.String()
}
