package app

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Topics of Kafka on which the app relies.
const (
	offsetsTopic      = "__consumer_offsets"
	transactionsTopic = "__transaction_state"
)

// survives is the number of in-sync replicas with which an acknowledged record survives the loss of one broker.
const survives = 2

// replication says how a topic is replicated when it is created. -1 means the broker's default.
type replication struct {
	factor, minInsync int16
}

// replication returns the replication of new topics in a cluster with this number of brokers; 0 if it is
// unknown.
func (c Config) replication(brokers int) replication {
	if c.ReplicationFactor < 0 {
		return replication{-1, -1}
	}
	r := replication{c.ReplicationFactor, cmp.Or(c.MinInsyncReplicas, MinInsyncReplicasDefault)}
	if brokers > 0 {
		r.factor = int16(min(int(r.factor), brokers))
	}
	r.minInsync = min(r.minInsync, r.factor)
	return r
}

// add returns the settings of a topic to create, with min.insync.replicas added.
func (r replication) add(configs map[string]string) map[string]string {
	all := map[string]string{}
	maps.Copy(all, configs)
	if r.minInsync >= 0 {
		all[minInsyncConfig] = strconv.Itoa(int(r.minInsync))
	}
	return all
}

func (r replication) String() string {
	name := func(n int16) string {
		if n < 0 {
			return "the broker's default"
		}
		return strconv.Itoa(int(n))
	}
	return fmt.Sprintf("replication factor %s, %s %s", name(r.factor), minInsyncConfig, name(r.minInsync))
}

// LogValue implements slog.LogValuer.
func (r replication) LogValue() slog.Value {
	return slog.GroupValue(slog.Int("factor", int(r.factor)), slog.Int("min_insync_replicas", int(r.minInsync)))
}

const minInsyncConfig = "min.insync.replicas"

// countBrokers sets the number of brokers. On Kafka 4.0 and later it includes brokers that are down. Kafka
// before 2.8 does not know the request; the number from the metadata is kept then.
func (t *Topology) countBrokers(ctx context.Context, client *kgo.Client) {
	req := kmsg.NewPtrDescribeClusterRequest()
	req.IncludeFencedBrokers = true
	if resp, err := req.RequestWith(ctx, client); err == nil {
		t.brokers = max(t.brokers, len(resp.Brokers))
	}
}

// settingsOf returns the settings of a topic or broker by name.
func settingsOf(described kadm.ResourceConfig) map[string]string {
	values := map[string]string{}
	for _, c := range described.Configs {
		values[c.Key] = c.MaybeValue()
	}
	return values
}

// existing returns the existing topics on which the app relies, in the order of the report.
func (f *Facts) existing() (names []string) {
	t := f.topology
	for _, name := range append(t.all(), offsetsTopic, transactionsTopic) {
		if _, ok := t.Topics[name]; ok {
			names = append(names, name)
		}
	}
	return names
}

