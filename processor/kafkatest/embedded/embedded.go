package embedded

import (
	"math"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	// sessionMin is the shortest session timeout that the broker accepts, in ms. kfake's default is 6 s; with 100 ms
	// a test can lose a group member within a second.
	sessionMin = "100"
	// partitionsDefault is the number of partitions of a topic that is created without a number; kfake's default is
	// 10.
	partitionsDefault = 4
	// telemetryMillis is the time in ms after which a client asks again which of its metrics the cluster wants: an
	// hour, so in practice never.
	telemetryMillis = 60 * 60 * 1000
)

// Cluster is an embedded broker, or several, for one test.
type Cluster struct {
	*kfake.Cluster

	tb testing.TB
}

// Start starts one broker, or a cluster as opts define it, and closes it when the test ends.
func Start(tb testing.TB, opts ...kfake.Opt) *Cluster {
	tb.Helper()
	releaseAtEnd(tb)
	defaults := []kfake.Opt{
		kfake.NumBrokers(1), kfake.DefaultNumPartitions(partitionsDefault),
		// This interval switches compaction off: kfake compacts beyond the last stable offset, which can drop rows of
		// an open transaction.
		kfake.BrokerConfigs(map[string]string{"log.cleaner.backoff.ms": "1000000000000", "group.min.session.timeout.ms": sessionMin}),
	}
	cluster, err := kfake.NewCluster(append(defaults, opts...)...)
	if err != nil {
		tb.Fatalf("start the embedded broker: %v", err)
	}
	tb.Cleanup(cluster.Close)
	c := &Cluster{Cluster: cluster, tb: tb}
	c.Intercept(func(req kmsg.Request) (kmsg.Response, error, bool) {
		// If a fetch response reaches its total size limit, kfake omits the list of aborted transactions of the
		// partition at which it ends, and readers then get aborted records. kfake keeps the list if a partition
		// reaches its own limit, so only the total limit is lifted here.
		if fetch, ok := req.(*kmsg.FetchRequest); ok {
			fetch.MaxBytes = math.MaxInt32
		}
		return nil, nil, false
	}, kmsg.Fetch)
	c.Intercept(func(req kmsg.Request) (kmsg.Response, error, bool) {
		// kfake asks every client for its metrics and throws them away. They were a seventh of the memory that the
		// tests of package processor allocate.
		resp := req.ResponseKind().(*kmsg.GetTelemetrySubscriptionsResponse)
		resp.PushIntervalMillis = telemetryMillis
		return resp, nil, true
	}, kmsg.GetTelemetrySubscriptions)
	return c
}

// CreateTopic creates a topic. Settings are pairs: name, value, name, value.
func (c *Cluster) CreateTopic(name string, partitions int32, settings ...string) {
	c.tb.Helper()
	configs := map[string]string{}
	for n := 0; n < len(settings); n += 2 {
		configs[settings[n]] = settings[n+1]
	}
	if err := c.Cluster.CreateTopic(name, partitions, configs); err != nil {
		c.tb.Fatalf("create topic %s: %v", name, err)
	}
}

// Intercept calls fn with every request of the given kinds, or with every request if there are none, until the
// cluster closes. fn returns true if it handled the request: with a response, or with an error that closes the
// connection. The cluster handles the requests for which fn returns false.
func (c *Cluster) Intercept(fn func(kmsg.Request) (kmsg.Response, error, bool), keys ...kmsg.Key) {
	kept := func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl() // otherwise kfake removes the function after the first request that it handles
		return fn(req)
	}
	if len(keys) == 0 {
		c.Control(kept)
	}
	for _, key := range keys {
		c.ControlKey(key.Int16(), kept)
	}
}

// Client returns a client of the cluster, which closes when the test ends.
func (c *Cluster) Client(opts ...kgo.Opt) *kgo.Client {
	c.tb.Helper()
	client, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(c.ListenAddrs()...)}, opts...)...)
	if err != nil {
		c.tb.Fatalf("make a client of the embedded broker: %v", err)
	}
	c.tb.Cleanup(client.Close)
	return client
}

// Admin returns an admin client of the cluster, which closes when the test ends.
func (c *Cluster) Admin() *kadm.Client {
	c.tb.Helper()
	return kadm.NewClient(c.Client())
}
