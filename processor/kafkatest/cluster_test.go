//go:build unix

package kafkatest_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/plain"

	"oncebus/processor/kafkatest"
	"oncebus/processor/kafkatest/proxy"
)

// clusterTopic has a partition led by each broker, as the controller spreads them.
const clusterTopic = "cluster"

// TestCluster takes one cluster of three brokers, behind a proxy for those that want it, through the loss of its nodes.
func TestCluster(t *testing.T) {
	px, err := proxy.Listen(t.Context(), 3)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := px.Close(); err != nil {
			t.Errorf("close the proxy: %v", err)
		}
	})
	c := startCluster(t, kafkatest.WithListener(kafkatest.Listener{Name: "PROXIED", Advertise: px.Addrs()}))
	if err := px.Forward(c.ListenAddrs("PROXIED")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Admin().CreateTopic(t.Context(), 3, -1, nil, clusterTopic); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name string
		run  func(*testing.T, *kafkatest.Cluster)
	}{
		{"replicated", replicated},
		{"through the proxy", func(t *testing.T, c *kafkatest.Cluster) { t.Helper(); throughProxy(t, c, px) }},
		{"one killed", oneKilled},
		{"one paused", onePaused},
		{"too few in sync", tooFewInSync},
		{"controller killed", controllerKilled},
	} {
		if !t.Run(test.name, func(t *testing.T) { test.run(t, c) }) {
			break // the cluster is not as the next one expects it
		}
	}
}

func startCluster(t *testing.T, opts ...kafkatest.Option) *kafkatest.Cluster {
	t.Helper()
	c, err := kafkatest.StartCluster(t.Context(), t.TempDir(), 3, append(opts, kafkatest.WithShortLife())...)
	if errors.Is(err, kafkatest.ErrUnavailable) && os.Getenv("CI") != "true" {
		t.Skipf("skipped: %v", err)
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			for _, n := range append(c.Brokers(), c.Controller()) {
				t.Logf("end of the log of node %d:\n%s", n.ID(), n.LogTail())
			}
		}
		if err := c.Close(); err != nil {
			t.Errorf("close the cluster: %v", err)
		}
	})
	return c
}

// writer is a client that writes to the partitions of clusterTopic that records name.
func writer(t *testing.T, seeds []string, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	cl, err := kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(seeds...), kgo.DefaultProduceTopic(clusterTopic), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.MetadataMinAge(100 * time.Millisecond),
	}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return cl
}

// impatient lets a write fail at once. An idempotent producer would continue trying: it may not skip a sequence number that the
// broker may have seen.
var impatient = []kgo.Opt{kgo.DisableIdempotentWrite(), kgo.RecordRetries(0)}

// write produces one record to every partition and waits for all replicas that are in sync.
func write(t *testing.T, cl *kgo.Client) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	var records []*kgo.Record
	for p := range int32(3) {
		records = append(records, &kgo.Record{Partition: p, Value: []byte(t.Name())})
	}
	return cl.ProduceSync(ctx, records...).FirstErr()
}

// eventually calls ask until it returns nil, at most for the deadline: a cluster does not announce its state.
func eventually(t *testing.T, ask func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	if err := kafkatest.Await(ctx, "the cluster got there by itself", ask); err != nil {
		t.Fatal(err)
	}
}

// inSync waits until every partition of the topic has so many replicas in sync, and a leader that is not the node given.
func inSync(t *testing.T, c *kafkatest.Cluster, topic string, replicas int, notLeader int32) {
	t.Helper()
	eventually(t, func(ctx context.Context) error {
		topics, err := c.Admin().ListTopics(ctx, topic)
		if err != nil {
			return err
		}
		for _, p := range topics[topic].Partitions.Sorted() {
			if len(p.ISR) != replicas || p.Leader < 0 || p.Leader == notLeader {
				return fmt.Errorf("%s/%d: leader %d, in sync %v; want %d in sync", topic, p.Partition, p.Leader, p.ISR, replicas)
			}
		}
		return topics[topic].Err
	})
}

