//go:build unix

package kafkatest

import (
	"context"
	"fmt"
)

// Broker is a [Cluster] of one Apache Kafka node, or the cluster of ONCEBUS_TEST_BROKERS. Its methods are for one goroutine.
type Broker struct{ *Cluster }

// StartBroker is [StartCluster] for one broker.
func StartBroker(ctx context.Context, dir string, opts ...Option) (*Broker, error) {
	c, err := StartCluster(ctx, dir, 1, opts...)
	if err != nil {
		return nil, err
	}
	return &Broker{c}, nil
}

// LogPath is the file with the broker's log, across restarts; empty for an external cluster.
func (b *Broker) LogPath() string {
	if b.external {
		return ""
	}
	return b.brokers[0].LogPath()
}

// LogTail returns the last lines of the broker's log, for a failure's message.
func (b *Broker) LogTail() string {
	if b.external {
		return "(the cluster of ONCEBUS_TEST_BROKERS is not ours: no log)"
	}
	return b.brokers[0].LogTail()
}

// Stop is [Node.Stop] of the broker; as the methods below it refuses to touch an external cluster.
func (b *Broker) Stop() error { return b.own("stop", (*Node).Stop) }

// Kill is [Node.Kill] of the broker.
func (b *Broker) Kill() error { return b.own("kill", (*Node).Kill) }

// Pause is [Node.Pause] of the broker.
func (b *Broker) Pause() error { return b.own("pause", (*Node).Pause) }

// Resume is [Node.Resume] of the broker.
func (b *Broker) Resume() error { return b.own("resume", (*Node).Resume) }

// Restart starts a stopped or killed broker again on its data and ports and returns once clients can use groups and
// transactions.
func (b *Broker) Restart(ctx context.Context) error {
	return b.own("restart", func(n *Node) error {
		if err := n.Restart(ctx); err != nil {
			return err
		}
		return b.WaitReady(ctx)
	})
}

// own acts on the node unless the cluster is not ours.
func (b *Broker) own(verb string, do func(*Node) error) error {
	if b.external {
		return fmt.Errorf("%s Kafka: the cluster of ONCEBUS_TEST_BROKERS is not ours to touch", verb)
	}
	return do(b.brokers[0])
}
