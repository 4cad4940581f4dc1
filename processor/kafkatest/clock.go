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

// steppedClock is our version of Kafka's class SystemTime, compiled from steppedclock/SystemTime.java. It is stored
// compiled, so that tests need no JDK; TestRealSteppedClockIsCompiled has the command that compiles it.
//
//go:embed steppedclock/SystemTime.class
var steppedClock []byte

// WithSteppedClock gives the nodes a wall clock that [Cluster.StepClock] can set. Their monotonic clock stays the
// machine's clock.
func WithSteppedClock() Option {
	return func(o *options) { o.stepped = true }
}

// StepClock sets the wall clock of every node to the machine's wall clock plus d. Running nodes notice the step
// within 20 ms. The cluster must have been started [WithSteppedClock].
func (c *Cluster) StepClock(d time.Duration) error {
	if !c.opts.stepped {
		return fmt.Errorf("step the clock of the cluster in %s: it was started without WithSteppedClock", c.dir)
	}
	return c.eachNode(func(n *Node) error { return n.stepClock(d) })
}

// stepClock writes the step into the node's clock file. It replaces the file by a rename, so that the node reads
// either the old step or the new one, never a part.
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

// installClock writes the clock's class into the directory with which a node's class path begins, so that Java loads
// it instead of Kafka's own class.
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
