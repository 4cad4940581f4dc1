package main_test

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"oncebus/cmd/oncebus/cli"
	"oncebus/cmd/oncebus/cli/clitest"
	"oncebus/processor/kafkatest/embedded"
)

// passed are the parts of an output that differ between two runs.
var passed = regexp.MustCompile(`after \d+\.\d s`)

// TestRoutesPage runs the commands of changing-routes.md against the service, and compares their
// output.
func TestRoutesPage(t *testing.T) {
	cluster := embedded.Start(t)
	for _, topic := range []string{"signals.raw", "alerts.raw"} {
		cluster.CreateTopic(topic, 4)
	}
	environ := runEnviron(t, "ONCEBUS_BROKERS="+strings.Join(cluster.ListenAddrs(), ","))
	serves(t, environ...)
	alerts := keyRoutes + strings.NewReplacer("routes:\n", "", "signals", "alerts").Replace(keyRoutes)
	files := []string{
		"alerts.yaml", clitest.WriteFile(t, "alerts.yaml", alerts),
		"longer.yaml", clitest.WriteFile(t, "longer.yaml", strings.Replace(alerts, "window: 24h", "window: 168h", 1)),
		"further.yaml", clitest.WriteFile(t, "further.yaml", strings.Replace(alerts, "action, timestamp]", "action, timestamp]\n      - header: id", 1)),
	}
	for _, step := range pageSteps(t, "changing-routes.md", "Change the routes") {
		got := execute(t.Context(), environ, "", step.args(files...)...)
		if out := got.Stdout + got.Stderr; passed.ReplaceAllString(out, "T") != passed.ReplaceAllString(step.want, "T") {
			t.Errorf("oncebus %s: exit code %d, output\n%s\nthe page has\n%s", step.command, got.Code, out, step.want)
		}
	}
}

// TestRefusedPlanIsJSON: with -o json all that 'oncebus plan' and 'oncebus apply' print on standard
// output is JSON, also where nothing is written.
func TestRefusedPlanIsJSON(t *testing.T) {
	cluster := embedded.Start(t)
	cluster.CreateTopic("signals.raw", 4)
	environ := runEnviron(t, "ONCEBUS_BROKERS="+strings.Join(cluster.ListenAddrs(), ","))
	serves(t, environ...)
	longer := clitest.WriteFile(t, "longer.yaml", strings.Replace(keyRoutes, "window: 24h", "window: 168h", 1))
	other := clitest.WriteFile(t, "other.yaml", strings.Replace(keyRoutes, "traceId", "spanId", 1))
	for _, c := range []struct {
		args []string
		kind string
		code int
	}{
		{[]string{"plan", "-o", "json", longer}, "confirm", cli.ExitFailed},
		{[]string{"plan", "-o", "json", other}, "refused", cli.ExitWrong},
		{[]string{"apply", "-o", "json", longer}, "confirm", cli.ExitWrong},
		{[]string{"apply", "-o", "json", "--yes", other}, "refused", cli.ExitWrong},
	} {
		got := execute(t.Context(), environ, "", c.args...)
		var a struct {
			Written bool
			Changes []struct{ Kind string }
		}
		if err := json.Unmarshal([]byte(got.Stdout), &a); err != nil || got.Code != c.code || a.Written || len(a.Changes) != 1 || a.Changes[0].Kind != c.kind {
			t.Errorf("oncebus %v: exit code %d, %v\n%s%s", c.args, got.Code, err, got.Stdout, got.Stderr)
		}
	}
}
