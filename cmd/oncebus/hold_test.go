package main_test

import (
	"regexp"
	"strings"
	"testing"

	"oncebus/cmd/oncebus/cli"
	"oncebus/processor/kafkatest/embedded"
)

// instants are the times of an output.
var instants = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ`)

// TestHoldPage runs the commands of changing-partitions.md about a hold against the service, and compares their
// output but for the times.
func TestHoldPage(t *testing.T) {
	cluster := embedded.Start(t)
	cluster.CreateTopic("signals.raw", 4)
	environ := runEnviron(t, "ONCEBUS_BROKERS="+strings.Join(cluster.ListenAddrs(), ","))
	serves(t, environ...)
	for _, step := range pageSteps(t, "changing-partitions.md", "Stop the input, and go on") {
		got := execute(t.Context(), environ, "", step.args()...)
		if instants.ReplaceAllString(got.Stdout, "T") != instants.ReplaceAllString(step.want, "T") || got.Code != cli.ExitStopped {
			t.Errorf("oncebus %s: exit code %d, stderr %q, output\n%s\nthe page has\n%s", step.command, got.Code, got.Stderr, got.Stdout, step.want)
		}
	}
}
