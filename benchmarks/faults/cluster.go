//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"oncebus/processor/kafkatest"
	"oncebus/processor/kafkatest/proxy"
)

// listenerName is the broker's listener for the proxy.
const listenerName = "PROXIED"

// cluster is Kafka with a proxy. The processes under test connect through the proxy;
// traffic, observers and the harness do not.
type cluster struct {
	kafka *kafkatest.Cluster
	proxy *proxy.Proxy
	disks map[int32]*loopDisk // of brokers whose data was moved to one, by id
	// deleted has the topics that a fault, or the end of an app, has deleted while
	// transactions may have had records there: Kafka skips their markers, as it should.
	deleted sync.Map
}

// startCluster starts so many brokers of a release of Kafka.
func startCluster(ctx context.Context, dir string, nodes int, version string) (*cluster, error) {
	px, err := proxy.Listen(ctx, nodes)
	if err != nil {
		return nil, err
	}
	c := &cluster{proxy: px, disks: map[int32]*loopDisk{}}
	options := []kafkatest.Option{
		kafkatest.WithVersion(version),
		kafkatest.WithListener(kafkatest.Listener{Name: listenerName, Advertise: px.Addrs()}),
		// Compaction runs from the first seconds on, so that an epoch has much of it.
		// It does not remove records that the observer may not have read.
		kafkatest.WithProperty("log.cleaner.min.compaction.lag.ms", "20000"),
		kafkatest.WithProperty("log.initial.task.delay.ms", "1000"),
		kafkatest.WithProperty("log.retention.check.interval.ms", "1000"),
		// The traffic has events that are a year old: retention must not delete them.
		kafkatest.WithProperty("log.retention.ms", "-1"),
	}
	if nodes == 1 {
		// KAFKA-20734 (4.3.1): while a partition has no leader, a live coordinator
		// takes it for deleted and skips its markers. It then calls the transaction
		// complete, and committed records are lost (see lostMarkers). So a single
		// broker must not lose its partitions while it lives. It is not shut down
		// orderly, not paused for long (pauseMax), and not restarted before the
		// controller has noticed its end (downMin).
		options = append(options, kafkatest.WithController(),
			kafkatest.WithProperty("controlled.shutdown.enable", "false"),
			kafkatest.WithProperty("broker.session.timeout.ms", strconv.FormatInt(aloneSession.Milliseconds(), 10)),
			kafkatest.WithProperty("broker.heartbeat.interval.ms", "500"))
	}
	c.kafka, err = kafkatest.StartCluster(ctx, dir, nodes, options...)
	if err == nil {
		err = px.Forward(c.kafka.ListenAddrs(listenerName))
	}
	if err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

// seeds returns the addresses without the proxy.
func (c *cluster) seeds() []string { return c.kafka.Seeds() }

// seedsThroughProxy returns the addresses for the processes under test.
func (c *cluster) seedsThroughProxy() []string { return c.proxy.Addrs() }

func (c *cluster) close() error {
	// The proxy cut connections whose frames it could not read. That is one more
	// fault for the client, not a failure of the run.
	if err := c.proxy.Close(); err != nil {
		fmt.Println("note: proxy:", err)
	}
	if c.kafka == nil {
		return nil
	}
	err := c.kafka.Close()
	for _, disk := range c.disks {
		err = errors.Join(err, disk.unmount())
	}
	return err
}

// revive starts every stopped broker and waits until all serve.
func (c *cluster) revive(ctx context.Context) error {
	for _, n := range c.kafka.Brokers() {
		if !n.Running() {
			if err := n.Restart(ctx); err != nil {
				return err
			}
		}
	}
	if err := c.kafka.WaitReady(ctx); err != nil {
		return err
	}
	return c.awaitInSync(ctx)
}

// awaitInSync waits until every replica is in sync. Before that the next fault could
// stop a partition's last replica, and with it the leader (KAFKA-20734).
func (c *cluster) awaitInSync(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return kafkatest.Await(ctx, "all replicas are in sync", func(ctx context.Context) error {
		meta, err := c.kafka.Admin().Metadata(ctx)
		if err != nil {
			return err
		}
		for _, t := range meta.Topics {
			for _, p := range t.Partitions {
				if p.Leader < 0 || len(p.ISR) < len(p.Replicas) {
					return fmt.Errorf("%s/%d: leader %d, in sync are %v of %v", t.Topic, p.Partition, p.Leader, p.ISR, p.Replicas)
				}
			}
		}
		return nil
	})
}

// node returns the broker with this id, or nil.
func (c *cluster) node(id int32) *kafkatest.Node {
	for _, n := range c.kafka.Brokers() {
		if n.ID() == id {
			return n
		}
	}
	return nil
}

// aloneSession is the session timeout of a single broker. A broker whose disk is blocked may
// miss heartbeats, so it is longer than a transaction may take (see blockTime).
const aloneSession = 8 * time.Second

func (c *cluster) alone() bool { return len(c.kafka.Brokers()) == 1 }

// pauseMax is how long a broker may be paused: a single one must keep its session
// (KAFKA-20734, see startCluster).
func (c *cluster) pauseMax() time.Duration {
	if c.alone() {
		return aloneSession / 2
	}
	return 20 * time.Second
}

// downMin is how long a broker stays stopped at least: a single one until its session
// is over (KAFKA-20734, see startCluster).
func (c *cluster) downMin() time.Duration {
	if c.alone() {
		return aloneSession + time.Second
	}
	return 0
}

// skippedMarkers matches Kafka's log line on markers that it skips, with the partitions.
var skippedMarkers = regexp.MustCompile(`Couldn't find leader endpoint for partitions Set\(([^)]*)\)`)

// lostMarkers counts the transactions whose markers Kafka skipped, according to its
// log, for partitions of topics that no fault has deleted (KAFKA-20734). oncebus closes its own
// transactions then.
func (c *cluster) lostMarkers() (int, error) {
	n := 0
	for _, node := range c.kafka.Brokers() {
		log, err := os.ReadFile(node.LogPath())
		if err != nil {
			return n, err
		}
		for _, line := range skippedMarkers.FindAllSubmatch(log, -1) {
			if c.lost(string(line[1])) {
				n++
			}
		}
	}
	return n, nil
}

// lost reports whether one of these partitions, topic-number separated by commas, is of
// a topic that no fault has deleted.
func (c *cluster) lost(partitions string) bool {
	for partition := range strings.SplitSeq(partitions, ", ") {
		if dash := strings.LastIndexByte(partition, '-'); dash < 0 {
			return true
		} else if _, deleted := c.deleted.Load(partition[:dash]); !deleted {
			return true
		}
	}
	return false
}
