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

// listenerName is the name of the brokers' listener that the proxy forwards to.
const listenerName = "PROXIED"

// cluster is Kafka with a proxy in front of it. The processes under test connect through the proxy; the traffic, the
// observers and the harness connect directly.
type cluster struct {
	kafka *kafkatest.Cluster
	proxy *proxy.Proxy
	disks map[int32]*loopDisk // the loop disks of the brokers whose data was moved to one, by broker id
	// deleted has the topics that were deleted, by a fault or at the end of an app, while transactions may have
	// had records in them. If Kafka skips the markers of these transactions, that is no defect.
	deleted sync.Map
}

// startCluster starts the given number of brokers of a release of Kafka.
func startCluster(ctx context.Context, dir string, nodes int, version string) (*cluster, error) {
	px, err := proxy.Listen(ctx, nodes)
	if err != nil {
		return nil, err
	}
	c := &cluster{proxy: px, disks: map[int32]*loopDisk{}}
	options := []kafkatest.Option{
		kafkatest.WithVersion(version),
		kafkatest.WithListener(kafkatest.Listener{Name: listenerName, Advertise: px.Addrs()}),
		// Compaction runs from the first seconds on, so that much is compacted within an epoch. The lag
		// protects records that the observer may not have read yet.
		kafkatest.WithProperty("log.cleaner.min.compaction.lag.ms", "20000"),
		kafkatest.WithProperty("log.initial.task.delay.ms", "1000"),
		kafkatest.WithProperty("log.retention.check.interval.ms", "1000"),
		// The traffic has events that are a year old, which retention must not delete.
		kafkatest.WithProperty("log.retention.ms", "-1"),
	}
	if nodes == 1 {
		// KAFKA-20734 (4.3.1): while a partition has no leader, a live coordinator takes the partition for deleted
		// and skips its transaction markers. The coordinator then considers the transaction complete, and committed
		// records are lost (see lostMarkers). A single broker must therefore not lose its partitions while it lives:
		// it is not shut down in good order, not paused for long (pauseMax), and not restarted before the controller
		// has noticed that it has ended (downMin).
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

// seeds returns the brokers' own addresses, which do not lead through the proxy.
func (c *cluster) seeds() []string { return c.kafka.Seeds() }

// seedsThroughProxy returns the proxy's addresses, for the processes under test.
func (c *cluster) seedsThroughProxy() []string { return c.proxy.Addrs() }

func (c *cluster) close() error {
	// An error here says that the proxy closed connections whose frames it could not read. For the client that
	// was just one more fault, so the run does not fail because of it.
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

// awaitInSync waits until every replica is in sync. Otherwise the next fault could stop the last replica of a
// partition, and with it the leader (KAFKA-20734).
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

// node returns the broker with this id; nil if there is none.
func (c *cluster) node(id int32) *kafkatest.Node {
	for _, n := range c.kafka.Brokers() {
		if n.ID() == id {
			return n
		}
	}
	return nil
}

// aloneSession is the session timeout of a single broker. It is longer than a transaction may take, because
// faults block a broker's disk for longer than that (see blockTime), and the broker may miss heartbeats during
// the blockage.
const aloneSession = 8 * time.Second

func (c *cluster) alone() bool { return len(c.kafka.Brokers()) == 1 }

// pauseMax is how long a broker may be paused. The pause of a single broker must be so short that the broker
// keeps its session (KAFKA-20734, see startCluster).
func (c *cluster) pauseMax() time.Duration {
	if c.alone() {
		return aloneSession / 2
	}
	return 20 * time.Second
}

// downMin is the shortest time for which a broker stays stopped. A single broker stays stopped until its session is
// over (KAFKA-20734, see startCluster).
func (c *cluster) downMin() time.Duration {
	if c.alone() {
		return aloneSession + time.Second
	}
	return 0
}

// skippedMarkers matches the line that Kafka logs when it skips transaction markers. The line names the partitions.
var skippedMarkers = regexp.MustCompile(`Couldn't find leader endpoint for partitions Set\(([^)]*)\)`)

// lostMarkers counts, in Kafka's log, the transactions whose markers Kafka skipped although no fault had
// deleted the topics of their partitions (KAFKA-20734). Such transactions stay open in their partitions;
// oncebus closes its own ones.
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

// lost reports whether one of these partitions belongs to a topic that no fault has deleted. partitions is a list of
// topic-number, separated by commas.
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
