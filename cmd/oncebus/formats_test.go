package main_test

import (
	"os"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/sr/srfake"

	"oncebus/cmd/oncebus/cli"
	"oncebus/cmd/oncebus/cli/clitest"
	"oncebus/processor/kafkatest/embedded"
)

// avroRoutes has a route whose schemas are in a registry.
const avroRoutes = `{routes: [{name: orders, topics: [orders.raw], format: avro, key: [{field: id}], window: 1h, output: orders.unique}]}`

// TestFormatsPage runs the commands of FORMATS.md, with the files that it shows.
func TestFormatsPage(t *testing.T) {
	steps := pageSteps(t, "../dedup/FORMATS.md", "") // in a directory of its own
	if err := os.WriteFile("order.avro", []byte("\x06a-1\x54\x04\x04\xe2"), 0o600); err != nil {
		t.Fatal(err)
	}
	assertTwoSteps(t, steps, "")
	if steps[0].want != steps[len(steps)-1].want {
		t.Error("the two commands of the page have different output")
	}
}

// TestKeyOfAnEncodedEventIsRefused: each error names what is missing.
func TestKeyOfAnEncodedEventIsRefused(t *testing.T) {
	pageSteps(t, "../dedup/FORMATS.md", "")
	key := []string{"key", "--routes", "routes.yaml", "--route", "orders", "--encoded"}
	for _, test := range []struct {
		name, stdin, want string
		code              int
		args              []string
	}{
		{"cut off", "\x06a-1", "payload: not valid avro", cli.ExitFailed, nil},
		{"lines", "", "either --encoded or --lines", cli.ExitWrong, []string{"--lines"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := execute(t.Context(), nil, test.stdin, append(key, test.args...)...)
			if got.Code != test.code || !strings.Contains(got.Stderr, test.want) {
				t.Errorf("%+v, want the exit code %d and %q", got, test.code, test.want)
			}
		})
	}
	if err := os.Remove("order.avsc"); err != nil {
		t.Fatal(err)
	}
	got := execute(t.Context(), nil, "\x06a-1\x54\x04\x04\xe2", key...)
	if got.Code != cli.ExitFailed || !strings.Contains(got.Stderr, "order.avsc") {
		t.Errorf("without the schema: %+v", got)
	}
}

// TestDoctorAsksTheRegistry: the schemas that a route needs are part of what the service needs.
func TestDoctorAsksTheRegistry(t *testing.T) {
	t.Parallel()
	cluster := embedded.Start(t)
	for _, topic := range []string{"orders.raw", "orders.unique", "oncebus.dead-letter"} {
		cluster.CreateTopic(topic, 1)
	}
	registry := srfake.New()
	t.Cleanup(registry.Close)
	routes := clitest.WriteFile(t, "routes.yaml", avroRoutes)
	doctor := func(settings ...string) clitest.Result {
		return execute(t.Context(), append(settings, "ONCEBUS_BROKERS="+cluster.ListenAddrs()[0], "ONCEBUS_ROUTES="+routes, "ONCEBUS_STATE_DIR="+t.TempDir(), "ONCEBUS_INSTANCE_ID=a"), "", "doctor")
	}
	url := "ONCEBUS_SCHEMA_REGISTRY_URL=" + registry.URL()
	for _, test := range []struct {
		name, want string
		code       int
		settings   []string
	}{
		{"there", "ok         schemas ", cli.ExitStopped, []string{url}},
		{"no address", "ONCEBUS_SCHEMA_REGISTRY_URL: not set", cli.ExitWrong, nil},
		{"away", "the schema registry does not answer", cli.ExitFailed, []string{url}},
	} {
		if test.name == "away" {
			registry.Close()
		}
		if got := doctor(test.settings...); got.Code != test.code || !strings.Contains(got.Stdout, test.want) {
			t.Errorf("%s: %+v, want the exit code %d and %q", test.name, got, test.code, test.want)
		}
	}
}

// TestPlanReadsSchemaFiles: routes whose schema is missing are not put in force.
func TestPlanReadsSchemaFiles(t *testing.T) {
	pageSteps(t, "../dedup/FORMATS.md", "")
	if err := os.Remove("order.avsc"); err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"plan", "apply"} {
		got := execute(t.Context(), []string{"ONCEBUS_BROKERS=127.0.0.1:1", "ONCEBUS_STATE_DIR=" + t.TempDir(), "ONCEBUS_INSTANCE_ID=a"}, "", command, "routes.yaml")
		if got.Code != cli.ExitWrong || !strings.Contains(got.Stderr, "order.avsc") {
			t.Errorf("%s: %+v", command, got)
		}
	}
}
