//go:build unix

package kafkatest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
)

// Start starts a broker for one test or benchmark and closes it when the test ends. Without Java or Maven it skips
// the test; with CI=true it fails the test instead. With -short it always skips the test. If the test fails, Start
// prints the end of the broker's log.
func Start(tb testing.TB, opts ...Option) *Broker {
	tb.Helper()
	leaveToVerify(tb)
	dir := tb.TempDir()
	b, err := StartBroker(tb.Context(), dir, append(opts, WithShortLife())...)
	if err != nil {
		unavailable(tb, err)
	}
	tb.Cleanup(func() {
		logOnFailure(tb, b)
		if err := b.Close(); err != nil {
			tb.Errorf("close Kafka: %v", err)
		}
	})
	return b
}

// StartNodes is [Start] for a cluster of n brokers. A cluster of several brokers has a separate controller.
func StartNodes(tb testing.TB, n int, opts ...Option) *Cluster {
	tb.Helper()
	leaveToVerify(tb)
	c, err := StartCluster(tb.Context(), tb.TempDir(), n, append(opts, WithShortLife())...)
	if err != nil {
		unavailable(tb, err)
	}
	tb.Cleanup(func() {
		if tb.Failed() {
			for _, node := range c.nodes() {
				tb.Logf("end of the log of Kafka's node %d:\n%s", node.ID(), node.LogTail())
			}
		}
		if err := c.Close(); err != nil {
			tb.Errorf("close Kafka: %v", err)
		}
	})
	return c
}

// shared is the broker that all tests of a test binary share; see Shared.
var shared struct {
	sync.Mutex
	main   bool // TestMain runs the tests by Main, which will close the broker
	asked  bool
	broker *Broker
	dir    string
	err    error
}

// Shared returns the broker that all tests of the test binary share. The first call starts it. If
// ONCEBUS_TEST_BROKERS is set, Shared returns the cluster that it names. Each test uses its own names for topics,
// groups and transactional ids, and must not stop the broker. The TestMain of the package runs its tests by [Main].
// With -short, Shared skips the test.
func Shared(tb testing.TB) *Broker {
	tb.Helper()
	leaveToVerify(tb)
	shared.Lock()
	defer shared.Unlock()
	if !shared.main {
		tb.Fatal("kafkatest.Shared needs kafkatest.Main in the package's TestMain, which stops the broker")
	}
	if !shared.asked {
		shared.asked = true
		// The shared broker outlives the first test, so the first test's context must not end its start.
		shared.broker, shared.dir, shared.err = startShared(context.WithoutCancel(tb.Context()))
	}
	if shared.err != nil {
		unavailable(tb, shared.err)
	}
	tb.Cleanup(func() { logOnFailure(tb, shared.broker) })
	return shared.broker
}

func startShared(ctx context.Context) (b *Broker, dir string, err error) {
	if seeds := os.Getenv("ONCEBUS_TEST_BROKERS"); seeds != "" {
		b = &Broker{&Cluster{seeds: strings.Split(seeds, ","), external: true}}
		if err := b.connect(); err != nil {
			return nil, "", err
		}
		if err := b.probe(ctx); err != nil {
			return nil, "", errors.Join(fmt.Errorf("the cluster of ONCEBUS_TEST_BROKERS (%s): %w", seeds, err), b.Close())
		}
		return b, "", nil
	}
	if dir, err = os.MkdirTemp("", "kafkatest-"); err != nil {
		return nil, "", fmt.Errorf("make the broker's directory: %w", err)
	}
	b, err = StartBroker(ctx, dir, WithShortLife())
	return b, dir, err
}

// leaveToVerify skips a test with -short, even with CI=true: -short selects the tests that need Go alone, so the skip
// does not say that this machine lacks something.
func leaveToVerify(tb testing.TB) {
	tb.Helper()
	if testing.Short() {
		tb.Skip("skipped: make test leaves the real Kafka to make verify")
	}
}

// unavailable handles a broker that could not be started: it skips the test if this machine cannot run Kafka, and
// else fails it.
func unavailable(tb testing.TB, err error) {
	tb.Helper()
	if errors.Is(err, ErrUnavailable) {
		Lack(tb, "start Kafka: %v", err)
	}
	tb.Fatalf("start Kafka: %v", err)
}

// Lack skips a test because this machine lacks a tool or a right, and prints the reason. With CI=true it fails the
// test, because CI must run every test.
func Lack(tb testing.TB, format string, args ...any) {
	tb.Helper()
	if os.Getenv("CI") == "true" {
		tb.Fatalf(format, args...)
	}
	tb.Skipf("skipped: "+format, args...)
}

func logOnFailure(tb testing.TB, b *Broker) {
	tb.Helper()
	if tb.Failed() {
		tb.Logf("end of the broker's log:\n%s", b.LogTail())
	}
}

// Tests runs the tests of a package and closes the broker that they share. It implements goleak.TestingM.
type Tests struct{ m *testing.M }

// Main prepares the run of a package's tests with a shared broker, for TestMain.
func Main(m *testing.M) Tests {
	shared.Lock()
	defer shared.Unlock()
	shared.main = true
	return Tests{m}
}

// Run runs the tests, then closes the shared broker if a test requested it, and
// returns the exit code.
func (t Tests) Run() int {
	code := t.m.Run()
	shared.Lock()
	defer shared.Unlock()
	var err error
	if shared.broker != nil {
		err = shared.broker.Close()
	}
	if shared.dir != "" {
		err = errors.Join(err, os.RemoveAll(shared.dir))
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "kafkatest: close the shared broker: %v\n", err)
		return max(code, 1)
	}
	return code
}