// all returns the names of the app's topics, each name once.
func (t *Topology) all() (names []string) {
	for _, name := range append(t.external(), t.internal()...) {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// judgeReplicas finds topics whose records do not survive the loss of one broker. In a cluster of one broker
// that is so for all topics. It reports only one note for such a cluster, because it is a cluster for
// development.
func (f *Facts) judgeReplicas() []Finding {
	t := f.topology
	names := f.existing()
	single := t.brokers == 1 && !slices.ContainsFunc(names, func(name string) bool { return t.Topics[name].Replicas > 1 })
	var findings []Finding
	for _, name := range names {
		if finding := f.judgeReplicasOf(name, single); finding.Level != OK {
			findings = append(findings, finding)
		}
	}
	switch {
	case single:
		findings = append(findings, Finding{
			Level: Note, Text: "the cluster has one broker, so every topic has one replica: with its disk all events and the state of all keys are lost",
			Action: "in production use at least three brokers",
		})
	case len(findings) == 0:
		findings = append(findings, Finding{Text: fmt.Sprintf("%d topics on %d brokers survive the loss of one broker", len(names), t.brokers)})
	}
	return findings
}

// judgeReplicasOf returns the most serious finding about a topic, or a finding of level OK. single says that
// the cluster cannot have more replicas.
func (f *Facts) judgeReplicasOf(name string, single bool) Finding {
	topic := f.topology.Topics[name]
	loss := f.topology.lossOf(name)
	// The setting is unknown for an input whose settings the app may not read.
	required, err := strconv.Atoi(f.topology.settings[name][minInsyncConfig])
	known := err == nil
	excess := known && required > topic.Replicas
	const start = "start the brokers that are down; kafka-topics.sh --describe --unavailable-partitions and --under-replicated-partitions list the partitions"
	switch {
	case topic.Leaderless > 0:
		return Finding{Level: Fails, Text: fmt.Sprintf("topic %s: %d of %d partitions have no leader, so no client can read or write them", name, topic.Leaderless, topic.Partitions), Action: start}
	case excess && !f.capsInsync():
		return Finding{
			Level: Fails, Text: fmt.Sprintf("topic %s has %s=%d and %d replicas, so brokers refuse every record", name, minInsyncConfig, required, topic.Replicas),
			Action: alterConfig(name, minInsyncConfig, strconv.Itoa(topic.Replicas)),
		}
	case known && min(required, topic.Replicas) > topic.InSync:
		return Finding{
			Level: Fails, Text: fmt.Sprintf("topic %s has %d of %d replicas in sync and %s=%d, so brokers refuse every record; if the brokers in sync fail too, %s",
				name, topic.InSync, topic.Replicas, minInsyncConfig, required, loss),
			Action: start,
		}
	case excess && (single || topic.Replicas >= survives && topic.InSync >= survives):
		return Finding{
			Level: Note, Text: fmt.Sprintf("topic %s has %s=%d and %d replicas: all brokers take that for %d, and those before Kafka 4.0 would refuse every record", name, minInsyncConfig, required, topic.Replicas, topic.Replicas),
			Action: alterConfig(name, minInsyncConfig, strconv.Itoa(topic.Replicas)),
		}
	case single:
		return Finding{}
	case topic.Replicas < survives:
		return Finding{
			Level: AtRisk, Text: fmt.Sprintf("topic %s has %d replica on %d brokers: if its broker loses its disk, %s", name, topic.Replicas, f.topology.brokers, loss),
			Action: "add replicas with kafka-reassign-partitions.sh",
		}
	case topic.InSync < survives:
		return Finding{Level: AtRisk, Text: fmt.Sprintf("topic %s has %d of %d replicas in sync: if that broker fails, %s", name, topic.InSync, topic.Replicas, loss), Action: start}
	case known && required < survives:
		return Finding{
			Level: AtRisk, Text: fmt.Sprintf("topic %s has %s=%d: a broker may acknowledge records that no other broker has; if it fails, %s", name, minInsyncConfig, required, loss),
			Action: alterConfig(name, minInsyncConfig, strconv.Itoa(survives)),
		}
	}
	return Finding{}
}

// capsInsync reports whether no broker requires more in-sync replicas than a topic has replicas, as Kafka does
// from 4.0 on.
func (f *Facts) capsInsync() bool {
	const produce, since = int16(kmsg.Produce), 12 // since Kafka 4.0, see releases
	return len(f.brokers) > 0 && !slices.ContainsFunc(f.brokers, func(b brokerFacts) bool { return b.keys[produce] < since })
}

// alterConfig returns the shell command that changes a setting of a topic.
func alterConfig(topic, name, value string) string {
	return fmt.Sprintf("kafka-configs.sh --alter --entity-type topics --entity-name %s --add-config %s=%s", topic, name, value)
}

// lossOf says what the app loses if the records of a topic are lost.
func (t *Topology) lossOf(name string) string {
	switch {
	case name == t.Manifest:
		return "the manifest can be lost, without which the app does not start"
	case name == t.Repartition:
		return "routed events can be lost before they are judged"
	case name == t.Verdicts:
		return "verdicts can be lost for which HTTP requests wait"
	case slices.Contains(t.internal(), name):
		return "rows of keys can be lost, so that their duplicates are emitted"
	case slices.Contains(t.Routed, name), slices.Contains(t.Prepartitioned, name):
		return "events can be lost before they are read"
	case name == offsetsTopic:
		return "committed offsets can be lost, so that events without a key are emitted twice"
	case name == transactionsTopic:
		return "the outcome of open transactions can be lost"
	case t.deadLetters[name]:
		return "dead letters can be lost"
	}
	return "emitted events can be lost, and oncebus does not emit them again"
}
