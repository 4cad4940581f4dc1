package main_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"oncebus/cmd/oncebus/cli"
	"oncebus/processor/kafkatest/embedded"
)

var (
	console  = regexp.MustCompile("(?s)```console\n(.*?)```")
	instants = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ`)
)

// TestHoldPage runs the commands of changing-hold.md against the service, and compares their
// output but for the times.
func TestHoldPage(t *testing.T) {
	cluster := embedded.Start(t)
	cluster.CreateTopic("signals.raw", 4)
	environ := runEnviron(t, "ONCEBUS_BROKERS="+strings.Join(cluster.ListenAddrs(), ","))
	s := serveCommand(t, "run", environ...)
	defer s.stop()
	s.ready()
	page, err := os.ReadFile("../../deployments/changing-hold.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range strings.Split(string(console.FindSubmatch(page)[1]), "$ oncebus ")[1:] {
		command, want, _ := strings.Cut(step, "\n")
		args := strings.Fields(command)
		if before, reason, quoted := strings.Cut(command, " '"); quoted {
			text, after, _ := strings.Cut(reason, "'")
			args = append(append(strings.Fields(before), text), strings.Fields(after)...)
		}
		got := execute(t.Context(), environ, "", args...)
		if instants.ReplaceAllString(got.Stdout, "T") != instants.ReplaceAllString(want, "T") || got.Code != cli.ExitStopped {
			t.Errorf("oncebus %s: exit code %d, stderr %q, output\n%s\nthe page has\n%s", command, got.Code, got.Stderr, got.Stdout, want)
		}
	}
}
