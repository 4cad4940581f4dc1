//go:build unix

package kafkatest

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	// portTries is how often a first start tries new ports. Another process can take a port between the moment when
	// the harness finds it free and the moment when Kafka binds it.
	portTries = 3
	// replicasMax limits the replication factor of topics, internal topics included. A cluster with fewer brokers has
	// one replica for each broker. With three replicas, two must be in sync for a write.
	replicasMax = 3
	// controllerID and controllerHeapMiB are the node id and the Java heap of the separate controller process.
	controllerID      = 100
	controllerHeapMiB = 256
)

// Cluster is a running Apache Kafka cluster: brokers that the harness started, or the cluster that
// ONCEBUS_TEST_BROKERS names. A single broker is its own controller, except with [WithController]. Several brokers
// have a separate controller process, so that a test which stops brokers loses replicas but never the quorum. A
// Cluster is not safe for concurrent use.
type Cluster struct {
	seeds    []string
	client   *kgo.Client
	admin    *kadm.Client
	external bool

	// The fields below are set only for a cluster that the harness started.
	dir        string
	opts       options
	brokers    []*Node
	controller *Node // nil if the only broker is also the controller
}

// StartCluster starts n Apache Kafka brokers. It creates dir and puts their data and logs below it. It returns once
// clients can use groups and transactions. With three brokers or more, topics have three replicas by default, two of
// which must be in sync for a write. The caller calls [Cluster.Close], which leaves dir in place. On a machine
// without Java or the jars the error wraps [ErrUnavailable]. Any other error contains the end of the failed node's
// log.
func StartCluster(ctx context.Context, dir string, n int, opts ...Option) (*Cluster, error) {
	c := &Cluster{dir: dir, opts: newOptions(opts)}
	if n < 1 {
		return nil, fmt.Errorf("start a cluster of %d brokers: need one at least", n)
	}
	if err := c.opts.validate(n); err != nil {
		return nil, err
	}
	dist, err := install(ctx, c.opts.version)
	if err != nil {
		return nil, err
	}
	if err := c.start(ctx, dist, n); err != nil {
		return nil, err
	}
	return c, nil
}

// start starts n brokers. If another process took one of the ports, it tries again with other ports.
func (c *Cluster) start(ctx context.Context, dist dist, n int) error {
	for try := 1; ; try++ {
		err := c.firstStart(ctx, dist, n)
		if err == nil {
			return nil
		}
		if !errors.Is(err, errPortTaken) || try == portTries {
			return errors.Join(err, c.Close())
		}
		if err := c.Close(); err != nil {
			return err
		}
	}
}

// firstStart chooses ports, formats the storage, starts the nodes and waits until clients can use them.
func (c *Cluster) firstStart(ctx context.Context, dist dist, n int) error {
	settings, err := c.plan(ctx, dist, n)
	if err != nil {
		return err
	}
	clusterID := newID()
	err = c.eachNode(func(node *Node) error { return node.format(clusterID, settings[node]) })
	if err != nil {
		return err
	}
	if err := c.connect(); err != nil {
		return err
	}
	for _, node := range c.nodes() {
		if err := node.launch(ctx); err != nil {
			return err
		}
	}
	return waitReady(ctx, c.nodes(), c.probe)
}

// plan chooses the ports, makes the nodes of the cluster, and returns the server.properties of each node.
func (c *Cluster) plan(ctx context.Context, dist dist, n int) (map[*Node][]byte, error) {
	ways := 1 + len(c.opts.listeners) // of each broker
	ports, err := freePorts(ctx, n*ways+1)
	if err != nil {
		return nil, err
	}
	c.brokers, c.controller, c.seeds = nil, nil, nil
	apart := n > 1 || c.opts.apart
	quorum := fmt.Sprintf("%d@%s", 1, loopback(ports[n*ways]))
	if apart {
		quorum = fmt.Sprintf("%d@%s", controllerID, loopback(ports[n*ways]))
	}
	settings := map[*Node][]byte{}
	for i := range n {
		node := &Node{id: int32(i + 1), dir: c.dir, dist: dist, heapMiB: c.opts.heapMiB, shortLived: c.opts.shortLived, stepped: c.opts.stepped, listen: map[string]string{}}
		if apart {
			node.dir = filepath.Join(c.dir, fmt.Sprintf("broker-%d", node.id))
		}
		if node.heapMiB == 0 {
			node.heapMiB = 512
			if n > 1 {
				node.heapMiB = 384
			}
		}
		node.addr = loopback(ports[i*ways])
		node.listen[plainListener] = node.addr
		for j, l := range c.opts.listeners {
			node.listen[l.Name] = loopback(ports[i*ways+1+j])
		}
		c.brokers = append(c.brokers, node)
		c.seeds = append(c.seeds, node.addr)
		settings[node] = serverProperties(c.opts, node, n, quorum)
	}
	if apart {
		c.controller = &Node{
			id: controllerID, dir: filepath.Join(c.dir, "controller"), dist: dist, heapMiB: controllerHeapMiB, shortLived: c.opts.shortLived, stepped: c.opts.stepped,
			addr: loopback(ports[n*ways]), controller: true,
		}
		settings[c.controller] = serverProperties(c.opts, c.controller, n, quorum)
	}
	return settings, nil
}

