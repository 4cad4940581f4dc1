//go:build unix

package main_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// dashboard is the part of dashboard.json that the tests check.
type dashboard struct {
	UID        string
	Templating struct {
		List []struct{ Name, Type, Definition string }
	}
	Panels []panel
}

type panel struct {
	ID                       int
	Type, Title, Description string
	GridPos                  struct{ H, W, X, Y int }
	Datasource               struct{ UID string }
	Targets                  []struct {
		Expr       string
		Datasource struct{ UID string }
	}
	FieldConfig struct{ Defaults struct{ Unit string } }
}

func readDashboard(t *testing.T) dashboard {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(deployments, "grafana", "dashboard.json"))
	if err != nil {
		t.Fatal(err)
	}
	var d dashboard
	if err := json.Unmarshal(b, &d); err != nil {
		t.Fatalf("dashboard.json: %v", err)
	}
	return d
}

// TestDashboard: every panel says what it shows and what to do, and its queries name metrics and labels of METRICS.md.
func TestDashboard(t *testing.T) {
	d := readDashboard(t)
	var variables []string
	for _, v := range d.Templating.List {
		variables = append(variables, v.Name)
	}
	if want := []string{"datasource", "app", "instance", "route"}; d.UID != "oncebus" || !slices.Equal(variables, want) {
		t.Errorf("uid %q with variables %v, want oncebus with %v: links and provisioning depend on them", d.UID, variables, want)
	}
	known := metricsByName(t)
	ids, titles, taken := map[int]bool{}, map[string]bool{}, map[[2]int]string{}
	for _, p := range d.Panels {
		if ids[p.ID] || titles[p.Title] || p.Title == "" {
			t.Errorf("panel %d %q: its id or its title is not its own", p.ID, p.Title)
		}
		ids[p.ID], titles[p.Title] = true, true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := taken[[2]int{x, y}]; other != "" || x >= 24 {
					t.Fatalf("panel %q lies on %q, or outside of 24 columns", p.Title, other)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		if sentences := strings.Count(p.Description+" ", ". "); sentences < 2 {
			t.Errorf("panel %q does not say what it shows and what to do: %q", p.Title, p.Description)
		}
		if p.FieldConfig.Defaults.Unit == "" || p.Datasource.UID != "${datasource}" || len(p.Targets) == 0 {
			t.Errorf("panel %q has no unit, no query, or not the chosen data source", p.Title)
		}
		for _, target := range p.Targets {
			if target.Datasource.UID != "${datasource}" {
				t.Errorf("panel %q: a query has the data source %q, want the chosen one", p.Title, target.Datasource.UID)
			}
			for _, problem := range checkQuery(target.Expr, known) {
				t.Errorf("panel %q: %s in %s", p.Title, problem, target.Expr)
			}
		}
	}
}

// metricsByName returns every metric of METRICS.md.
func metricsByName(t *testing.T) map[string]metric {
	t.Helper()
	known := map[string]metric{}
	for _, m := range slices.Concat(exported(t), exportedByRuntime(t)) {
		known[m.name] = m
	}
	return known
}

var (
	metricOfQuery   = regexp.MustCompile(`\b(?:oncebus|go|process)_[a-z0-9_]+\b`)
	selectorOfQuery = regexp.MustCompile(`\b([a-z0-9_]+)\{([^}]*)\}`)
	matcherOfQuery  = regexp.MustCompile(`(\w+)(?:=~|!~|!=|=)"`)
	groupingOfQuery = regexp.MustCompile(`\b(?:by|on|without) ?\(([^)]*)\)`)
	textOfQuery     = regexp.MustCompile(`"[^"]*"`)
)

// metricsOfQuery returns the metrics that a query reads. Their series may have the suffix of a part of a histogram.
func metricsOfQuery(expr string, known map[string]metric) (names []string, problems []string) {
	for _, series := range metricOfQuery.FindAllString(textOfQuery.ReplaceAllString(expr, `""`), -1) {
		name := series
		if _, ok := known[name]; !ok {
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				base, cut := strings.CutSuffix(series, suffix)
				if m := known[base]; cut && (m.kind == "histogram" || m.kind == "summary") {
					name = base
				}
			}
		}
		if _, ok := known[name]; !ok {
			problems = append(problems, series+" is not in METRICS.md")
			continue
		}
		names = append(names, name)
	}
	return names, problems
}

// checkQuery returns what is wrong with the metrics and labels of a query.
func checkQuery(expr string, known map[string]metric) (problems []string) {
	names, problems := metricsOfQuery(expr, known)
	if len(names)+len(problems) == 0 {
		problems = append(problems, "no metric")
	}
	ofScrape := []string{"job", "instance", "le", ""} // and the buckets of a histogram
	hasLabel := func(name, label string) bool {
		return slices.Contains(ofScrape, label) || slices.Contains(strings.Split(known[name].labels, ", "), code(label))
	}
	for _, selector := range selectorOfQuery.FindAllStringSubmatch(expr, -1) {
		of, _ := metricsOfQuery(selector[1], known)
		for _, matcher := range matcherOfQuery.FindAllStringSubmatch(selector[2], -1) {
			if len(of) == 1 && !hasLabel(of[0], matcher[1]) {
				problems = append(problems, fmt.Sprintf("%s has no label %s", selector[1], matcher[1]))
			}
		}
	}
	for _, grouping := range groupingOfQuery.FindAllStringSubmatch(expr, -1) {
		for label := range strings.SplitSeq(grouping[1], ",") {
			label = strings.TrimSpace(label)
			if !slices.ContainsFunc(names, func(name string) bool { return hasLabel(name, label) }) {
				problems = append(problems, "no metric has the label "+label)
			}
		}
	}
	return problems
}

// TestCheckQuery: the check of queries finds what it is for.
func TestCheckQuery(t *testing.T) {
	known := map[string]metric{
		"oncebus_events_total":   {"oncebus_events_total", "counter", "`route`, `verdict`", ""},
		"oncebus_commit_seconds": {"oncebus_commit_seconds", "histogram", "`stage`", ""},
	}
	for expr, want := range map[string]string{
		`sum by (route) (rate(oncebus_events_total{job=~"$app",route="a"}[5m]))`:      "",
		`histogram_quantile(0.5, sum by (le, stage) (oncebus_commit_seconds_bucket))`: "",
		`sum(oncebus_event_total)`:                                   "oncebus_event_total is not in METRICS.md",
		`sum(oncebus_events_total_bucket)`:                           "oncebus_events_total_bucket is not in METRICS.md",
		`sum(oncebus_events_total{rout="a"}) or vector(0)`:           "oncebus_events_total has no label rout",
		`sum by (stage) (oncebus_events_total)`:                      "no metric has the label stage",
		`vector(1)`:                                                  "no metric",
		`sum(oncebus_events_total{verdict="oncebus_unknown_total"})`: "",
		`sum by (stage, le) (rate(oncebus_commit_seconds_bucket{instance="x",route="r"}[1m]))`: "oncebus_commit_seconds_bucket has no label route",
	} {
		if got := strings.Join(checkQuery(expr, known), "; "); got != want {
			t.Errorf("%s: %q, want %q", expr, got, want)
		}
	}
}
