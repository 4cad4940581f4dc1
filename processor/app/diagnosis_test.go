package app

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/dedup/rules"
	"oncebus/processor/kafka"
	"oncebus/processor/security"
)

const diagnosedRoutes = `routes:
  - name: signals
    topics: [raw]
    key: [{field: id}]
    window: 2h
    output: out
    dead_letter: dead
  - name: orders
    topics: [orders]
    mode: claim
    key: [{field: id}]
    window: 2h
    output: orders.run
    outcomes: outcomes
    replies: replies
    dead_letter: dead
`

// gib is 1 GiB in bytes.
const gib = 1 << 30

// healthyFacts returns the facts of an app in which everything is as it should be.
func healthyFacts(t *testing.T) *Facts {
	t.Helper()
	routes, err := rules.ParseRoutes("routes.yaml", []byte(diagnosedRoutes))
	if err != nil {
		t.Fatal(err)
	}
	keys := map[int16]int16{}
	for _, r := range releases {
		keys[r.key] = max(keys[r.key], r.version)
	}
	for _, r := range requests {
		keys[r.key] = max(keys[r.key], r.version)
	}
	now := time.UnixMilli(1_700_000_000_000)
	f := &Facts{
		Diagnosis: Diagnosis{
			Config: Config{Config: security.Config{AppID: "app", InstanceID: "one"}, Partitions: 4, TransactionTimeout: 15 * time.Second, ReplicationFactor: 3},
			Routes: routes, Disk: Disk{Dir: "/state", Free: 50 << 30, Total: 100 << 30, Start: 5 << 30, Pause: 10 << 30},
		},
		topology: newTopology("app", routes), allowed: map[string][]kadm.ACLOperation{}, denied: map[string]bool{}, unread: map[string]error{},
		clocks:  clockFacts{machine: now, broker: now, exact: true, inputs: []newestEvent{{topic: "raw", at: now.Add(-time.Second), route: routes.Routes[0]}}},
		probes:  []probe{{resource: kafka.ResourceGroup, name: "app-dedup", operation: "Read"}, {resource: kafka.ResourceTransactionalID, name: "app-dedup-0/one", operation: "Write"}},
		logDirs: kadm.DescribedAllLogDirs{1: kadm.DescribedLogDirs{"/data": {Broker: 1, Dir: "/data", TotalBytes: 10 * gib, UsableBytes: 5 * gib}}},
	}
	for id := range int32(3) {
		f.brokers = append(f.brokers, brokerFacts{id: id, addr: "kafka:9092", version: "4.3", keys: keys, features: map[string]int16{transactionFeature: 2}})
	}
	s := &setup{cfg: f.Config}
	topics := f.topology
	topics.brokers, topics.Cluster = 3, "cluster"
	for n, name := range topics.all() {
		topics.Topics[name] = Topic{ID: [16]byte{byte(n + 1)}, Partitions: 4, Replicas: 3, InSync: 3}
		f.allowed[name] = []kadm.ACLOperation{kmsg.ACLOperationRead, kmsg.ACLOperationWrite, kmsg.ACLOperationDescribeConfigs, kmsg.ACLOperationDelete}
		topics.settings[name] = map[string]string{minInsyncConfig: "2"}
	}
	for _, topic := range append(s.firstTopics(topics), s.changelogs(topics)...) {
		if topic.name != "" {
			for key, value := range topic.configs {
				topics.settings[topic.name][key] = value
			}
		}
	}
	if f.manifest, err = newManifest("cluster"); err != nil {
		t.Fatal(err)
	}
	if _, err := f.manifest.reconcile(topics, routes, nil); err != nil {
		t.Fatal(err)
	}
	return f
}

