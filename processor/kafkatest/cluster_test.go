//go:build unix

package kafkatest_test

import (
	"context"
	"errors"
	"fmt"
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

// clusterTopic has one partition for each broker, because the controller spreads the leaders over the brokers.
const clusterTopic = "cluster"

// TestRealCluster stops and pauses the nodes of one cluster of three brokers. Some of its clients connect through a
// proxy.
func TestRealCluster(t *testing.T) {
	t.Parallel()
	px, err := proxy.Listen(t.Context(), 3)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := px.Close(); err != nil {
			t.Errorf("close the proxy: %v", err)
		}
	})
	c := kafkatest.StartNodes(t, 3, kafkatest.WithListener(kafkatest.Listener{Name: "PROXIED", Advertise: px.Addrs()}))
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
			break // the cluster is in an unknown state
		}
	}
}

// writer returns a client that writes each record to the partition of clusterTopic that the record names.
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

// impatient makes a write fail at once. An idempotent producer would retry, because it must not skip a sequence
// number that the broker may have received.
var impatient = []kgo.Opt{kgo.DisableIdempotentWrite(), kgo.RecordRetries(0)}

// write produces one record to every partition and waits for all in-sync replicas.
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

// eventually calls ask until it returns nil or the deadline has passed: a cluster does not announce that its state
// has changed.
func eventually(t *testing.T, ask func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	if err := kafkatest.Await(ctx, "the cluster reaches the state", ask); err != nil {
		t.Fatal(err)
	}
}

// inSync waits until every partition of the topic has this number of replicas in sync, and a leader other than
// notLeader.
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

// replicated checks that topics have three replicas on three brokers, and that two must be in sync for a write.
func replicated(t *testing.T, c *kafkatest.Cluster) {
	if len(c.Seeds()) != 3 || len(c.Brokers()) != 3 {
		t.Errorf("seeds %v", c.Seeds())
	}
	for i, n := range c.Brokers() {
		if n.ID() != int32(i+1) {
			t.Errorf("broker %d has the id %d", i+1, n.ID())
		}
	}
	eventually(t, func(ctx context.Context) error { // the new topic may be missing in a broker's metadata
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

// throughProxy checks that a client whose seed is the proxy uses only the proxy: when the proxy cuts the connection
// to one broker, the client cannot write to the partitions that this broker leads.
func throughProxy(t *testing.T, c *kafkatest.Cluster, px *proxy.Proxy) {
	t.Helper()
	cl := writer(t, px.Addrs()[:1], append(impatient, kgo.ClientID("proxied"))...)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	// A broker may not know the id of the new topic yet, and this client does not retry.
	if err := kafkatest.Await(ctx, "the first write", func(context.Context) error { return write(t, cl) }); err != nil {
		t.Fatal(err)
	}
	f, err := px.Add(proxy.Rule{Match: proxy.Match{ClientID: "proxied", Node: 2}, Action: proxy.DropRequest})
	if err != nil {
		t.Fatal(err)
	}
	if err := write(t, cl); err == nil || f.Struck() == 0 {
		t.Errorf("write without broker 2: %v; the rule struck %d times", err, f.Struck())
	}
	if err := write(t, writer(t, c.Seeds())); err != nil {
		t.Errorf("write past the proxy: %v", err)
	}
	px.Clear()
	if err := write(t, writer(t, px.Addrs())); err != nil {
		t.Errorf("write through the healed proxy: %v", err)
	}
}

// oneKilled: two of three brokers continue without the third. When the third is started again, it becomes in sync
// again.
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

// onePaused: a paused broker loses the leadership of its partitions. When it is resumed, it becomes in sync again.
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

// tooFewInSync: while one of three replicas is in sync, writes with acks=all fail; when two are in sync, they
// succeed.
func tooFewInSync(t *testing.T, c *kafkatest.Cluster) {
	brokers := c.Brokers()
	for _, n := range brokers[1:] {
		if err := n.Kill(); err != nil {
			t.Fatal(err)
		}
	}
	inSync(t, c, clusterTopic, 1, 0)
	hasty := writer(t, c.Seeds(), impatient...)
	// The last broker may become leader before it knows that the others are out of sync; it then refuses with another
	// error.
	eventually(t, func(context.Context) error {
		err := write(t, hasty)
		if err == nil {
			return kafkatest.Fatal(errors.New("one of three accepted a write that two must have"))
		} else if errors.Is(err, kerr.NotEnoughReplicas) {
			return nil
		}
		return fmt.Errorf("write to one of three: %w", err)
	})
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

// controllerKilled: the brokers continue without the controller. When the controller is started again, it has its old
// state.
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

// TestListenerOptions: StartCluster refuses invalid listeners before it starts anything.
func TestListenerOptions(t *testing.T) {
	for name, l := range map[string]kafkatest.Listener{
		"no name": {}, "the harness's listener": {Name: "PLAINTEXT"}, "addresses for too few brokers": {Name: "PROXIED", Advertise: []string{"a:1", "b:2"}},
	} {
		if _, err := kafkatest.StartCluster(t.Context(), t.TempDir(), 1, kafkatest.WithListener(l)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := kafkatest.StartCluster(t.Context(), t.TempDir(), 0); err == nil {
		t.Error("no brokers: no error")
	}
}

// TestRealSecuredListener: a listener has its own protocol, properties and authorizer. The right password opens it, a
// wrong password does not, and the harness's own listener stays open to the harness.
func TestRealSecuredListener(t *testing.T) {
	t.Parallel()
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