// nodes returns all processes of the cluster, the controller first.
func (c *Cluster) nodes() []*Node {
	if c.controller == nil {
		return c.brokers
	}
	return append([]*Node{c.controller}, c.brokers...)
}

// eachNode calls do for every node, concurrently.
func (c *Cluster) eachNode(do func(*Node) error) error {
	nodes := c.nodes()
	errs := make([]error, len(nodes))
	var wg sync.WaitGroup
	for i, node := range nodes {
		wg.Go(func() { errs[i] = do(node) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// connect opens the client behind Admin.
func (c *Cluster) connect() (err error) {
	// A stopped node comes back later, and this client has to notice soon: it may refresh its metadata every 50 ms.
	c.client, err = kgo.NewClient(kgo.SeedBrokers(c.seeds...), kgo.MetadataMinAge(50*time.Millisecond))
	if err != nil {
		return fmt.Errorf("make the admin client for %v: %w", c.seeds, err)
	}
	c.admin = kadm.NewClient(c.client)
	return nil
}

// probe returns nil once the cluster has what clients need: all brokers in the metadata, a group coordinator and a
// transaction coordinator. Its requests also make Kafka create its internal topics before the first test needs them.
func (c *Cluster) probe(ctx context.Context) error {
	for _, seed := range c.seeds {
		if err := dial(ctx, seed); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, probeMax)
	defer cancel()
	brokers, err := c.admin.ListBrokers(ctx)
	if err != nil {
		return err
	}
	if want := max(1, len(c.brokers)); len(brokers) < want {
		return fmt.Errorf("the metadata has %d of %d brokers", len(brokers), want)
	}
	if err := c.admin.FindGroupCoordinators(ctx, "kafkatest").Error(); err != nil {
		return fmt.Errorf("group coordinator: %w", err)
	}
	if err := c.admin.FindTxnCoordinators(ctx, "kafkatest").Error(); err != nil {
		return fmt.Errorf("transaction coordinator: %w", err)
	}
	return nil
}

// WaitReady returns once every broker is in the metadata, and groups and transactions have coordinators. All nodes
// must be running.
func (c *Cluster) WaitReady(ctx context.Context) error {
	return waitReady(ctx, c.nodes(), c.probe)
}

// Seeds returns the addresses of the brokers, in the order of their ids.
func (c *Cluster) Seeds() []string { return slices.Clone(c.seeds) }

// ListenAddrs returns the addresses of the listener with this name (see [WithListener]), in the order of the broker
// ids. A proxy forwards to these addresses. If the listener advertises no other addresses, clients use them as seeds.
// ListenAddrs returns nil for an unknown name.
func (c *Cluster) ListenAddrs(name string) []string {
	var addrs []string
	for _, node := range c.brokers {
		if addr, ok := node.listen[name]; ok {
			addrs = append(addrs, addr)
		}
	}
	return addrs
}

// Admin returns the cluster's admin client. It stays open until [Cluster.Close].
func (c *Cluster) Admin() *kadm.Client { return c.admin }

// SetTransactionVersion sets the cluster's feature transaction.version; see the function [SetTransactionVersion].
func (c *Cluster) SetTransactionVersion(ctx context.Context, version int16) error {
	return SetTransactionVersion(ctx, c.client, version)
}

// FinalizeFeatures sets every feature of the cluster to the newest level that its nodes support, as an operator does
// after a rolling upgrade. It returns the levels by the name of the feature.
func (c *Cluster) FinalizeFeatures(ctx context.Context) (map[string]int16, error) {
	return finalizeFeatures(ctx, c.client)
}

// External reports whether the cluster is the one that ONCEBUS_TEST_BROKERS names. A test cannot stop the nodes of an
// external cluster.
func (c *Cluster) External() bool { return c.external }

// Brokers returns the brokers in the order of their ids, which start at 1.
func (c *Cluster) Brokers() []*Node { return slices.Clone(c.brokers) }

// Controller returns the separate controller process. It returns nil if the only broker is also the controller.
func (c *Cluster) Controller() *Node { return c.controller }

// Close kills the running nodes and closes the admin client. It may be called again.
func (c *Cluster) Close() error {
	if c.client != nil {
		c.client.Close()
	}
	return c.eachNode((*Node).Kill)
}
