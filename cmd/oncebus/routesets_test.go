package main_test

import (
	"regexp"
	"strings"
	"testing"

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
	s := serveCommand(t, "run", environ...)
	defer s.stop()
	s.ready()
	alerts := keyRoutes + strings.NewReplacer("routes:\n", "", "signals", "alerts").Replace(keyRoutes)
	files := []string{
		"alerts.yaml", clitest.WriteFile(t, "alerts.yaml", alerts),
		"longer.yaml", clitest.WriteFile(t, "longer.yaml", strings.Replace(alerts, "window: 24h", "window: 168h", 1)),
	}
	for _, step := range pageSteps(t, "changing-routes.md") {
		got := execute(t.Context(), environ, "", step.args(files...)...)
		if out := got.Stdout + got.Stderr; passed.ReplaceAllString(out, "T") != passed.ReplaceAllString(step.want, "T") {
			t.Errorf("oncebus %s: exit code %d, output\n%s\nthe page has\n%s", step.command, got.Code, out, step.want)
		}
	}
}
