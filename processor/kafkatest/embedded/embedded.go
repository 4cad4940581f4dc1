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
	// sessionMin is the shortest session timeout, so that a test can lose a group
	// member within a second, in ms; kfake's default is 6 s.
	sessionMin = "100"
	// partitionsDefault is the partition count of topics that are created without
	// one; kfake's default is 10.
	partitionsDefault = 4
	// telemetryMillis is after what time a client asks again which of its metrics the
	// cluster wants.
	telemetryMillis = 60 * 60 * 1000
)

// A Cluster is an embedded broker, or several, for one test.
type Cluster struct {
	*kfake.Cluster

	tb testing.TB
}

// Start starts one broker, or as opts define, and closes it when the test ends.
func Start(tb testing.TB, opts ...kfake.Opt) *Cluster {
	tb.Helper()
	releaseAtEnd(tb)
	defaults := []kfake.Opt{
		kfake.NumBrokers(1), kfake.DefaultNumPartitions(partitionsDefault),
		// kfake compacts beyond the last stable offset, which can drop rows of an open transaction.
		kfake.BrokerConfigs(map[string]string{"log.cleaner.backoff.ms": "1000000000000", "group.min.session.timeout.ms": sessionMin}),
	}
	cluster, err := kfake.NewCluster(append(defaults, opts...)...)
	if err != nil {
		tb.Fatalf("start the embedded broker: %v", err)
	}
	tb.Cleanup(cluster.Close)
	c := &Cluster{Cluster: cluster, tb: tb}
	c.Intercept(func(req kmsg.Request) (kmsg.Response, error, bool) {
		// kfake omits a partition's list of aborted transactions when the response
		// ends by its size, so readers get aborted records. Each partition has a
		// limit of its own, after which kfake keeps the list.
		if fetch, ok := req.(*kmsg.FetchRequest); ok {
			fetch.MaxBytes = math.MaxInt32
		}
		return nil, nil, false
	}, kmsg.Fetch)
	c.Intercept(func(req kmsg.Request) (kmsg.Response, error, bool) {
		// kfake asks every client for its metrics. It throws them away, and they are a seventh of what the tests of package processor allocate.
		resp := req.ResponseKind().(*kmsg.GetTelemetrySubscriptionsResponse)
		resp.PushIntervalMillis = telemetryMillis
		return resp, nil, true
	}, kmsg.GetTelemetrySubscriptions)
	return c
}

// CreateTopic creates a topic with settings, given as name, value, name, value.
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

// Intercept calls fn with every request of these kinds, or of every kind if there are
// none, until the cluster closes. fn returns whether it handled the request, with a
// response, or with an error that closes the connection. The cluster handles the
// other requests.
func (c *Cluster) Intercept(fn func(kmsg.Request) (kmsg.Response, error, bool), keys ...kmsg.Key) {
	kept := func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl() // else kfake removes the function after the first request that it handles
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
