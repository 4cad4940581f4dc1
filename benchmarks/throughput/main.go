//go:build unix

// Command throughput measures oncebus beside the least a transactional
// stream processor can do: a passthrough, and a passthrough that also writes a
// small changelog record for each event. All of them read the same input from
// the same broker in the same run, one after the other, in rounds, so that the
// ratios hold where the machine's speed does not.
//
//	go run ./benchmarks/throughput -events 2000000 -rounds 3
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/kafkatest"
)

type settings struct {
	events     int
	rounds     int
	partitions int
	workers    int
	copies     int // percent
	commit     time.Duration
	results    string
	only       string
	profiles   string
}

// contenders in the order of a round; the first is what the others are
// compared with.
var contenders = []string{"passthrough", "passthrough+changelog", "oncebus keyed", "oncebus routed"}

func main() {
	if role := os.Getenv(envRole); role != "" {
		if err := runRole(role); err != nil {
			fmt.Fprintln(os.Stderr, role+":", err)
			os.Exit(1)
		}
		return
	}
	var s settings
	flag.IntVar(&s.events, "events", 1_000_000, "events in the input topic")
	flag.IntVar(&s.rounds, "rounds", 3, "rounds; medians are reported")
	flag.IntVar(&s.partitions, "partitions", 4, "partitions of every topic")
	flag.IntVar(&s.workers, "workers", 1, "workers of each contender")
	flag.IntVar(&s.copies, "copies", 10, "copies among the events, in percent")
	flag.DurationVar(&s.commit, "commit-interval", 100*time.Millisecond, "commit interval of each contender")
	flag.StringVar(&s.results, "results", "", "directory for the report; none is written if empty")
	flag.StringVar(&s.only, "only", "", "run only the contenders whose name contains this")
	flag.StringVar(&s.profiles, "profiles", "", "directory for a CPU profile of each contender's last round; none are written if empty")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, s)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "throughput:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, s settings) error {
	dir, err := os.MkdirTemp("", "oncebus-throughput-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	broker, err := kafkatest.StartBroker(ctx, filepath.Join(dir, "kafka"), kafkatest.WithHeapMiB(1024))
	if err != nil {
		return err
	}
	defer func() { _ = broker.Close() }()
	fmt.Fprintf(os.Stderr, "generating %d events\n", s.events)
	if err := generate(ctx, broker.Seeds(), s); err != nil {
		return fmt.Errorf("generate the input: %w", err)
	}
	measured := map[string][]measurement{}
	for round := range s.rounds {
		for _, name := range contenders {
			if !strings.Contains(name, s.only) {
				continue
			}
			m, err := measure(ctx, broker, s, name, round, dir)
			if err != nil {
				return fmt.Errorf("%s, round %d: %w", name, round+1, err)
			}
			fmt.Fprintf(os.Stderr, "round %d  %-22s %7.0f k events/s  %5.2f us CPU an event\n", round+1, name, m.rate/1e3, m.cpuMicros)
			measured[name] = append(measured[name], m)
		}
	}
	return report(s, measured)
}

// measurement is one contender in one round.
type measurement struct {
	rate      float64 // events a second, from the first output to the last committed input
	cpuMicros float64 // user and system time of the contender's process, an event
}

// measure runs one contender as a process of its own until it has committed
// the whole input.
func measure(ctx context.Context, broker *kafkatest.Broker, s settings, name string, round int, dir string) (measurement, error) {
	app := fmt.Sprintf("r%d-%s", round, strings.NewReplacer(" ", "-", "+", "-").Replace(name))
	exe, err := os.Executable()
	if err != nil {
		return measurement{}, err
	}
	cmd := exec.CommandContext(ctx, exe)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.Stderr = os.Stderr
	cmd.Env = append(os.Environ(), envRole+"="+name, envApp+"="+app, envBrokers+"="+strings.Join(broker.Seeds(), ","),
		fmt.Sprintf("%s=%d", envPartitions, s.partitions), fmt.Sprintf("%s=%d", envWorkers, s.workers),
		envCommit+"="+s.commit.String(), envState+"="+filepath.Join(dir, app))
	if s.profiles != "" {
		cmd.Env = append(cmd.Env, envProfile+"="+filepath.Join(s.profiles, strings.ReplaceAll(name, " ", "-")+".pprof"))
	}
	if err := createTopics(ctx, broker.Admin(), s, app); err != nil {
		return measurement{}, err
	}
	if err := cmd.Start(); err != nil {
		return measurement{}, err
	}
	took, err := awaitDone(ctx, broker.Admin(), app)
	stopErr := cmd.Process.Signal(syscall.SIGTERM)
	waitErr := cmd.Wait()
	if err := errors.Join(err, stopErr, waitErr); err != nil {
		return measurement{}, err
	}
	cpu := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	if err := deleteTopics(ctx, broker.Admin(), outputTopic(app), sideTopic(app)); err != nil {
		return measurement{}, err
	}
	return measurement{
		rate:      float64(s.events) / took.Seconds(),
		cpuMicros: float64(cpu.Microseconds()) / float64(s.events),
	}, nil
}