// TestDiagnosis: each fact that is not as it should be has a finding with its level, in
// the check that a reader expects, and every finding says what to do.
func TestDiagnosis(t *testing.T) {
	quota := func(f *Facts, entity string, name *string, key string, value float64) {
		f.quotas = append(f.quotas, kadm.DescribedClientQuota{
			Entity: kadm.ClientQuotaEntity{{Type: entity, Name: name}}, Values: kadm.ClientQuotaValues{{Key: key, Value: value}},
		})
	}
	for _, tt := range []struct {
		name   string
		change func(f *Facts)
		check  string
		level  Level
		text   string // of the finding and its action
	}{
		{"healthy", func(*Facts) {}, "", OK, ""},
		{"no broker", func(f *Facts) { f.unread["brokers"] = errors.New("dial tcp: connection refused") }, "brokers", Fails, "connection refused"},
		{"a broker is down", func(f *Facts) { f.brokers = f.brokers[:2] }, "brokers", AtRisk, "2 of 3 brokers are up"},
		{"a broker does not respond", func(f *Facts) { f.brokers[1].err = errors.New("i/o timeout") }, "versions", Fails, "broker 1 at kafka:9092 does not respond: i/o timeout"},
		{"a request is missing", func(f *Facts) { f.brokers[0].keys = map[int16]int16{int16(kmsg.Metadata): 9} }, "versions", Fails, "lacks topic ids"},
		{"an old broker", func(f *Facts) { f.brokers[0].keys = olderThan36(f.brokers[0].keys) }, "versions", AtRisk, "Kafka older than 3.6"},
		{"an upgrade", func(f *Facts) { f.brokers[0].version = "3.9" }, "versions", AtRisk, "Kafka 3.9, 4.3"},
		{"old transactions", func(f *Facts) { f.brokers[0].features = nil }, "features", Note, "transaction.version is 0"},
		{"no group coordinator", func(f *Facts) { f.probes[0].err = kerr.CoordinatorNotAvailable }, "coordinators", Fails, "the coordinator of group app-dedup does not work"},
		{"coordinators that cannot be created", func(f *Facts) {
			f.brokerSettings = []map[string]string{{offsetsFactor: "5", transactionsFactor: "3"}, {offsetsFactor: "5", transactionsFactor: "5"}}
		}, "coordinators", Fails, "Kafka cannot create topic __consumer_offsets of 5 replicas (offsets.topic.replication.factor) and topic __transaction_state of 5 replicas " +
			"(transaction.state.log.replication.factor): the cluster has fewer brokers (3), so no group and no transaction begins -> start the other brokers, or set offsets.topic.replication.factor=3, " +
			"transaction.state.log.replication.factor=3 and transaction.state.log.min.isr=2 on each broker and restart it"},
		{"coordinators that exist", func(f *Facts) {
			f.brokerSettings = []map[string]string{{offsetsFactor: "5"}}
			f.topology.Topics[offsetsTopic] = Topic{Partitions: 50, Replicas: 3, InSync: 3}
		}, "coordinators", OK, "respond"},
		{"a session that is too short", func(f *Facts) {
			f.brokerSettings = []map[string]string{{sessionMin: "6000", sessionMax: "1800000"}}
			f.SessionTimeout = time.Second
		}, "coordinators", Fails, "the brokers refuse ONCEBUS_SESSION_TIMEOUT=1s: group.min.session.timeout.ms is 6s, group.max.session.timeout.ms is 30m0s -> set ONCEBUS_SESSION_TIMEOUT to a time between them"},
		{"settings that are not known", func(f *Facts) { f.brokerSettings = []map[string]string{{}} }, "coordinators", OK, "respond"},
		{"no right on the group", func(f *Facts) { f.probes[0].err = kerr.GroupAuthorizationFailed }, "rights", Fails, "no right to Read on group app-dedup -> kafka-acls.sh --add --allow-principal ... --operation Read --group app-dedup"},
		{"no right on the id", func(f *Facts) { f.probes[1].err = kerr.TransactionalIDAuthorizationFailed }, "rights", Fails, "no right to Write on transactional-id app-dedup-0/one"},
		{"no right on an input", func(f *Facts) { f.allowed["raw"] = f.allowed["raw"][1:] }, "rights", Fails, "no right to Read on topic raw -> kafka-acls.sh"},
		{"a denied topic", func(f *Facts) { f.denied["out"] = true }, "rights", Fails, "no right to Write on topic out"},
		{"no right to purge", func(f *Facts) { f.allowed["app-repartition"] = f.allowed["app-repartition"][:3] }, "rights", AtRisk, "no right to Delete on topic app-repartition"},
		{"a missing topic", func(f *Facts) { f.refused = []error{kafka.OperatorErrorf("topic raw does not exist: create it")} }, "topics", Fails, "topic raw does not exist: create it"},
		{"a wrong setting", func(f *Facts) { f.topology.settings["app-repartition"]["retention.ms"] = "86400000" }, "settings", Fails, "app-repartition has retention.ms=86400000, it must be -1: alter it with kafka-configs.sh"},
		{"large segments", func(f *Facts) { f.topology.settings["app-repartition"]["segment.bytes"] = "1073741824" }, "settings", Note, "each of its 4 partitions keeps up to so many bytes of records that were purged -> kafka-configs.sh --alter --entity-type topics --entity-name app-repartition --add-config segment.bytes=67108864"},
		{"large segments of a changelog", func(f *Facts) { f.topology.settings["app-repartition-changelog"]["segment.bytes"] = "1073741824" }, "settings", Note, "--entity-name app-repartition-changelog --add-config segment.bytes=268435456"},
		{"an output that keeps less than its input", func(f *Facts) {
			f.topology.settings["raw"]["retention.ms"], f.topology.settings["out"]["retention.ms"] = "2592000000", "604800000"
		}, "settings", Note, "topic out has retention.ms=604800000, and its input raw keeps events for longer: an event comes out with its own timestamp, so Kafka deletes one of a backlog that is older -> " +
			"kafka-configs.sh --alter --entity-type topics --entity-name out --add-config retention.ms=2592000000"},
		{"an input without a retention", func(f *Facts) {
			f.topology.settings["raw"]["retention.ms"], f.topology.settings["out"]["retention.ms"] = "-1", "604800000"
		}, "settings", Note, "--entity-name out --add-config retention.ms=-1"},
		{"an output with the broker's timestamps", func(f *Facts) {
			f.topology.settings["raw"]["retention.ms"] = "-1"
			f.topology.settings["out"]["retention.ms"], f.topology.settings["out"]["message.timestamp.type"] = "604800000", "LogAppendTime"
		}, "settings", OK, "topic out: "},
		{"an output that keeps more than its input", func(f *Facts) {
			f.topology.settings["raw"]["retention.ms"], f.topology.settings["out"]["retention.ms"] = "604800000", "-1"
		}, "settings", OK, "topic out: "},
		{"a small dead-letter topic", func(f *Facts) { f.topology.settings["dead"]["max.message.bytes"] = "100" }, "settings", Fails, "dead-letter topic dead has max.message.bytes=100"},
		{"a compacted outcomes topic", func(f *Facts) { f.topology.settings["outcomes"]["cleanup.policy"] = "compact" }, "settings", Fails, "outcomes topic outcomes has cleanup.policy=compact: "},
		{"an outcomes topic that also compacts", func(f *Facts) { f.topology.settings["outcomes"]["cleanup.policy"] = "compact,delete" }, "settings", Fails, "--entity-name outcomes --add-config cleanup.policy=delete"},
		{"one replica in sync", func(f *Facts) {
			f.topology.Topics["raw"] = Topic{Partitions: 4, Replicas: 3, InSync: 1}
			f.topology.settings["raw"] = nil
		}, "replicas", AtRisk, "topic raw has 1 of 3 replicas in sync"},
		{"another cluster", func(f *Facts) { f.topology.Cluster = "other" }, "manifest", Fails, "written for cluster cluster, this is cluster other"},
		{"a changed key rule", func(f *Facts) { f.manifest.Namespaces[0].KeyRule = "old" }, "manifest", Fails, "its key rule changed"},
		{"no manifest yet", func(f *Facts) { f.manifest = nil }, "manifest", OK, "the first start of app app writes it"},
		{"a route is switched off", func(f *Facts) { f.Routes.Routes[0].Off = true }, "routes", Note, "nothing is stored: signals -> take `enabled: false` out"},
		{"this machine is ahead", func(f *Facts) { f.clocks.machine = f.clocks.machine.Add(10 * time.Minute) }, "clocks", AtRisk, "10m0s ahead of the brokers"},
		{"this machine is behind", func(f *Facts) { f.clocks.machine = f.clocks.machine.Add(-10 * time.Minute) }, "clocks", AtRisk, "10m0s behind the brokers"},
		{"behind, by the newest record", func(f *Facts) { f.clocks.machine, f.clocks.exact = f.clocks.machine.Add(-10*time.Minute), false }, "clocks", AtRisk, "at least 10m0s behind the brokers"},
		{"idle, the brokers' clock is not readable", func(f *Facts) { f.clocks.machine, f.clocks.exact = f.clocks.machine.Add(time.Hour), false }, "clocks", Unchecked, "1h0m0s old by this machine's clock"},
		{"half a minute off", func(f *Facts) { f.clocks.machine = f.clocks.machine.Add(30 * time.Second) }, "clocks", OK, "less than 1m0s"},
		{"events from the future", func(f *Facts) { f.clocks.inputs[0].at = f.clocks.machine.Add(10 * time.Minute) }, "clocks", AtRisk, "topic raw: the newest event is 10m0s ahead of the brokers: it moves stream time"},
		{"events beyond the skew", func(f *Facts) { f.clocks.inputs[0].at = f.clocks.machine.Add(3 * time.Hour) }, "clocks", AtRisk, "more than the skew of route signals"},
		{"throttled", func(f *Facts) { f.throttled = 3 * time.Second }, "quotas", AtRisk, "delayed a response by 3s"},
		{"a quota", func(f *Facts) { quota(f, "user", nil, producerQuota, 10e6) }, "quotas", Note, "user (default) has producer_byte_rate=1e+07"},
		{"a quota below one record", func(f *Facts) { quota(f, "client-id", kmsg.StringPtr("app-one-dedup-0"), producerQuota, 1000) }, "quotas", AtRisk, "takes longer than ONCEBUS_TRANSACTION_TIMEOUT (15s)"},
		{"a quota of another client", func(f *Facts) { quota(f, "client-id", kmsg.StringPtr("other"), producerQuota, 1) }, "quotas", OK, "no quota applies"},
		{"quotas are not readable", func(f *Facts) { f.unread["quotas"] = kerr.ClusterAuthorizationFailed }, "quotas", Unchecked, "oncebus runs without this right"},
		{"the disk is full", func(f *Facts) { f.Disk.Free = 4 << 30 }, "disks", Fails, "4096 MiB free, a start needs 5120 MiB"},
		{"the disk fills", func(f *Facts) { f.Disk.Free = 9 << 30 }, "disks", AtRisk, "tasks pause below 10240 MiB"},
		{"a network file system", func(f *Facts) { f.Disk.Network = "NFS" }, "disks", Fails, "on a network file system (NFS)"},
		{"a broker's disk fills", func(f *Facts) {
			f.logDirs[1]["/data"] = kadm.DescribedLogDir{Broker: 1, Dir: "/data", TotalBytes: 100, UsableBytes: 5}
		}, "disks", AtRisk, "broker 1: the disk of /data has 5.0 % free"},
		{"the brokers' disks are not readable", func(f *Facts) { f.logDirs = nil }, "disks", Unchecked, "not readable"},
		{"a request failed", func(f *Facts) { f.unread["clocks"] = context.DeadlineExceeded }, "clocks", AtRisk, "not readable: context deadline exceeded"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := healthyFacts(t)
			tt.change(f)
			findings := f.Judge()
			if got := Worst(findings); got != tt.level {
				t.Errorf("%v, want %v: %+v", got, tt.level, findings)
			}
			shown := tt.check == ""
			for _, finding := range findings {
				shown = shown || finding.Check == tt.check && finding.Level == tt.level && strings.Contains(fmt.Sprintf("%s -> %s", finding.Text, finding.Action), tt.text)
				if finding.Level != OK && finding.Action == "" && !strings.Contains(finding.Text, ": ") {
					t.Errorf("%s: %q does not say what to do", finding.Check, finding.Text)
				}
			}
			if !shown {
				t.Errorf("no finding of %s with %q: %+v", tt.check, tt.text, findings)
			}
			if again := f.Judge(); fmt.Sprint(again) != fmt.Sprint(findings) {
				t.Errorf("the second verdict on the same facts is %+v, the first was %+v", again, findings)
			}
		})
	}
}

