//go:build unix

package kafkatest_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"oncebus/processor/kafkatest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(kafkatest.Main(m)) }

// deadline bounds every wait for the broker in these tests.
const deadline = time.Minute

// createTopic creates a topic of one partition, named after the test.
func createTopic(t *testing.T, b *kafkatest.Broker, configs map[string]*string) string {
	t.Helper()
	topic := strings.ReplaceAll(t.Name(), "/", "-")
	if _, err := b.Admin().CreateTopic(t.Context(), 1, -1, configs, topic); err != nil {
		t.Fatalf("create topic %s: %v", topic, err)
	}
	return topic
}

// produceTxn writes values to the topic in one transaction and commits or aborts it.
func produceTxn(t *testing.T, b *kafkatest.Broker, topic string, end kgo.TransactionEndTry, values ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	cl, err := kgo.NewClient(kgo.SeedBrokers(b.Seeds()...), kgo.TransactionalID(t.Name()), kgo.DefaultProduceTopic(topic))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	if err := cl.BeginTransaction(); err != nil {
		t.Fatalf("begin: %v", err)
	}
	for _, v := range values {
		if err := cl.ProduceSync(ctx, kgo.StringRecord(v)).FirstErr(); err != nil {
			t.Fatalf("produce %q: %v", v, err)
		}
	}
	if err := cl.EndTransaction(ctx, end); err != nil {
		t.Fatalf("end: %v", err)
	}
}

// readCommitted reads the topic from its start until it has n values.
func readCommitted(t *testing.T, b *kafkatest.Broker, topic string, n int) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	cl, err := kgo.NewClient(kgo.SeedBrokers(b.Seeds()...), kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	var values []string
	for len(values) < n {
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			t.Fatalf("read %s with %d of %d values: %v", topic, len(values), n, err)
		}
		fetches.EachRecord(func(r *kgo.Record) { values = append(values, string(r.Value)) })
	}
	return values
}

// TestRealTransaction: a read_committed consumer gets the records of a committed transaction and skips the records of
// the aborted transaction before it.
func TestRealTransaction(t *testing.T) {
	b := kafkatest.Shared(t)
	topic := createTopic(t, b, nil)
	produceTxn(t, b, topic, kgo.TryAbort, "aborted")
	produceTxn(t, b, topic, kgo.TryCommit, "one", "two")
	if got := fmt.Sprint(readCommitted(t, b, topic, 2)); got != "[one two]" {
		t.Errorf("read %v, want [one two]", got)
	}
}

// TestRealTransactionVersion: from Kafka 4.0 on, a new cluster has transaction.version 2 (KIP-890), and
// SetTransactionVersion can set version 1. Kafka 3 does not have this feature.
func TestRealTransactionVersion(t *testing.T) {
	b := kafkatest.Shared(t)
	if b.External() {
		t.Skip("skipped: the cluster of ONCEBUS_TEST_BROKERS may have another version")
	}
	if strings.HasPrefix(kafkatest.Version(), "3.") {
		wantTransactionVersion(t, b, 0)
		return
	}
	wantTransactionVersion(t, b, 2)
	for _, version := range []int16{1, 2} {
		if err := b.SetTransactionVersion(t.Context(), version); err != nil {
			t.Fatal(err)
		}
		wantTransactionVersion(t, b, version)
	}
}

// wantTransactionVersion waits until every broker has the version, because brokers apply a change some time after the
// controller has accepted it.
func wantTransactionVersion(t *testing.T, b *kafkatest.Broker, want int16) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := kafkatest.Await(ctx, "the transaction version", func(ctx context.Context) error {
		features, err := b.Admin().ApiVersions(ctx)
		if err != nil {
			return err
		}
		for _, v := range features {
			if v.Err != nil {
				return v.Err
			}
			var got int16
			for _, f := range v.Raw().FinalizedFeatures {
				if f.Name == "transaction.version" {
					got = f.MaxVersionLevel
				}
			}
			if got != want {
				return fmt.Errorf("broker %d: transaction.version is %d, want %d", v.NodeID, got, want)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestUnsupportedVersionIsRefused: a version that is malformed, or older than the oldest supported version, makes the
// start fail; it does not make the test skip.
func TestUnsupportedVersionIsRefused(t *testing.T) {
	for version, want := range map[string]string{
		"3.9": "is not major.minor.patch", "latest": "is not major.minor.patch", "../../4.3.1": "is not major.minor.patch",
		"3.5.2": "is older than 3.6", "2.8.2": "is older than 3.6",
	} {
		t.Setenv("ONCEBUS_TEST_KAFKA", version)
		_, err := kafkatest.StartBroker(t.Context(), t.TempDir())
		if err == nil || errors.Is(err, kafkatest.ErrUnavailable) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "ONCEBUS_TEST_KAFKA") {
			t.Errorf("version %s: %v, want %q", version, err, want)
		}
	}
}

// TestRealKillStopRestart: acknowledged records survive a kill and a stop. The restarted broker has its old address
// and settings, and appends to the same log file.
func TestRealKillStopRestart(t *testing.T) {
	t.Parallel()
	// A killed broker can register again only when its old session has expired, so the session is short.
	b := kafkatest.Start(t, kafkatest.WithProperty("log.message.timestamp.after.max.ms", "123456789"), kafkatest.WithHeapMiB(256),
		kafkatest.WithProperty("broker.session.timeout.ms", "3000"), kafkatest.WithProperty("broker.heartbeat.interval.ms", "500"))
	topic := createTopic(t, b, nil)
	end := func(verb string, f func() error) {
		t.Helper()
		if err := f(); err != nil {
			t.Fatalf("%s: %v", verb, err)
		}
		if err := b.Restart(t.Context()); err != nil {
			t.Fatalf("restart after %s: %v", verb, err)
		}
	}
	produceTxn(t, b, topic, kgo.TryCommit, "before the kill")
	end("kill", b.Kill)
	produceTxn(t, b, topic, kgo.TryCommit, "before the stop")
	end("stop", b.Stop)
	if got := fmt.Sprint(readCommitted(t, b, topic, 2)); got != "[before the kill before the stop]" {
		t.Errorf("read %v", got)
	}

	configs, err := b.Admin().DescribeTopicConfigs(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	config, err := configs.On(topic, func(rc *kadm.ResourceConfig) error { return rc.Err })
	if err != nil {
		t.Fatal(err)
	}
	const name = "message.timestamp.after.max.ms"
	i := slices.IndexFunc(config.Configs, func(c kadm.Config) bool { return c.Key == name })
	if i < 0 || config.Configs[i].MaybeValue() != "123456789" {
		t.Errorf("topic default %s is not the broker property's: %+v", name, config.Configs)
	}
	if err := b.Restart(t.Context()); err == nil {
		t.Error("a restart of a running broker is no error")
	}
}

// TestRealBadPropertyFailsTheStart: if a broker rejects its settings, the start fails at once and the error contains
// the broker's own message.
func TestRealBadPropertyFailsTheStart(t *testing.T) {
	t.Parallel()
	kafkatest.Shared(t) // skips without Kafka
	b, err := kafkatest.StartBroker(t.Context(), t.TempDir(), kafkatest.WithProperty("log.retention.ms", "soon"))
	if err == nil {
		t.Fatal(errors.Join(errors.New("the broker started"), b.Close()))
	}
	if !strings.Contains(err.Error(), "log.retention.ms") {
		t.Errorf("error %q does not carry the broker's complaint about log.retention.ms", err)
	}
}
