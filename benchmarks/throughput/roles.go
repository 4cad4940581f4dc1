//go:build unix

package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/processor"
	"oncebus/state"
)

// What a contender's process is told.
const (
	envRole       = "ONCEBUS_BENCH_ROLE"
	envApp        = "ONCEBUS_BENCH_APP"
	envBrokers    = "ONCEBUS_BENCH_BROKERS"
	envPartitions = "ONCEBUS_BENCH_PARTITIONS"
	envWorkers    = "ONCEBUS_BENCH_WORKERS"
	envCommit     = "ONCEBUS_BENCH_COMMIT"
	envState      = "ONCEBUS_BENCH_STATE"
	envProfile    = "ONCEBUS_BENCH_PROFILE" // file for a CPU profile; none if empty
)

const inputTopic = "bench-input"

func outputTopic(app string) string { return app + "-output" }

// sideTopic takes the passthrough's changelog, or what oncebus dead-letters.
func sideTopic(app string) string { return app + "-side" }

// runRole is a contender; it works until it is told to stop.
func runRole(role string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if name := os.Getenv(envProfile); name != "" {
		f, err := os.Create(name)
		if err != nil {
			return err
		}
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer func() {
			pprof.StopCPUProfile()
			_ = f.Close()
		}()
	}
	workers, err := strconv.Atoi(os.Getenv(envWorkers))
	if err != nil {
		return err
	}
	commit, err := time.ParseDuration(os.Getenv(envCommit))
	if err != nil {
		return err
	}
	if strings.HasPrefix(role, "oncebus") {
		return runOncebus(ctx, role == "oncebus keyed", workers, commit)
	}
	var wg sync.WaitGroup
	errs := make([]error, workers)
	for i := range workers {
		wg.Go(func() { errs[i] = passthrough(ctx, i, commit, role == "passthrough+changelog") })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func runOncebus(ctx context.Context, keyed bool, workers int, commit time.Duration) error {
	app := os.Getenv(envApp)
	routes, err := dedup.ParseRoutes("bench", fmt.Appendf(nil, `routes:
  - name: signals
    topics: [%s]
    keyed: %v
    key:
      - field: traceId
    window: 24h
    output: %s
    dead_letter: %s
`, inputTopic, keyed, outputTopic(app), sideTopic(app)))
	if err != nil {
		return err
	}
	partitions, err := strconv.Atoi(os.Getenv(envPartitions))
	if err != nil {
		return err
	}
	p, err := processor.New(processor.Config{
		Brokers: strings.Split(os.Getenv(envBrokers), ","), AppID: app, InstanceID: "bench", Partitions: int32(partitions), ReplicationFactor: 1,
		StateDir: os.Getenv(envState), Workers: workers, CommitInterval: commit, Start: processor.StartEarliest,
		SessionTimeout: 10 * time.Second, TransactionTimeout: 15 * time.Second, StopTimeout: 20 * time.Second, State: state.DefaultConfig(),
	}, routes, prometheus.NewRegistry(), slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})))
	if err != nil {
		return err
	}
	return p.Run(ctx)
}

// passthrough is the limit: consume, produce, commit, with the client and the
// settings oncebus uses, and nothing else.
func passthrough(ctx context.Context, index int, commit time.Duration, changelog bool) error {
	app := os.Getenv(envApp)
	session, err := kgo.NewGroupTransactSession(
		kgo.SeedBrokers(strings.Split(os.Getenv(envBrokers), ",")...),
		kgo.ConsumerGroup(app+"-dedup"), kgo.ConsumeTopics(inputTopic),
		kgo.TransactionalID(fmt.Sprintf("%s-%d", app, index)), kgo.TransactionTimeout(15*time.Second),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.Balancers(kgo.CooperativeStickyBalancer()), kgo.BlockRebalanceOnPoll(),
		kgo.MaxBufferedRecords(200_000), kgo.ProducerLinger(5*time.Millisecond))
	if err != nil {
		return err
	}
	defer session.CloseAllowingRebalance()
	for ctx.Err() == nil {
		if err := passOnce(ctx, session, app, commit, changelog); err != nil && ctx.Err() == nil {
			return err
		}
		session.AllowRebalance()
	}
	return nil
}

// passOnce runs one transaction.
func passOnce(ctx context.Context, session *kgo.GroupTransactSession, app string, commit time.Duration, changelog bool) error {
	fetches := session.PollRecords(ctx, 10_000)
	if fetches.NumRecords() == 0 {
		return nil
	}
	if err := session.Begin(); err != nil {
		return err
	}
	promise := kgo.AbortingFirstErrPromise(session.Client())
	bounded, cancel := context.WithTimeout(ctx, commit)
	defer cancel()
	for n := 0; ; fetches = session.PollRecords(bounded, 10_000) {
		fetches.EachRecord(func(r *kgo.Record) {
			session.Produce(context.Background(), &kgo.Record{Topic: outputTopic(app), Key: r.Key, Value: r.Value, Timestamp: r.Timestamp}, promise.Promise())
			if changelog {
				session.Produce(context.Background(), &kgo.Record{Topic: sideTopic(app), Key: r.Key[:16], Value: r.Value[:20]}, promise.Promise())
			}
		})
		if n += fetches.NumRecords(); n >= 50_000 || bounded.Err() != nil {
			break
		}
	}
	_, err := session.End(context.Background(), promise.Err() == nil)
	return err
}