// pollEvery is the resolution of the clock: offsets are asked for this often.
const pollEvery = 10 * time.Millisecond

// awaitDone returns the time from the first committed output to the commit of
// the last input. Every contender ends in the group <app>-dedup or, for a
// routed one, drains its hop there too.
func awaitDone(ctx context.Context, admin *kadm.Client, app string) (time.Duration, error) {
	var first time.Time
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
		if first.IsZero() {
			ends, err := admin.ListCommittedOffsets(ctx, outputTopic(app))
			if err != nil {
				return 0, err
			}
			ends.Each(func(o kadm.ListedOffset) {
				if o.Offset > 0 {
					first = time.Now()
				}
			})
			continue
		}
		done, err := drained(ctx, admin, app)
		if err != nil {
			return 0, err
		}
		if done {
			return time.Since(first), nil
		}
	}
}

// drained compares committed offsets with what the output must hold: all
// groups of the app are at the ends of what they read. The hop ends in
// transaction markers, so its group may stand before the end; the number of
// output records decides there.
func drained(ctx context.Context, admin *kadm.Client, app string) (bool, error) {
	for group, topic := range map[string]string{app + "-dedup": inputTopic, app + "-route": inputTopic} {
		committed, err := admin.FetchOffsets(ctx, group)
		if err != nil {
			return false, err
		}
		if group == app+"-route" && len(committed) == 0 {
			continue
		}
		if _, reads := committed[topic]; !reads {
			topic = app + "-repartition"
		}
		ends, err := admin.ListCommittedOffsets(ctx, topic)
		if err != nil {
			return false, err
		}
		behind := false
		ends.Each(func(o kadm.ListedOffset) {
			at, _ := committed.Lookup(topic, o.Partition)
			slack := int64(0)
			if topic != inputTopic {
				slack = 1 // the last transaction's marker
			}
			behind = behind || at.At < o.Offset-slack
		})
		if behind {
			return false, nil
		}
	}
	return true, nil
}

func createTopics(ctx context.Context, admin *kadm.Client, s settings, app string) error {
	resp, err := admin.CreateTopics(ctx, int32(s.partitions), 1, nil, outputTopic(app), sideTopic(app))
	if err != nil {
		return err
	}
	return resp.Error()
}

// generate fills the input topic: signals of about 230 bytes, keyed and
// partitioned by trace id, a share of them copies of earlier ones.
func generate(ctx context.Context, seeds []string, s settings) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(seeds...), kgo.DefaultProduceTopic(inputTopic), kgo.ProducerLinger(5*time.Millisecond), kgo.MaxBufferedRecords(100_000))
	if err != nil {
		return err
	}
	defer client.Close()
	if err := func() error {
		resp, err := kadm.NewClient(client).CreateTopics(ctx, int32(s.partitions), 1, nil, inputTopic)
		if err != nil {
			return err
		}
		return resp.Error()
	}(); err != nil {
		return err
	}
	promise := kgo.AbortingFirstErrPromise(client)
	start := time.Now().Add(-time.Hour).UnixMilli()
	for n := range s.events {
		id := n
		if s.copies > 0 && n%100 < s.copies && n >= 1000 {
			id = n - 997
		}
		key := fmt.Appendf(nil, "trace-%012d", id)
		client.Produce(ctx, &kgo.Record{Key: key, Value: signalValue(id), Timestamp: time.UnixMilli(start + int64(n/1000))}, promise.Promise())
	}
	return promise.Err()
}

func signalValue(id int) []byte {
	return fmt.Appendf(nil, `{"traceId":"trace-%012d","symbol":"BTCUSDT","exchange":"BINANCE","action":"buy","price":"%d.25","quantity":"0.50","strategy":"breakout-v3","interval":"15m","timestamp":"2026-11-20T10:00:00Z","comment":"long entry on close above band"}`, id, 40_000+id%1000)
}

func deleteTopics(ctx context.Context, admin *kadm.Client, topics ...string) error {
	resp, err := admin.DeleteTopics(ctx, topics...)
	if err != nil {
		return err
	}
	return resp.Error()
}
