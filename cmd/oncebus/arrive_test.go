package main_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/cmd/oncebus/cli"
	"oncebus/processor/kafkatest"
	"oncebus/processor/kafkatest/embedded"
)

// clusterPageVaries is what changing-clusters.md shows otherwise in each run.
var clusterPageVaries = regexp.MustCompile(`20\d\d-\d\d-\d\dT[0-9:.]+Z|[0-9,]+ bytes, [0-9.]+ a key`)

// TestClusterPage runs the commands of changing-clusters.md against a service in each of two
// clusters.
func TestClusterPage(t *testing.T) {
	old, fresh := embedded.Start(t), embedded.Start(t, kfake.ClusterID("east"))
	in := func(c *embedded.Cluster) []string {
		c.CreateTopic("signals.raw", 2)
		return runEnviron(t, "ONCEBUS_BROKERS="+strings.Join(c.ListenAddrs(), ","))
	}
	inOld, inNew := in(old), in(fresh)
	event := func(id string, partition int32, at time.Time) *kgo.Record {
		return &kgo.Record{Topic: "signals.raw", Partition: partition, Timestamp: at, Value: fmt.Appendf(nil, `{"traceId":%q}`, id)}
	}
	now := time.Now()
	first, second, other, late := event("t-1", 0, now), event("t-2", 0, now), event("t-3", 1, now), event("t-4", 0, now)
	clients := map[*embedded.Cluster]*kgo.Client{}
	for _, c := range []*embedded.Cluster{old, fresh} {
		clients[c] = c.Client(kgo.RecordPartitioner(kgo.ManualPartitioner()))
	}
	produce := func(c *embedded.Cluster, records ...*kgo.Record) {
		t.Helper()
		for _, r := range records {
			one := *r
			if err := clients[c].ProduceSync(t.Context(), &one).FirstErr(); err != nil {
				t.Fatal(err)
			}
		}
	}
	s := serves(t, inOld...)
	produce(old, first, second, other)
	s.until("three events to be emitted", func() bool { return emitsOf(t, clients[old], 3) })
	for _, step := range pageSteps(t, "changing-clusters.md", "") {
		command := strings.Fields(step.command)[0]
		environ := inNew
		switch command {
		case "hold", "export":
			environ = inOld
		case "arrive":
			produce(fresh, first, first, second, late, other) // a mirror that repeats a record
		case "seed":
			serves(t, inNew...)
		}
		if command == "export" {
			produce(old, late)
		}
		got := execute(t.Context(), environ, "", step.args()...)
		if clusterPageVaries.ReplaceAllString(got.Stdout, "X") != clusterPageVaries.ReplaceAllString(step.want, "X") || got.Code != cli.ExitStopped {
			t.Errorf("oncebus %s: exit code %d, stderr %q, output\n%s\nthe page has\n%s", step.command, got.Code, got.Stderr, got.Stdout, step.want)
		}
	}
	s.until("the last event to be emitted", func() bool { return emitsOf(t, clients[fresh], 1) })
	if got := execute(t.Context(), inOld, "", "release", "--back"); got.Code == cli.ExitStopped || !strings.Contains(got.Stderr, "has left this cluster for good") {
		t.Errorf("release in the old cluster: %+v", got)
	}
}

// emitsOf reports whether the output has that many records.
func emitsOf(t *testing.T, client *kgo.Client, n int) bool {
	t.Helper()
	records, err := kafkatest.ReadCommitted(t.Context(), client, nil, "signals.unique")
	if err != nil {
		t.Fatal(err)
	}
	return len(records) == n
}

// TestWrongMovesAreExitCode2: a mistake of the command line is reported before a connection.
func TestWrongMovesAreExitCode2(t *testing.T) {
	environ := []string{"ONCEBUS_ROUTES=" + deployments + "/routes/signals.yaml", "ONCEBUS_BROKERS=127.0.0.1:1"} // no broker listens there
	for args, want := range map[string]string{
		"arrive":                               "want the FILE",
		"arrive none.obx1":                     "open none.obx1",
		"hold --leaving":                       "--leaving begins a hold: give a --reason",
		"hold --leaving --reason x --limit 1m": "an app that leaves has no --limit",
		"hold --left --reason x":               "--left takes no --reason",
		"hold --left --leaving --reason x":     "--leaving begins a hold",
		"hold --limit 30m":                     "--limit is that of a hold to begin: give a --reason",
	} {
		got := execute(t.Context(), environ, "", strings.Fields(args)...)
		if got.Code != cli.ExitWrong || !strings.Contains(got.Stderr, want) {
			t.Errorf("%s: exit code %d, %q, want %q", args, got.Code, got.Stderr, want)
		}
	}
}