// olderThan36 returns the requests of a broker without those that Kafka 3.6 added.
func olderThan36(keys map[int16]int16) map[int16]int16 {
	older := map[int16]int16{}
	for key, version := range keys {
		older[key] = version
	}
	older[releases[0].key] = releases[0].version - 1
	return older
}

// TestEveryCheckReports: a healthy app has at least one line for each check.
func TestEveryCheckReports(t *testing.T) {
	findings := healthyFacts(t).Judge()
	for _, check := range checks {
		found := false
		for _, f := range findings {
			found = found || f.Check == check.name
		}
		if !found {
			t.Errorf("check %s reports nothing", check.name)
		}
	}
}

// TestRelease: a broker's requests show its version.
func TestRelease(t *testing.T) {
	keys := map[int16]int16{}
	for n, r := range releases {
		keys[r.key] = r.version
		want := r.name
		if n == len(releases)-1 {
			want += " or later"
		}
		if got := release(keys); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestParts: joined errors are taken apart, an error that wraps several is one.
func TestParts(t *testing.T) {
	one, two := kafka.OperatorErrorf("one"), kafka.OperatorErrorf("two: %w", errors.Join(errors.New("a"), errors.New("b")))
	if got := parts(errors.Join(one, errors.Join(two, one))); len(got) != 3 {
		t.Errorf("%d parts: %q", len(got), got)
	}
	if got := parts(nil); got != nil {
		t.Errorf("parts of no error: %q", got)
	}
}
