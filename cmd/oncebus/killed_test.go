//go:build unix

package main_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/cmd/oncebus/cli"
	"oncebus/cmd/oncebus/cli/clitest"
	"oncebus/processor/kafkatest"
	"oncebus/processor/kafkatest/embedded"
)

// changingRequests are those after which something is otherwise than before. Between two of them a
// command only reads, so to kill it before each of them is to kill it at each of its steps.
var changingRequests = map[kmsg.Key]bool{
	kmsg.Produce: true, kmsg.OffsetCommit: true, kmsg.CreateTopics: true, kmsg.DeleteTopics: true, kmsg.DeleteRecords: true,
	kmsg.InitProducerID: true, kmsg.AddPartitionsToTxn: true, kmsg.AddOffsetsToTxn: true, kmsg.EndTxn: true, kmsg.TxnOffsetCommit: true,
	kmsg.AlterConfigs: true, kmsg.CreatePartitions: true, kmsg.DeleteGroups: true, kmsg.IncrementalAlterConfigs: true, kmsg.OffsetDelete: true,
}

// A killer cuts one client off at a request, as kill -9 does: the broker does not get the request,
// and nothing that the client says after it, not even the end of its transaction.
type killer struct {
	mu     sync.Mutex
	victim string // the client id
	left   int    // how many changing requests pass
	kill   func()
	killed bool
}

// aim has a client cut off at its n-th changing request.
func (k *killer) aim(victim string, n int, kill func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.victim, k.left, k.kill, k.killed = victim, n-1, kill, false
}

// passes reports whether the broker gets a request.
func (k *killer) passes(frame []byte) bool {
	key, length := kmsg.Key(binary.BigEndian.Uint16(frame)), int(int16(binary.BigEndian.Uint16(frame[8:])))
	client := string(frame[10 : 10+max(0, length)])
	k.mu.Lock()
	defer k.mu.Unlock()
	if client != k.victim || !k.killed && !changingRequests[key] {
		return client != k.victim || !k.killed
	}
	if !k.killed && k.left > 0 {
		k.left--
		return true
	}
	if !k.killed {
		k.killed = true
		k.kill()
	}
	return false
}

func (k *killer) listen(network, address string) (net.Listener, error) {
	l, err := net.Listen(network, address) //nolint:noctx // as kfake does
	return &killingListener{l, k}, err
}

type killingListener struct {
	net.Listener

	killer *killer
}

func (l *killingListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	return &killingConn{Conn: conn, killer: l.killer}, err
}

// A killingConn reads one request after another.
type killingConn struct {
	net.Conn

	killer *killer
	rest   []byte // of a request that passes
}