// The topic and Kafka's own have three replicas on three brokers, two of which must be in sync.
func replicated(t *testing.T, c *kafkatest.Cluster) {
	if len(c.Seeds()) != 3 || len(c.Brokers()) != 3 {
		t.Errorf("seeds %v", c.Seeds())
	}
	for i, n := range c.Brokers() {
		if n.ID() != int32(i+1) {
			t.Errorf("broker %d has the id %d", i+1, n.ID())
		}
	}
	eventually(t, func(ctx context.Context) error { // a broker may not have heard of the topic yet
		topics, err := c.Admin().ListTopicsWithInternal(ctx)
		if err != nil {
			return err
		}
		for _, topic := range []string{clusterTopic, "__consumer_offsets", "__transaction_state"} {
			if len(topics[topic].Partitions) < 3 {
				return fmt.Errorf("%s has the partitions %v", topic, topics[topic].Partitions.Numbers())
			}
			for _, p := range topics[topic].Partitions.Sorted() {
				if len(p.Replicas) != 3 {
					return fmt.Errorf("%s/%d has the replicas %v", topic, p.Partition, p.Replicas)
				}
			}
		}
		configs, err := c.Admin().DescribeTopicConfigs(ctx, clusterTopic)
		if err != nil {
			return err
		}
		config, err := configs.On(clusterTopic, func(rc *kadm.ResourceConfig) error { return rc.Err })
		if err != nil {
			return err
		}
		i := slices.IndexFunc(config.Configs, func(c kadm.Config) bool { return c.Key == "min.insync.replicas" })
		if i < 0 || config.Configs[i].MaybeValue() != "2" {
			return fmt.Errorf("min.insync.replicas is not 2: %+v", config.Configs)
		}
		return nil
	})
}

// A client that starts at the proxy reaches all three brokers through it, and no other way: cut off from one, it cannot write
// what that one leads.
func throughProxy(t *testing.T, c *kafkatest.Cluster, px *proxy.Proxy) {
	t.Helper()
	cl := writer(t, px.Addrs()[:1], append(impatient, kgo.ClientID("proxied"))...)
	if err := write(t, cl); err != nil {
		t.Fatal(err)
	}
	f, err := px.Add(proxy.Rule{Match: proxy.Match{ClientID: "proxied", Node: 2}, Action: proxy.DropRequest})
	if err != nil {
		t.Fatal(err)
	}
	if err := write(t, cl); err == nil || f.Struck() == 0 {
		t.Errorf("write without broker 2: %v after %d strikes", err, f.Struck())
	}
	if err := write(t, writer(t, c.Seeds())); err != nil {
		t.Errorf("write past the proxy: %v", err)
	}
	px.Clear()
	if err := write(t, writer(t, px.Addrs())); err != nil {
		t.Errorf("write through the healed proxy: %v", err)
	}
}

// Two of three brokers continue without the third, which finds its place again.
func oneKilled(t *testing.T, c *kafkatest.Cluster) {
	victim := c.Brokers()[0]
	if err := victim.Kill(); err != nil || victim.Running() {
		t.Fatalf("kill: %v", err)
	}
	cl := writer(t, c.Seeds())
	if err := write(t, cl); err != nil {
		t.Errorf("write with two of three: %v", err)
	}
	inSync(t, c, clusterTopic, 2, victim.ID())
	if err := victim.Pause(); err == nil {
		t.Error("a dead node can be paused")
	}
	if err := victim.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := victim.Restart(t.Context()); err == nil {
		t.Error("a restart of a running node is no error")
	}
	inSync(t, c, clusterTopic, 3, 0)
	if err := write(t, cl); err != nil {
		t.Errorf("write after the restart: %v", err)
	}
}

// A paused broker keeps its process and loses its partitions; continued it takes part again.
func onePaused(t *testing.T, c *kafkatest.Cluster) {
	victim := c.Brokers()[1]
	if err := victim.Pause(); err != nil || !victim.Running() {
		t.Fatalf("pause: %v", err)
	}
	inSync(t, c, clusterTopic, 2, victim.ID())
	if err := write(t, writer(t, c.Seeds())); err != nil {
		t.Errorf("write with one paused: %v", err)
	}
	if err := victim.Resume(); err != nil {
		t.Fatal(err)
	}
	inSync(t, c, clusterTopic, 3, 0)
	if err := c.WaitReady(t.Context()); err != nil {
		t.Error(err)
	}
}

