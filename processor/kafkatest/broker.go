//go:build unix

package kafkatest

import (
	"context"
	"crypto/rand"
	_ "embed"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	mathrand "math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	// startMax is how long one start may take: about 5 s here, a multiple on a loaded build machine.
	startMax = 2 * time.Minute
	// stopMax is how long a stop by SIGTERM may take before the broker is killed.
	stopMax = 30 * time.Second
	// portTries is how often a first start looks for other ports when another process took one between our look and Kafka's bind.
	portTries = 3
	// probeEvery and probeMax pace the question whether the broker is ready.
	probeEvery = 100 * time.Millisecond
	probeMax   = 5 * time.Second
	// logTailLines is how much of the broker's log goes into an error.
	logTailLines = 20
)

// errPortTaken says that Kafka found one of its ports in use.
var errPortTaken = errors.New("port in use")

//go:embed log4j2.properties
var log4j []byte

// Option changes how a broker is started.
type Option func(*options)

type options struct {
	properties map[string]string
	heapMiB    int
}

// WithProperty sets one line of the broker's server.properties, over the harness's own settings: broker settings, and with the
// prefix `log.` the defaults of new topics (log.message.timestamp.after.max.ms and its like).
func WithProperty(name, value string) Option {
	return func(o *options) { o.properties[name] = value }
}

// WithHeapMiB sets the size of the broker's Java heap, 512 MiB unless said.
func WithHeapMiB(mib int) Option {
	return func(o *options) { o.heapMiB = mib }
}

// Broker is a cluster of one Apache Kafka node, or the cluster of ONCEBUS_TEST_BROKERS. Its methods are for one goroutine.
type Broker struct {
	seeds    []string
	client   *kgo.Client
	admin    *kadm.Client
	external bool

	// The rest belongs to a node of our own.
	dist dist
	dir  string
	opts options
	proc *Process
}

// StartBroker starts Apache Kafka with its data and log in dir, which must exist, and returns once clients can use groups and
// transactions. The caller calls [Broker.Close]; dir stays. On a machine without Java or the jars the error is [ErrUnavailable];
// otherwise it carries the end of the broker's log.
func StartBroker(ctx context.Context, dir string, opts ...Option) (*Broker, error) {
	b := &Broker{dir: dir, opts: options{properties: map[string]string{}, heapMiB: 512}}
	for _, opt := range opts {
		opt(&b.opts)
	}
	var err error
	if b.dist, err = install(ctx); err != nil {
		return nil, err
	}
	if err := os.WriteFile(b.path("log4j2.properties"), log4j, 0o600); err != nil {
		return nil, fmt.Errorf("write the broker's log settings: %w", err)
	}
	for try := 1; ; try++ {
		err = b.firstStart(ctx)
		if err == nil {
			return b, nil
		}
		if !errors.Is(err, errPortTaken) || try == portTries {
			return nil, errors.Join(err, b.Close())
		}
		if err := b.Close(); err != nil {
			return nil, err
		}
	}
}

// firstStart chooses ports, formats the storage and starts the node on it.
func (b *Broker) firstStart(ctx context.Context) error {
	ports, err := freePorts(ctx, 2)
	if err != nil {
		return err
	}
	if err := os.RemoveAll(b.path("data")); err != nil {
		return fmt.Errorf("clear the broker's data: %w", err)
	}
	if err := os.WriteFile(b.path("server.properties"), b.serverProperties(ports[0], ports[1]), 0o600); err != nil {
		return fmt.Errorf("write the broker's settings: %w", err)
	}
	id := make([]byte, 16)
	rand.Read(id) // never fails (crypto/rand)
	id[0] = 'K'   // so that the encoded id cannot start with the dash of an option
	format := b.java(ctx, "kafka.tools.StorageTool", "format", "--config", b.path("server.properties"),
		"--cluster-id", base64.RawURLEncoding.EncodeToString(id))
	if out, err := format.CombinedOutput(); err != nil {
		return fmt.Errorf("format Kafka's storage: %w:\n%s", err, tail(out, logTailLines))
	}
	b.seeds = []string{net.JoinHostPort("127.0.0.1", strconv.Itoa(ports[0]))}
	if err := b.connect(); err != nil {
		return err
	}
	return b.launch(ctx)
}

// connect opens the client that Admin hands out.
func (b *Broker) connect() (err error) {
	// The node may be away for a while and return: look for it often.
	b.client, err = kgo.NewClient(kgo.SeedBrokers(b.seeds...), kgo.MetadataMinAge(50*time.Millisecond))
	if err != nil {
		return fmt.Errorf("make the admin client for %v: %w", b.seeds, err)
	}
	b.admin = kadm.NewClient(b.client)
	return nil
}

