//go:build unix

package kafkatest

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	// startMax limits one start of Kafka. A start takes about 5 s on an idle machine and several times as long on a
	// busy machine.
	startMax = 5 * time.Minute
	// stopMax is how long a node may take to end after SIGTERM. Then the harness kills the node.
	stopMax = 30 * time.Second
	// probeEvery is the interval of readiness probes; probeMax is the time limit of one probe.
	probeEvery = 100 * time.Millisecond
	probeMax   = 5 * time.Second
	// logTailLines is how many lines from the end of a node's log the harness puts into an error.
	logTailLines = 20
)

// errPortTaken says that another process already listens on a port that the harness chose for Kafka.
var errPortTaken = errors.New("port in use")

//go:embed log4j2.properties
var log4j []byte

// Node is one process of a cluster: a broker, a controller, or both. A Node is not safe for concurrent use; two
// goroutines may use two different nodes.
type Node struct {
	id      int32
	dir     string
	dist    dist
	heapMiB int
	// shortLived is set by WithShortLife, stepped by WithSteppedClock.
	shortLived, stepped bool
	// addr is the listener that readiness probes connect to: the client listener of a broker, the controller listener
	// of a node that is only a controller.
	addr       string
	controller bool // a controller only, no broker
	listen     map[string]string
	proc       *Process
	mark       int64 // length of the log at the last launch: bindFailed reads from here
}

// ID returns the node's id in Kafka, from 1.
func (n *Node) ID() int32 { return n.id }

// LogPath returns the path of the node's log, which continues across restarts.
func (n *Node) LogPath() string { return n.path("kafka.log") }

// LogTail returns the last lines of the node's log, for a failure's message.
func (n *Node) LogTail() string {
	log, err := os.ReadFile(n.LogPath())
	if err != nil {
		return err.Error()
	}
	return tail(log, logTailLines)
}

// Running reports whether the node's process exists. A paused process exists, so Running returns true for it.
func (n *Node) Running() bool { return n.proc != nil && n.proc.Running() }

// PID returns the process id of the process that the node started last; 0 before the first start.
func (n *Node) PID() int {
	if n.proc == nil {
		return 0
	}
	return n.proc.PID()
}

// Stop sends SIGTERM to the node and waits for its end. It also resumes a paused node, which could not handle the
// signal otherwise. If the node still runs after stopMax, Stop kills it and returns an error.
func (n *Node) Stop() error {
	if n.proc == nil {
		return nil
	}
	if err := n.proc.Stop(stopMax); err != nil {
		return n.withLog(fmt.Errorf("stop Kafka's node %d: %w", n.id, err))
	}
	return nil
}

// Kill ends the node with SIGKILL and waits for its end. What Kafka has written stays in the page cache of the
// operating system. Kill therefore simulates the crash of the process, not of the machine.
func (n *Node) Kill() error {
	if n.proc == nil {
		return nil
	}
	return n.proc.Kill()
}

// Pause stops the node's process with SIGSTOP. The node's connections stay open, but requests get no responses.
func (n *Node) Pause() error { return n.running("pause", syscall.SIGSTOP) }

// Resume lets a paused node continue (SIGCONT). It has no effect on a node that is not paused.
func (n *Node) Resume() error { return n.running("resume", syscall.SIGCONT) }

// running sends a signal to the node's process, and returns an error if the process does not exist.
func (n *Node) running(verb string, sig syscall.Signal) error {
	if !n.Running() {
		return fmt.Errorf("%s Kafka's node %d: it is not running", verb, n.id)
	}
	return n.proc.Signal(sig)
}

// Restart starts a stopped or killed node again with its old data and ports. It returns when the node serves: a
// broker when it is registered, which needs a running controller; a controller when its quorum has a leader.
func (n *Node) Restart(ctx context.Context) error {
	if n.Running() {
		return fmt.Errorf("restart Kafka's node %d: it is running; Stop or Kill it first", n.id)
	}
	if err := n.launch(ctx); err != nil {
		return err
	}
	// This client connects to this node alone, because the other nodes may be down.
	client, err := kgo.NewClient(kgo.SeedBrokers(n.addr), kgo.RequestRetries(0))
	if err != nil {
		return fmt.Errorf("make a client for %s: %w", n.addr, err)
	}
	defer client.Close()
	return waitReady(ctx, []*Node{n}, func(ctx context.Context) error { return n.probe(ctx, client) })
}

// SetVersion makes the next Restart run another release of Kafka, and fetches that release if this machine does not
// have it. The node must be stopped. Its data and settings stay.
func (n *Node) SetVersion(ctx context.Context, version string) error {
	if n.Running() {
		return fmt.Errorf("set the version of Kafka's node %d: it is running; Stop it first", n.id)
	}
	if err := validateVersion(version); err != nil {
		return err
	}
	found, err := install(ctx, version)
	if err != nil {
		return err
	}
	n.dist = found
	return nil
}

// probe returns nil once the node serves.
func (n *Node) probe(ctx context.Context, client *kgo.Client) error {
	if err := dial(ctx, n.addr); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, probeMax)
	defer cancel()
	if n.controller {
		return n.probeQuorum(ctx, client)
	}
	resp, err := client.SeedBrokers()[0].Request(ctx, kmsg.NewPtrDescribeClusterRequest())
	if err != nil {
		return err
	}
	cluster, ok := resp.(*kmsg.DescribeClusterResponse)
	if !ok {
		return fmt.Errorf("node %d answered DescribeCluster with %T", n.id, resp)
	}
	for _, b := range cluster.Brokers { // the response leaves out fenced brokers
		if b.NodeID == n.id {
			return nil
		}
	}
	return fmt.Errorf("node %d is not registered in the cluster", n.id)
}