// With one of three replicas left, nothing that asks for all is written; once there are two again, it is.
func tooFewInSync(t *testing.T, c *kafkatest.Cluster) {
	brokers := c.Brokers()
	for _, n := range brokers[1:] {
		if err := n.Kill(); err != nil {
			t.Fatal(err)
		}
	}
	inSync(t, c, clusterTopic, 1, 0)
	if err := write(t, writer(t, c.Seeds(), impatient...)); !errors.Is(err, kerr.NotEnoughReplicas) {
		t.Errorf("write to one of three: %v", err)
	}
	patient := writer(t, c.Seeds())
	written := make(chan error, 1)
	patient.Produce(t.Context(), &kgo.Record{Value: []byte("patience")}, func(_ *kgo.Record, err error) { written <- err })
	if err := brokers[1].Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-written:
		if err != nil {
			t.Errorf("write once there are two: %v", err)
		}
	case <-time.After(deadline):
		t.Error("no write with two of three")
	}
	if err := brokers[2].Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	inSync(t, c, clusterTopic, 3, 0)
}

// Without a controller the brokers continue; it comes back with what it knew.
func controllerKilled(t *testing.T, c *kafkatest.Cluster) {
	if err := c.Controller().Kill(); err != nil {
		t.Fatal(err)
	}
	if err := write(t, writer(t, c.Seeds())); err != nil {
		t.Errorf("write without the controller: %v", err)
	}
	if err := c.Controller().Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Admin().CreateTopic(t.Context(), 1, -1, nil, "after"); err != nil {
		t.Errorf("create a topic after the restart: %v", err)
	}
}

// Listeners that cannot be are refused before anything is started.
func TestListenerOptions(t *testing.T) {
	for name, l := range map[string]kafkatest.Listener{
		"no name": {}, "the harness's own": {Name: "PLAINTEXT"}, "addresses for others": {Name: "PROXIED", Advertise: []string{"a:1", "b:2"}},
	} {
		if _, err := kafkatest.StartCluster(t.Context(), t.TempDir(), 1, kafkatest.WithListener(l)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := kafkatest.StartCluster(t.Context(), t.TempDir(), 0); err == nil {
		t.Error("no brokers: no error")
	}
}

// A listener with a protocol, properties and the authorizer of its own: a password opens it, another does not, and the harness's
// own way in stays.
func TestSecuredListener(t *testing.T) {
	b := kafkatest.Start(t,
		kafkatest.WithListener(kafkatest.Listener{Name: "SECURED", Protocol: "SASL_PLAINTEXT"}),
		kafkatest.WithProperty("listener.name.secured.sasl.enabled.mechanisms", "PLAIN"),
		kafkatest.WithProperty("listener.name.secured.plain.sasl.jaas.config",
			`org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="secret";`),
		kafkatest.WithProperty("authorizer.class.name", "org.apache.kafka.metadata.authorizer.StandardAuthorizer"),
		kafkatest.WithProperty("super.users", "User:ANONYMOUS"))
	topic := createTopic(t, b, nil)
	for password, want := range map[string]error{"secret": kerr.TopicAuthorizationFailed, "wrong": kerr.SaslAuthenticationFailed} {
		cl, err := kgo.NewClient(kgo.SeedBrokers(b.ListenAddrs("SECURED")...), kgo.DefaultProduceTopic(topic), kgo.RecordRetries(0), kgo.RequestRetries(0),
			kgo.SASL(plain.Auth{User: "alice", Pass: password}.AsMechanism()))
		if err != nil {
			t.Fatal(err)
		}
		if err := cl.Ping(t.Context()); password == "secret" && err != nil || password == "wrong" && !errors.Is(err, want) {
			t.Errorf("password %s: %v", password, err)
		}
		if password == "secret" {
			if err := cl.ProduceSync(t.Context(), kgo.StringRecord("v")).FirstErr(); !errors.Is(err, want) {
				t.Errorf("produce without an ACL: %v", err)
			}
		}
		cl.Close()
	}
}