func (c *killingConn) Read(b []byte) (int, error) {
	if len(c.rest) == 0 {
		var size [4]byte
		if _, err := io.ReadFull(c.Conn, size[:]); err != nil {
			return 0, err
		}
		frame := make([]byte, binary.BigEndian.Uint32(size[:]))
		if _, err := io.ReadFull(c.Conn, frame); err != nil {
			return 0, err
		}
		if !c.killer.passes(frame) {
			return 0, io.ErrClosedPipe
		}
		c.rest = append(size[:], frame...)
	}
	n := copy(b, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

// killBench is an app with a running service, whose commands are killed.
type killBench struct {
	*killer

	t       *testing.T
	cluster *embedded.Cluster
	client  *kgo.Client
	environ []string
	service *served
	dir     string
	runs    int
}

func newKillBench(t *testing.T) *killBench {
	b := &killBench{killer: &killer{}, t: t, dir: t.TempDir()}
	b.cluster = embedded.Start(t, kfake.ListenFn(b.listen))
	b.cluster.CreateTopic("signals.raw", 2)
	b.client = b.cluster.Client()
	b.environ = runEnviron(t, "ONCEBUS_BROKERS="+strings.Join(b.cluster.ListenAddrs(), ","), "ONCEBUS_ROUTES="+b.file("routes.yaml", keyRoutes+"    dead_letter: dead\n"))
	b.service = serves(t, b.environ...)
	return b
}

func (b *killBench) file(name, content string) string {
	name = filepath.Join(b.dir, name)
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		b.t.Fatal(err)
	}
	return name
}

// run runs a command in a process of its own, which is killed before its n-th changing request.
func (b *killBench) run(n int, args ...string) (got clitest.Result, killed bool) {
	b.t.Helper()
	b.runs++
	instance := fmt.Sprint("command-", b.runs)
	var stdout, stderr bytes.Buffer
	command := exec.CommandContext(b.t.Context(), os.Args[0], args...)
	command.Env = append(append(os.Environ(), b.environ...), asCommand+"=1", "ONCEBUS_INSTANCE_ID="+instance, "ONCEBUS_TRANSACTION_TIMEOUT=2s") // the next command waits so long
	command.Stdout, command.Stderr = &stdout, &stderr
	b.aim("oncebus-"+instance, n, func() { _ = command.Process.Kill() }) // an error is that it has ended
	err := command.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		b.t.Fatal(err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return clitest.Result{Code: command.ProcessState.ExitCode(), Stdout: stdout.String(), Stderr: stderr.String()}, b.killed
}

// succeeds runs a command that has to succeed, and returns its output.
func (b *killBench) succeeds(args ...string) string {
	b.t.Helper()
	got := execute(b.t.Context(), b.environ, "", args...)
	if got.Code != cli.ExitStopped {
		b.t.Errorf("oncebus %s: exit code %d, stderr %q, output\n%s", strings.Join(args, " "), got.Code, got.Stderr, got.Stdout)
	}
	return got.Stdout
}

// says runs a command that has to succeed, and expects a text in its output.
func (b *killBench) says(want string, args ...string) {
	b.t.Helper()
	if out := b.succeeds(args...); !strings.Contains(out, want) {
		b.t.Errorf("oncebus %s: want %q in\n%s", strings.Join(args, " "), want, out)
	}
}

func (b *killBench) produce(values ...string) {
	b.t.Helper()
	for _, v := range values {
		key, value, _ := strings.Cut(v, " ")
		if err := b.client.ProduceSync(b.t.Context(), &kgo.Record{Topic: "signals.raw", Key: []byte(key), Value: []byte(value)}).FirstErr(); err != nil {
			b.t.Fatal(err)
		}
	}
}

func (b *killBench) awaitRecords(topic string, n int) {
	b.t.Helper()
	b.service.until(fmt.Sprint(n, " records in ", topic), func() bool { return b.count(topic, "") == n })
}

// count returns how many committed records a topic has with a key, "" for any.
func (b *killBench) count(topic, key string) (n int) {
	b.t.Helper()
	records, err := kafkatest.ReadCommitted(b.t.Context(), b.client, nil, topic)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, r := range records {
		if key == "" || string(r.Key) == key {
			n++
		}
	}
	return n
}

// partitions returns how many partitions the app has for its keys, and how many repartition topics.
func (b *killBench) partitions() (partitions, topics int) {
	b.t.Helper()
	listed, err := b.cluster.Admin().ListTopics(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	for name, d := range listed {
		if strings.HasPrefix(name, "oncebus-repartition") && !strings.HasSuffix(name, "-changelog") {
			partitions, topics = len(d.Partitions), topics+1
		}
	}
	return partitions, topics
}

// A changingCommand is one that changes an app. Round n of it begins as round 1 does, but for n.
type changingCommand struct {
	every   int                       // of its changing requests one in so many is cut; 0 is each
	begin   func(b *killBench)        // once
	prepare func(b *killBench, n int) // before each round
	args    func(b *killBench, n int) []string
	ended   func(b *killBench, n int) // checks the state after each round
}

// killedRounds bounds the rounds, and so the changing requests of a command.
const killedRounds = 60

var changingCommands = map[string]changingCommand{
	"apply": {
		args: func(b *killBench, n int) []string {
			return []string{"apply", "--yes", b.file(fmt.Sprint(n, ".yaml"), strings.Replace(keyRoutes, "24h", fmt.Sprint(24+n, "h"), 1)+"    dead_letter: dead\n")}
		},
		ended: func(b *killBench, n int) {
			b.says("nothing to do", "plan", filepath.Join(b.dir, fmt.Sprint(n, ".yaml")))
		},
	},
	"hold": {
		args: func(_ *killBench, n int) []string { return []string{"hold", "--reason", fmt.Sprint("round ", n)} },
		ended: func(b *killBench, n int) {
			b.says("complete", "hold")
			b.says(fmt.Sprint("released: round ", n), "release")
		},
	},
	"release": {
		prepare: func(b *killBench, _ int) { b.succeeds("hold", "--reason", "round") },
		args:    func(*killBench, int) []string { return []string{"release"} },
		ended:   func(b *killBench, _ int) { b.says("no hold is in force", "hold") },
	},
	"hold-leaving": {
		args:  func(*killBench, int) []string { return []string{"hold", "--leaving", "--reason", "go"} },
		ended: func(b *killBench, _ int) { b.says("released: go", "release", "--back") },
	},
	"release-back": {
		prepare: func(b *killBench, _ int) { b.succeeds("hold", "--leaving", "--reason", "go") },
		args:    func(*killBench, int) []string { return []string{"release", "--back"} },
		ended:   func(b *killBench, _ int) { b.says("no hold is in force", "hold") },
	},
	"seed": {
		args: func(b *killBench, n int) []string {
			var lines strings.Builder
			for i := range 20 {
				fmt.Fprintf(&lines, "s-%d-%d\t%d\n", n, i, time.Now().UnixMilli())
			}
			return []string{"seed", "--route", "signals", b.file(fmt.Sprint("seed-", n), lines.String())}
		},
		ended: func(b *killBench, n int) {
			var stats struct{ Namespaces []struct{ Total int } }
			if err := json.Unmarshal([]byte(b.succeeds("stats", "-o", "json")), &stats); err != nil || len(stats.Namespaces) != 1 || stats.Namespaces[0].Total != 20*n {
				b.t.Errorf("%+v, %v: want %d keys", stats, err, 20*n)
			}
		},
	},
	"forget": {
		prepare: func(b *killBench, n int) {
			b.produce(fmt.Sprintf(`k {"traceId":"f-%d"}`, n))
			b.awaitRecords("signals.unique", n)
		},
		args:  func(_ *killBench, n int) []string { return []string{"forget", "--id", fmt.Sprint("f-", n)} },
		ended: func(b *killBench, n int) { b.says("free: the next event", "get", "--id", fmt.Sprint("f-", n)) },
	},
	"redrive": {
		begin: (*killBench).turnAway,
		args: func(_ *killBench, n int) []string {
			return []string{"dead-letters", "redrive", "--key", fmt.Sprint("r-", n), "--yes"}
		},
		ended: func(b *killBench, n int) { b.isRedriven(n, 3) },
	},
	"drop": {
		begin: (*killBench).turnAway,
		args: func(_ *killBench, n int) []string {
			return []string{"dead-letters", "drop", "--key", fmt.Sprint("r-", n), "--yes"}
		},
		ended: func(b *killBench, n int) { b.isRedriven(n, 0) },
	},
	"move": { // each of its phases: TestMoveGoesOn
		every: 7,
		args:  func(_ *killBench, n int) []string { return []string{"move", "--partitions", fmt.Sprint(3 + n%2)} },
		ended: func(b *killBench, n int) {
			b.says("no move to undo", "abort")
			b.says(fmt.Sprintf("nothing to do: the app has %d partitions", 3+n%2), "move", "--partitions", fmt.Sprint(3+n%2))
			b.says("no hold is in force", "hold")
		},
	},
	"move-finish": {
		every:   3,
		prepare: func(b *killBench, n int) { b.succeeds("move", "--partitions", fmt.Sprint(3+n%2)) },
		args:    func(*killBench, int) []string { return []string{"move", "--finish"} },
		ended: func(b *killBench, n int) {
			if p, topics := b.partitions(); p != 3+n%2 || topics != 1 {
				b.t.Errorf("%d topics, one with %d partitions, want one with %d", topics, p, 3+n%2)
			}
		},
	},
	"abort": {
		prepare: func(b *killBench, _ int) { // a move that was killed while it copied
			if got, killed := b.run(8, "move", "--partitions", "7"); !killed {
				b.t.Errorf("not killed: %+v", got)
			}
		},
		args: func(*killBench, int) []string { return []string{"abort"} },
		ended: func(b *killBench, _ int) {
			b.says("no move to undo", "abort")
			b.says("no hold is in force", "hold")
		},
	},
}

// turnAway makes three dead letters for each round, and stops the service: what is sent back stays
// where it is.
func (b *killBench) turnAway() {
	var events []string
	for n := range killedRounds {
		for range 3 {
			events = append(events, fmt.Sprintf("r-%d {}", n+1))
		}
	}
	b.produce(events...)
	b.awaitRecords("dead", len(events))
	b.service.stop()
	<-b.service.code
}

// isRedriven checks that the three dead letters of a round are not open any more, and that the input has
// so many records of them again.
func (b *killBench) isRedriven(n, again int) {
	b.t.Helper()
	key := fmt.Sprint("r-", n)
	b.says(`"selected":0`, "dead-letters", "redrive", "--key", key, "-o", "json")
	if have := b.count("signals.raw", key); have != 3+again {
		b.t.Errorf("the input has %d records of round %d, want %d", have, n, 3+again)
	}
}

// TestSystemKilledCommandIsRepeated kills each command that changes an app before each of its changing
// requests, and after the last one. The same line, typed again, ends as if nothing had happened.
func TestSystemKilledCommandIsRepeated(t *testing.T) {
	t.Parallel()
	for name, c := range changingCommands {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // mostly it waits for the end of transactions that were cut off
			b := newKillBench(t)
			if c.begin != nil {
				c.begin(b)
			}
			n, killed, step := 1-max(1, c.every), true, max(1, c.every)
			for killed && !t.Failed() {
				if n += step; n > killedRounds {
					t.Fatalf("it has more than %d changing requests", killedRounds)
				}
				if c.prepare != nil {
					c.prepare(b, n)
				}
				args := c.args(b, n)
				var got clitest.Result
				if got, killed = b.run(n, args...); !killed && got.Code != cli.ExitStopped {
					t.Errorf("unharmed it has exit code %d: %s", got.Code, got.Stderr)
				}
				b.succeeds(args...)
				c.ended(b, n)
				if t.Failed() {
					t.Logf("round %d of oncebus %s", n, strings.Join(args, " "))
				}
			}
			if n < 3 {
				t.Errorf("only %d changing requests were seen", n-1)
			}
			t.Logf("cut up to its changing request %d, before one in %d", n-step, step)
		})
	}
}
