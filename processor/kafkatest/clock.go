//go:build unix

package kafkatest

import (
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// steppedClock is Kafka's class for the clock, compiled from steppedclock/SystemTime.java:
// TestRealSteppedClockIsCompiled has the command. It runs without a JDK.
//
//go:embed steppedclock/SystemTime.class
var steppedClock []byte

// WithSteppedClock gives the nodes a wall clock that [Cluster.StepClock] sets. Their
// monotonic clock stays the machine's.
func WithSteppedClock() Option {
	return func(o *options) { o.stepped = true }
}

// StepClock sets the wall clock of every node to the machine's plus d. Running nodes notice
// it within 20 ms. The cluster was started [WithSteppedClock].
func (c *Cluster) StepClock(d time.Duration) error {
	if !c.opts.stepped {
		return fmt.Errorf("step the clock of the cluster in %s: it was started without WithSteppedClock", c.dir)
	}
	return c.eachNode(func(n *Node) error { return n.stepClock(d) })
}

// stepClock replaces the file with the step, so that a reader sees one of both.
func (n *Node) stepClock(d time.Duration) error {
	next := n.path("clock.next")
	if err := os.WriteFile(next, strconv.AppendInt(nil, d.Milliseconds(), 10), 0o600); err != nil {
		return fmt.Errorf("step the clock of Kafka's node %d: %w", n.id, err)
	}
	if err := os.Rename(next, n.path("clock")); err != nil {
		return fmt.Errorf("step the clock of Kafka's node %d: %w", n.id, err)
	}
	return nil
}

// installClock writes the class of the clock where the class path of a node begins.
func (n *Node) installClock() error {
	if !n.stepped {
		return nil
	}
	dir := filepath.Join(n.path("classes"), "org", "apache", "kafka", "common", "utils")
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return fmt.Errorf("make the directory of the clock of Kafka's node %d: %w", n.id, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "SystemTime.class"), steppedClock, 0o600); err != nil {
		return fmt.Errorf("write the clock of Kafka's node %d: %w", n.id, err)
	}
	return n.stepClock(0)
}
