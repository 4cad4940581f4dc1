package processor_test

import (
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
)

// replicasOf returns the smallest number of replicas of a topic's partitions, and the topic's min.insync.replicas.
func (b *bench) replicasOf(topic string) (replicas int, minInsync string) {
	b.t.Helper()
	meta, err := b.admin.Metadata(b.t.Context(), topic)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, p := range meta.Topics[topic].Partitions.Sorted() {
		if replicas == 0 || len(p.Replicas) < replicas {
			replicas = len(p.Replicas)
		}
	}
	described, err := b.admin.DescribeTopicConfigs(b.t.Context(), topic)
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := described.On(topic, func(c *kadm.ResourceConfig) error {
		for _, setting := range c.Configs {
			if setting.Key == "min.insync.replicas" {
				minInsync = setting.MaybeValue()
			}
		}
		return c.Err
	}); err != nil {
		b.t.Fatal(err)
	}
	return replicas, minInsync
}

// startChecks returns the log lines about the checks at the start.
func (b *bench) startChecks() (lines []string) {
	for line := range strings.Lines(b.logs.String()) {
		if strings.Contains(line, `msg="start check"`) {
			lines = append(lines, line)
		}
	}
	return lines
}

// TestTopicsAreReplicatedAtTheirCreation protects that the default settings create every topic with three replicas,
// two of which must have a record before it is acknowledged. In a cluster with fewer brokers a topic gets as many
// replicas as there are brokers, and the log says so.
func TestTopicsAreReplicatedAtTheirCreation(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name          string
		brokers       int
		wantReplicas  int
		wantMinInsync string
	}{{"five", 5, 3, "2"}, {"three", 3, 3, "2"}, {"two", 2, 2, "2"}, {"one", 1, 1, "1"}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, benchRoutes, kfake.NumBrokers(tt.brokers))
			cfg := b.config("one")
			cfg.ReplicationFactor, cfg.MinInsyncReplicas = 3, 2
			b.ready(b.start(cfg))
			for _, topic := range []string{"signals.raw", "signals.unique", "dead", "app-manifest", "app-repartition", "app-repartition-changelog"} {
				if replicas, minInsync := b.replicasOf(topic); replicas != tt.wantReplicas || minInsync != tt.wantMinInsync {
					t.Errorf("%s has %d replicas and min.insync.replicas=%s, want %d and %s", topic, replicas, minInsync, tt.wantReplicas, tt.wantMinInsync)
				}
			}
			if said := strings.Contains(b.logs.String(), `msg="fewer brokers than wanted replicas"`); said != (tt.brokers < 3) {
				t.Errorf("the log says that there are fewer brokers: %v, with %d brokers", said, tt.brokers)
			}
		})
	}
}

// TestStartWarnsOfTopicsThatOneBrokerCanLose protects that a start names a topic with fewer than two in-sync
// replicas, and what can be lost. For a cluster of one broker the log has one line, which is no warning.
func TestStartWarnsOfTopicsThatOneBrokerCanLose(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes, kfake.NumBrokers(3))
	cfg := b.config("one")
	cfg.ReplicationFactor = 3
	i := b.ready(b.start(cfg))
	must(t, i.stop())
	if lines := b.startChecks(); len(lines) > 0 {
		t.Errorf("a healthy start logs %q", lines)
	}
	b.alter("app-repartition-changelog", "min.insync.replicas", "1")
	b.ready(b.start(cfg))
	b.wait("the check", func() bool { return len(b.startChecks()) > 0 })
	lines := b.startChecks()
	for _, part := range []string{"level=WARN", "check=replicas", "topic app-repartition-changelog has min.insync.replicas=1", "duplicates are emitted", "--add-config min.insync.replicas=2"} {
		if len(lines) != 1 || !strings.Contains(lines[0], part) {
			t.Errorf("the log has %q, want one line with %q", lines, part)
		}
	}

	single := newBench(t, benchRoutes)
	single.ready(single.start(single.config("one")))
	single.wait("the check", func() bool { return len(single.startChecks()) > 0 })
	if lines := single.startChecks(); len(lines) != 1 || !strings.Contains(lines[0], "level=INFO") || !strings.Contains(lines[0], "the cluster has one broker") {
		t.Errorf("on one broker the log has %q", lines)
	}
}