// serverProperties is the node's configuration: broker and controller in one process, internal topics small enough that a
// restart loads them at once, no pause before a group's first rebalance, and timeouts as short as a test likes.
func (b *Broker) serverProperties(port, controllerPort int) []byte {
	p := map[string]string{
		"process.roles":                                    "broker,controller",
		"node.id":                                          "1",
		"controller.quorum.voters":                         fmt.Sprintf("1@127.0.0.1:%d", controllerPort),
		"controller.listener.names":                        "CONTROLLER",
		"listeners":                                        fmt.Sprintf("PLAINTEXT://127.0.0.1:%d,CONTROLLER://127.0.0.1:%d", port, controllerPort),
		"log.dirs":                                         b.path("data"),
		"auto.create.topics.enable":                        "false",
		"num.partitions":                                   "1",
		"default.replication.factor":                       "1",
		"offsets.topic.num.partitions":                     "4",
		"offsets.topic.replication.factor":                 "1",
		"transaction.state.log.num.partitions":             "4",
		"transaction.state.log.replication.factor":         "1",
		"transaction.state.log.min.isr":                    "1",
		"share.coordinator.state.topic.num.partitions":     "1",
		"share.coordinator.state.topic.replication.factor": "1",
		"share.coordinator.state.topic.min.isr":            "1",
		"group.initial.rebalance.delay.ms":                 "0",
		// Tests that kill a group member wait for its session, and readers for the transaction it left open; without these
		// Kafka takes no session under 6 s, and looks only every 10 s whether a transaction's time is over.
		"group.min.session.timeout.ms":                                "500",
		"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
	}
	maps.Copy(p, b.opts.properties)
	var out strings.Builder
	for _, name := range slices.Sorted(maps.Keys(p)) {
		fmt.Fprintf(&out, "%s=%s\n", name, p[name])
	}
	return []byte(out.String())
}

// java is a command of the installed Kafka.
func (b *Broker) java(ctx context.Context, class string, args ...string) *exec.Cmd {
	jvm := []string{
		fmt.Sprintf("-Xms%dm", b.opts.heapMiB), fmt.Sprintf("-Xmx%dm", b.opts.heapMiB),
		"-Djava.awt.headless=true", "-Dlog4j2.configurationFile=" + b.path("log4j2.properties"),
		"-cp", b.dist.classPath, class,
	}
	return exec.CommandContext(ctx, b.dist.java, append(jvm, args...)...) //nolint:gosec // program and arguments are ours.
}

// launch starts the node on its formatted storage and waits until it is ready.
func (b *Broker) launch(ctx context.Context) error {
	log, err := os.OpenFile(b.LogPath(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open the broker's log: %w", err)
	}
	defer log.Close() //nolint:errcheck // the child has its own handle; nothing is written through this one.
	// Not bound to ctx: that is the deadline of the start, the process outlives it.
	cmd := b.java(context.WithoutCancel(ctx), "kafka.Kafka", b.path("server.properties"))
	cmd.Stdout, cmd.Stderr = log, log
	mark, err := log.Seek(0, 2)
	if err != nil {
		return fmt.Errorf("find the end of the broker's log: %w", err)
	}
	if b.proc, err = StartProcess(cmd); err != nil {
		return err
	}
	if err := b.waitReady(ctx); err != nil {
		if b.bindFailed(mark) {
			err = errors.Join(errPortTaken, err)
		}
		return fmt.Errorf("%w\nend of the broker's log:\n%s", err, b.LogTail())
	}
	return nil
}

// bindFailed says whether the broker's log since mark complains of a port in use.
func (b *Broker) bindFailed(mark int64) bool {
	log, err := os.ReadFile(b.LogPath())
	return err == nil && int64(len(log)) > mark && strings.Contains(string(log[mark:]), "Address already in use")
}

// waitReady asks the broker until it answers, or it is dead, or the time is up. It waits on another process, whose progress
// nothing announces, hence the ticker.
func (b *Broker) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startMax)
	defer cancel()
	ticker := time.NewTicker(probeEvery)
	defer ticker.Stop()
	for {
		err := b.probe(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-b.proc.Exited():
			return fmt.Errorf("the broker ended while it started: %w", errors.Join(b.proc.Err(), err))
		case <-ctx.Done():
			return fmt.Errorf("the broker was not ready in time: %w", errors.Join(context.Cause(ctx), err))
		case <-ticker.C:
		}
	}
}