// probeQuorum returns nil once the controller knows the leader of its quorum. It asks by DescribeQuorum, which the
// controllers of every supported release answer; controllers before Kafka 3.7 do not answer DescribeCluster
// (KIP-919).
func (n *Node) probeQuorum(ctx context.Context, client *kgo.Client) error {
	req := kmsg.NewPtrDescribeQuorumRequest()
	topic := kmsg.NewDescribeQuorumRequestTopic()
	topic.Topic = "__cluster_metadata"
	topic.Partitions = append(topic.Partitions, kmsg.NewDescribeQuorumRequestTopicPartition())
	req.Topics = append(req.Topics, topic)
	resp, err := client.SeedBrokers()[0].Request(ctx, req)
	if err != nil {
		return err
	}
	quorum, ok := resp.(*kmsg.DescribeQuorumResponse)
	if !ok {
		return fmt.Errorf("controller %d answered DescribeQuorum with %T", n.id, resp)
	}
	if err := kerr.ErrorForCode(quorum.ErrorCode); err != nil {
		return err
	}
	for _, topic := range quorum.Topics {
		for _, p := range topic.Partitions {
			if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
				return err
			}
			if p.LeaderID >= 0 {
				return nil
			}
		}
	}
	return fmt.Errorf("controller %d has no leader", n.id)
}

// format writes the node's settings and formats its storage, for a first start.
func (n *Node) format(clusterID string, properties []byte) error {
	if err := os.MkdirAll(n.dir, 0o750); err != nil {
		return fmt.Errorf("make the directory of Kafka's node %d: %w", n.id, err)
	}
	if err := os.RemoveAll(n.path("data")); err != nil {
		return fmt.Errorf("clear the data of Kafka's node %d: %w", n.id, err)
	}
	if err := os.WriteFile(n.path("log4j2.properties"), log4j, 0o600); err != nil {
		return fmt.Errorf("write the log settings of Kafka's node %d: %w", n.id, err)
	}
	if err := os.WriteFile(n.path("server.properties"), properties, 0o600); err != nil {
		return fmt.Errorf("write the settings of Kafka's node %d: %w", n.id, err)
	}
	if err := n.installClock(); err != nil {
		return err
	}
	return n.copyStorage(clusterID, ofController.Match(properties))
}

// java returns the command that runs one of Kafka's Java classes with the node's heap size and class path.
func (n *Node) java(ctx context.Context, class string, args ...string) *exec.Cmd {
	classPath := n.dist.classPath
	if n.stepped {
		classPath = n.path("classes") + string(filepath.ListSeparator) + classPath
	}
	jvm := []string{
		fmt.Sprintf("-Xms%dm", n.heapMiB), fmt.Sprintf("-Xmx%dm", n.heapMiB),
		"-Djava.awt.headless=true", "-Dlog4j2.configurationFile=" + n.path("log4j2.properties"),
		"-cp", classPath,
	}
	if n.stepped {
		jvm = append(jvm, "-Doncebus.clock="+n.path("clock"))
	}
	if n.shortLived {
		jvm = append(jvm, "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
		if !n.stepped { // Java cannot archive classes that it loads from a directory
			jvm = append(jvm, n.dist.classes()...)
		}
	}
	jvm = append(jvm, class)
	return exec.CommandContext(ctx, n.dist.java, append(jvm, args...)...) //nolint:gosec // program and arguments are ours.
}

// launch starts the node's process on its formatted storage.
func (n *Node) launch(ctx context.Context) error {
	log, err := os.OpenFile(n.LogPath(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open the log of Kafka's node %d: %w", n.id, err)
	}
	defer log.Close() //nolint:errcheck // the child has its own handle; nothing is written through this one.
	if n.mark, err = log.Seek(0, 2); err != nil {
		return fmt.Errorf("find the end of the log of Kafka's node %d: %w", n.id, err)
	}
	// The command is not bound to ctx, because the process outlives the deadline of its start.
	cmd := n.java(context.WithoutCancel(ctx), "kafka.Kafka", n.path("server.properties"))
	cmd.Stdout, cmd.Stderr = log, log
	n.proc, err = StartProcess(cmd)
	return err
}

// waitReady calls probe until it returns nil. It returns an error as soon as one of the nodes or ctx has ended.
func waitReady(ctx context.Context, nodes []*Node, probe func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, startMax)
	defer cancel()
	err := AwaitEvery(ctx, probeEvery, "Kafka serves", func(ctx context.Context) error {
		err := probe(ctx)
		if err == nil {
			return nil
		}
		for _, n := range nodes {
			if !n.Running() {
				return Fatal(n.died(err))
			}
		}
		return err
	})
	if err != nil && ctx.Err() != nil {
		for _, n := range nodes {
			err = n.withLog(err)
		}
	}
	return err
}

// died returns the error for a node whose process is not running although the node should become ready. err is the
// last error of the probe.
func (n *Node) died(err error) error {
	if n.proc == nil {
		return fmt.Errorf("start Kafka's node %d: %w", n.id, err)
	}
	err = fmt.Errorf("the broker ended while it started: %w", errors.Join(n.proc.Err(), err))
	if n.bindFailed() {
		err = errors.Join(errPortTaken, err)
	}
	return n.withLog(err)
}

func (n *Node) withLog(err error) error {
	return fmt.Errorf("%w\nend of the log of Kafka's node %d:\n%s", err, n.id, n.LogTail())
}

// bindFailed reports whether Kafka logged since the last launch that a port is in use.
func (n *Node) bindFailed() bool {
	log, err := os.ReadFile(n.LogPath())
	return err == nil && int64(len(log)) > n.mark && strings.Contains(string(log[n.mark:]), "Address already in use")
}

func (n *Node) path(name string) string { return filepath.Join(n.dir, name) }
