package app

import (
	"strconv"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// TestReplicationFitsTheCluster: new topics have the wanted replicas, or as many as the
// cluster has brokers, and never require more in sync than they have.
func TestReplicationFitsTheCluster(t *testing.T) {
	for _, tt := range []struct {
		factor, minInsync int16
		brokers           int
		want              replication
	}{
		{3, 2, 5, replication{3, 2}},
		{3, 2, 3, replication{3, 2}},
		{3, 2, 2, replication{2, 2}},
		{3, 2, 1, replication{1, 1}},
		{3, 0, 3, replication{3, 2}}, // the default
		{3, -1, 3, replication{3, -1}},
		{1, 2, 3, replication{1, 1}},
		{-1, 2, 3, replication{-1, -1}},
		{3, 2, 0, replication{3, 2}}, // the number of brokers is unknown
	} {
		c := Config{ReplicationFactor: tt.factor, MinInsyncReplicas: tt.minInsync}
		if got := c.replication(tt.brokers); got != tt.want {
			t.Errorf("%d and %d with %d brokers: %v, want %v", tt.factor, tt.minInsync, tt.brokers, got, tt.want)
		}
	}
}

// TestMoreInSyncThanReplicas: Kafka from 4.0 on requires no more replicas in sync than a topic has. If a broker is older, the topic takes no
// record.
func TestMoreInSyncThanReplicas(t *testing.T) {
	t.Parallel()
	const produce = int16(kmsg.Produce)
	for _, tt := range []struct {
		name     string
		brokers  int
		versions []int16 // of the request Produce
		is       Topic
		level    Level
		text     string
	}{
		{"one broker, 4.0", 1, []int16{12}, Topic{Partitions: 1, Replicas: 1, InSync: 1}, Note, "topic out has min.insync.replicas=2 and 1 replicas: all brokers take that for 1"},
		{"two replicas, 4.3", 3, []int16{13, 13, 13}, Topic{Partitions: 1, Replicas: 2, InSync: 2}, Note, "topic out has min.insync.replicas=3 and 2 replicas"},
		{"one replica of three brokers", 3, []int16{12, 12, 12}, Topic{Partitions: 1, Replicas: 1, InSync: 1}, AtRisk, "topic out has 1 replica on 3 brokers"},
		{"one of two in sync", 3, []int16{12, 12, 12}, Topic{Partitions: 1, Replicas: 2, InSync: 1}, Fails, "1 of 2 replicas in sync and min.insync.replicas=3, so brokers refuse"},
		{"an upgrade", 3, []int16{12, 11, 12}, Topic{Partitions: 1, Replicas: 2, InSync: 2}, Fails, "so brokers refuse every record"},
	} {
		topology := &Topology{App: "app", emissions: []string{"out"}, brokers: tt.brokers, Topics: map[string]Topic{"out": tt.is}, settings: map[string]map[string]string{
			"out": {minInsyncConfig: strconv.Itoa(tt.is.Replicas + 1)},
		}}
		f := &Facts{topology: topology}
		for _, version := range tt.versions {
			f.brokers = append(f.brokers, brokerFacts{keys: map[int16]int16{produce: version}})
		}
		got := f.judgeReplicas()
		if Worst(got) != tt.level || !strings.Contains(got[0].Text, tt.text) || got[0].Action == "" {
			t.Errorf("%s: %+v, want %v with %q", tt.name, got, tt.level, tt.text)
		}
	}
}

// TestReplicasJudged: every state of a topic's replicas has its level, and each finding
// names the topic, what can be lost and the way out.
func TestReplicasJudged(t *testing.T) {
	const one, three = 1, 3
	for _, tt := range []struct {
		name      string
		topic     string
		brokers   int
		is        Topic
		minInsync string // "" for unknown
		level     Level
		text      string
	}{
		{"healthy", "app-manifest", three, Topic{Partitions: 1, Replicas: 3, InSync: 3}, "2", OK, "1 topics on 3 brokers survive"},
		{"one replica down", "app-manifest", three, Topic{Partitions: 1, Replicas: 3, InSync: 2}, "2", OK, ""},
		{"an input whose settings are unknown", "raw", three, Topic{Partitions: 1, Replicas: 3, InSync: 3}, "", OK, ""},
		{"one in sync", "app-repartition", three, Topic{Partitions: 4, Replicas: 3, InSync: 1}, "1", AtRisk, "topic app-repartition has 1 of 3 replicas in sync: if that broker fails, routed events can be lost"},
		{"fewer in sync than required", "app-repartition-changelog", three, Topic{Partitions: 4, Replicas: 3, InSync: 1}, "2", Fails, "app-repartition-changelog has 1 of 3 replicas in sync and min.insync.replicas=2, so brokers refuse every record; if the brokers in sync fail too, rows of keys"},
		{"one replica", "raw", three, Topic{Partitions: 4, Replicas: 1, InSync: 1}, "", AtRisk, "topic raw has 1 replica on 3 brokers: if its broker loses its disk, events can be lost before they are read"},
		{"one required", "out", three, Topic{Partitions: 4, Replicas: 3, InSync: 3}, "1", AtRisk, "topic out has min.insync.replicas=1"},
		{"more required than replicas", "out", three, Topic{Partitions: 4, Replicas: 2, InSync: 2}, "3", Fails, "brokers refuse every record"},
		{"no leader", "raw", three, Topic{Partitions: 4, Replicas: 3, Leaderless: 2}, "", Fails, "topic raw: 2 of 4 partitions have no leader"},
		{"one broker", "app-manifest", one, Topic{Partitions: 1, Replicas: 1, InSync: 1}, "1", Note, "the cluster has one broker"},
		{"one broker, more required", "app-manifest", one, Topic{Partitions: 1, Replicas: 1, InSync: 1}, "2", Fails, "brokers refuse every record"},
		{"the other brokers are down", "app-manifest", one, Topic{Partitions: 1, Replicas: 3, InSync: 1}, "1", AtRisk, "1 of 3 replicas in sync"},
		{"Kafka's offsets", "__consumer_offsets", three, Topic{Partitions: 50, Replicas: 1, InSync: 1}, "1", AtRisk, "committed offsets can be lost"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			topology := &Topology{
				App: "app", Manifest: "app-manifest", Repartition: "app-repartition", Routed: []string{"raw"}, emissions: []string{"out"}, brokers: tt.brokers,
				Topics: map[string]Topic{tt.topic: tt.is}, settings: map[string]map[string]string{},
			}
			if tt.minInsync != "" {
				topology.settings[tt.topic] = map[string]string{minInsyncConfig: tt.minInsync}
			}
			got := (&Facts{topology: topology}).judgeReplicas()
			if Worst(got) != tt.level || !strings.Contains(got[0].Text, tt.text) {
				t.Errorf("%+v, want %v with %q", got, tt.level, tt.text)
			}
			for _, f := range got {
				if (f.Level != OK) != (f.Action != "") {
					t.Errorf("%v: %s: action %q", f.Level, f.Text, f.Action)
				}
			}
		})
	}
}