// probe asks for what clients need: the node in the metadata, and a group and a transaction coordinator. The latter also makes
// Kafka create its internal topics now instead of inside the first test.
func (b *Broker) probe(ctx context.Context) error {
	// A port that nobody listens on yet is refused at once; without it the client would retry inside for longer than we want.
	conn, err := (&net.Dialer{Timeout: probeMax}).DialContext(ctx, "tcp", b.seeds[0])
	if err != nil {
		return err
	}
	if err := conn.Close(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, probeMax)
	defer cancel()
	brokers, err := b.admin.ListBrokers(ctx)
	if err != nil {
		return err
	}
	if len(brokers) == 0 {
		return errors.New("no broker in the metadata yet")
	}
	if err := b.admin.FindGroupCoordinators(ctx, "kafkatest").Error(); err != nil {
		return fmt.Errorf("group coordinator: %w", err)
	}
	if err := b.admin.FindTxnCoordinators(ctx, "kafkatest").Error(); err != nil {
		return fmt.Errorf("transaction coordinator: %w", err)
	}
	return nil
}

// Seeds returns the addresses to connect to.
func (b *Broker) Seeds() []string { return slices.Clone(b.seeds) }

// Admin returns the broker's admin client. It stays open until [Broker.Close].
func (b *Broker) Admin() *kadm.Client { return b.admin }

// External says that the cluster is that of ONCEBUS_TEST_BROKERS, which Stop, Kill and Restart refuse to touch.
func (b *Broker) External() bool { return b.external }

// LogPath is the file with the broker's log, across restarts; empty for an external cluster.
func (b *Broker) LogPath() string {
	if b.external {
		return ""
	}
	return b.path("kafka.log")
}

// LogTail returns the last lines of the broker's log, for a failure's message.
func (b *Broker) LogTail() string {
	if b.external {
		return "(the cluster of ONCEBUS_TEST_BROKERS is not ours: no log)"
	}
	log, err := os.ReadFile(b.LogPath())
	if err != nil {
		return err.Error()
	}
	return tail(log, logTailLines)
}

// Stop ends the broker with SIGTERM and waits for it. If it takes longer than half a minute it is killed, which is an error.
func (b *Broker) Stop() error {
	if err := b.own("stop"); err != nil {
		return err
	}
	if err := b.proc.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	timer := time.NewTimer(stopMax)
	defer timer.Stop()
	select {
	case <-b.proc.Exited():
		return nil
	case <-timer.C:
		return errors.Join(fmt.Errorf("the broker did not stop in %v and was killed; end of its log:\n%s", stopMax, b.LogTail()), b.Kill())
	}
}

// Kill ends the broker with SIGKILL and waits until it is gone. What it wrote stays in the page cache, so this is the death of a
// process, not of a machine.
func (b *Broker) Kill() error {
	if err := b.own("kill"); err != nil {
		return err
	}
	return b.proc.Kill()
}

// Restart starts a stopped or killed broker again on its data and ports.
func (b *Broker) Restart(ctx context.Context) error {
	if err := b.own("restart"); err != nil {
		return err
	}
	select {
	case <-b.proc.Exited():
		return b.launch(ctx)
	default:
		return errors.New("restart Kafka: it is running; Stop or Kill it first")
	}
}

// Close kills the broker if it runs and closes the admin client. It may be called again.
func (b *Broker) Close() error {
	if b.client != nil {
		b.client.Close()
	}
	if b.external || b.proc == nil {
		return nil
	}
	return b.Kill()
}

// own refuses to act on a cluster that is not ours.
func (b *Broker) own(verb string) error {
	if b.external {
		return fmt.Errorf("%s Kafka: the cluster of ONCEBUS_TEST_BROKERS is not ours to touch", verb)
	}
	return nil
}

func (b *Broker) path(name string) string { return filepath.Join(b.dir, name) }

// freePorts returns n distinct loopback ports nobody listens on. They lie below the range from which systems take the local
// ports of outgoing connections (32768 up on Linux, 49152 up elsewhere): such a connection could otherwise sit on the port of a
// broker that is down for a moment and keep it from coming back.
func freePorts(ctx context.Context, n int) ([]int, error) {
	const low, high, tries = 15_000, 32_000, 200
	var ports []int
	for range tries {
		port := low + mathrand.IntN(high-low)
		if slices.Contains(ports, port) {
			continue
		}
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			continue // taken: try another
		}
		if err := l.Close(); err != nil {
			return nil, fmt.Errorf("release port %d: %w", port, err)
		}
		if ports = append(ports, port); len(ports) == n {
			return ports, nil
		}
	}
	return nil, fmt.Errorf("no %d free loopback ports between %d and %d", n, low, high)
}
