package main_test

import (
	"regexp"
	"strings"
	"testing"

	"oncebus/cmd/oncebus/cli"
	"oncebus/cmd/oncebus/cli/clitest"
	"oncebus/processor/kafkatest/embedded"
)

// heldFor is how long a move held the input.
var heldFor = regexp.MustCompile(`held for [0-9.ms]+`)

// TestPartitionsPage runs the commands of changing-partitions.md against the service, and compares
// their output but for the time of the hold.
func TestPartitionsPage(t *testing.T) {
	cluster := embedded.Start(t)
	cluster.CreateTopic("signals.raw", 4)
	environ := runEnviron(t, "ONCEBUS_PARTITIONS=12", "ONCEBUS_BROKERS="+strings.Join(cluster.ListenAddrs(), ","))
	serves(t, environ...)
	for _, step := range pageSteps(t, "changing-partitions.md", "Change the number of partitions") {
		got := execute(t.Context(), environ, "", step.args()...)
		if heldFor.ReplaceAllString(got.Stdout, "T") != heldFor.ReplaceAllString(step.want, "T") || got.Code != cli.ExitStopped {
			t.Errorf("oncebus %s: exit code %d, stderr %q, output\n%s\nthe page has\n%s", step.command, got.Code, got.Stderr, got.Stdout, step.want)
		}
	}
}

// TestToRoutedPage runs the commands of changing-partitions.md about --to-routed against the service, and compares
// their output but for the time of the hold.
func TestToRoutedPage(t *testing.T) {
	cluster := embedded.Start(t)
	cluster.CreateTopic("signals.raw", 4)
	keyed := strings.Replace(keyRoutes, "    window:", "    prepartitioned: true\n    window:", 1)
	environ := runEnviron(t, "ONCEBUS_BROKERS="+strings.Join(cluster.ListenAddrs(), ","), "ONCEBUS_ROUTES="+clitest.WriteFile(t, "routes.yaml", keyed))
	serves(t, environ...)
	routed := clitest.WriteFile(t, "routed.yaml", keyRoutes)
	for _, step := range pageSteps(t, "changing-partitions.md", "Route a prepartitioned topic") {
		got := execute(t.Context(), environ, "", step.args("routed.yaml", routed)...)
		if out := got.Stdout + got.Stderr; heldFor.ReplaceAllString(out, "T") != heldFor.ReplaceAllString(step.want, "T") {
			t.Errorf("oncebus %s: exit code %d, output\n%s\nthe page has\n%s", step.command, got.Code, out, step.want)
		}
	}
}

// TestMoveUsage: a command without one of its two purposes is refused.
func TestMoveUsage(t *testing.T) {
	for _, args := range [][]string{{"move"}, {"move", "--finish", "--partitions", "3"}, {"move", "--partitions", "-1"}, {"move", "--to-routed", "--finish"}, {"move", "--partitions", "3", "--late-ok"}} {
		if got := execute(t.Context(), nil, "", args...); got.Code != cli.ExitWrong {
			t.Errorf("%v: exit code %d, %s", args, got.Code, got.Stderr)
		}
	}
}
