//go:build unix

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"oncebus/processor/kafkatest"
	"oncebus/processor/kafkatest/proxy"
)

// listenerName is the broker's listener behind the proxy.
const listenerName = "PROXIED"

// cluster is Kafka with the proxy before it. The processes under test go
// through the proxy; traffic, observers and the harness's own questions do not.
type cluster struct {
	kafka *kafkatest.Cluster
	proxy *proxy.Proxy
}

func startCluster(ctx context.Context, dir string, nodes int) (*cluster, error) {
	px, err := proxy.Listen(ctx, nodes)
	if err != nil {
		return nil, err
	}
	c := &cluster{proxy: px}
	options := []kafkatest.Option{
		kafkatest.WithListener(kafkatest.Listener{Name: listenerName, Advertise: px.Addrs()}),
		// Compaction works from the first seconds on, so that an epoch sees a
		// lot of it; what no reader may have seen yet it leaves alone.
		kafkatest.WithProperty("log.cleaner.min.compaction.lag.ms", "20000"),
		kafkatest.WithProperty("log.initial.task.delay.ms", "1000"),
		// The traffic has events that are a year old: nothing may go by age.
		kafkatest.WithProperty("log.retention.ms", "-1"),
	}
	if nodes == 1 {
		// KAFKA-20734: a coordinator that is alive while a partition has no
		// leader takes it for deleted, skips its markers, and calls the
		// transaction complete: what was committed is lost (4.3.1; see
		// lostMarkers). So a broker that is alone must not be taken its
		// partitions away while it lives: not by an orderly shutdown, not by
		// a pause (pauseMax), and not after a restart, by a controller that
		// has yet to find out that it was away (downMin).
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

// seeds are the ways around the proxy.
func (c *cluster) seeds() []string { return c.kafka.Seeds() }

// seedsThroughProxy are for the processes under test.
func (c *cluster) seedsThroughProxy() []string { return c.proxy.Addrs() }

func (c *cluster) close() error {
	// A connection on which the proxy lost its place was cut, which is one more
	// fault for the client, and nothing that the run has to answer for.
	if err := c.proxy.Close(); err != nil {
		fmt.Println("note: proxy:", err)
	}
	if c.kafka == nil {
		return nil
	}
	return c.kafka.Close()
}

// revive starts every broker that does not run and waits until all serve.
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

// awaitInSync waits until every replica is in sync: before that the next fault
// could take a partition's last one, and with it the leader (KAFKA-20734).
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

// aloneSession is the session of a broker that is alone with its controller.
const aloneSession = 6 * time.Second

func (c *cluster) alone() bool { return len(c.kafka.Brokers()) == 1 }

// pauseMax is how long a broker may be paused: one that is alone must not lose
// its session (KAFKA-20734, see startCluster).
func (c *cluster) pauseMax() time.Duration {
	if c.alone() {
		return aloneSession / 2
	}
	return 20 * time.Second
}

// downMin is how long a broker stays down at least: for one that is alone, until
// its session is over for certain (KAFKA-20734, see startCluster).
func (c *cluster) downMin() time.Duration {
	if c.alone() {
		return aloneSession + time.Second
	}
	return 0
}

// lostMarkers counts the transactions of which Kafka skipped markers, as its
// log says: with any of them, what is found is Kafka's doing (KAFKA-20734).
func (c *cluster) lostMarkers() (int, error) {
	n := 0
	for _, node := range c.kafka.Brokers() {
		log, err := os.ReadFile(node.LogPath())
		if err != nil {
			return n, err
		}
		n += bytes.Count(log, []byte("Couldn't find leader endpoint for partitions"))
	}
	return n, nil
}
