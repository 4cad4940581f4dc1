//go:build unix

package kafkatest

import (
	"context"
	"fmt"
)

// Broker is a [Cluster] with one Apache Kafka node, or the cluster that ONCEBUS_TEST_BROKERS names. A Broker is not
// safe for concurrent use.
type Broker struct{ *Cluster }

// StartBroker is [StartCluster] for one broker.
func StartBroker(ctx context.Context, dir string, opts ...Option) (*Broker, error) {
	c, err := StartCluster(ctx, dir, 1, opts...)
	if err != nil {
		return nil, err
	}
	return &Broker{c}, nil
}

// LogPath returns the path of the broker's log file, to which a restarted broker appends. It returns "" for an
// external cluster.
func (b *Broker) LogPath() string {
	if b.external {
		return ""
	}
	return b.brokers[0].LogPath()
}

// LogTail returns the last lines of the broker's log, for the message of a failed test.
func (b *Broker) LogTail() string {
	if b.external {
		return "(no log: the cluster of ONCEBUS_TEST_BROKERS is external)"
	}
	return b.brokers[0].LogTail()
}

// Stop is [Node.Stop] of the broker. Stop and the methods below return an error for an external cluster.
func (b *Broker) Stop() error { return b.own("stop", (*Node).Stop) }

// Kill is [Node.Kill] of the broker.
func (b *Broker) Kill() error { return b.own("kill", (*Node).Kill) }

// Pause is [Node.Pause] of the broker.
func (b *Broker) Pause() error { return b.own("pause", (*Node).Pause) }

// Resume is [Node.Resume] of the broker.
func (b *Broker) Resume() error { return b.own("resume", (*Node).Resume) }

// Restart starts a stopped or killed broker again with its old data and ports. It returns once clients can use groups
// and transactions.
func (b *Broker) Restart(ctx context.Context) error {
	return b.own("restart", func(n *Node) error {
		if err := n.Restart(ctx); err != nil {
			return err
		}
		return b.WaitReady(ctx)
	})
}

// own calls do with the broker's node. For an external cluster it returns an error that names the verb.
func (b *Broker) own(verb string, do func(*Node) error) error {
	if b.external {
		return fmt.Errorf("%s Kafka: the cluster of ONCEBUS_TEST_BROKERS is external; unset the variable", verb)
	}
	return do(b.brokers[0])
}
