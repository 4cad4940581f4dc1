//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/benchmarks/internal/bench"
	"oncebus/processor/kafkatest"
	"oncebus/processor/kafkatest/program"
)

// app is oncebus with its topics, for one case.
type app struct {
	name       string
	partitions int
	broker     *bench.Broker
	binary     string
	registry   string
	process    *program.Process
	producer   *kgo.Client
	sent       int
}

// plainRoutes returns n routes on one topic, each with its own namespace. The kind of an event decides which route it
// takes.
func plainRoutes(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "  - {name: route-%d, topics: [APP-in], match: {field: kind, in: [kind-%d]}, key: [{field: id}], window: 24h, output: APP-out, dead_letter: APP-dead}\n", i, i)
	}
	return b.String()
}

// newApp creates the topics of a case and its routes file, and starts the process. In routes, APP stands for the name
// of the app.
func (r *run) newApp(ctx context.Context, name, routes string, partitions int) (*app, error) {
	a := &app{name: name, partitions: partitions, broker: r.broker, binary: r.binary, registry: r.registry}
	if err := a.broker.CreateTopics(ctx, partitions, name+"-in", name+"-out", name+"-live", name+"-live-out", name+"-dead", name+"-outcomes", name+"-replies"); err != nil {
		return nil, err
	}
	if err := os.WriteFile(a.path("routes.yaml"), []byte("routes:\n"+strings.ReplaceAll(routes, "APP", name)), 0o600); err != nil {
		return nil, err
	}
	var err error
	a.producer, err = kgo.NewClient(kgo.SeedBrokers(a.broker.Seeds()...), kgo.DefaultProduceTopic(name+"-in"), kgo.ProducerLinger(5*time.Millisecond), kgo.MaxBufferedRecords(50_000))
	if err != nil {
		return nil, err
	}
	err = a.start(ctx)
	return a, err
}

func (a *app) path(name string) string { return filepath.Join(a.broker.Dir, a.name+"-"+name) }

// start starts a process with the state that the previous process has left.
func (a *app) start(ctx context.Context) (err error) {
	cmd := exec.CommandContext(ctx, a.binary, "run")
	cmd.Env = append(program.Inherited(), program.Settings{
		Brokers: a.broker.Seeds(), AppID: a.name, Instance: "one", Routes: a.path("routes.yaml"), StateDir: a.path("state"),
		More: []string{fmt.Sprint("PARTITIONS=", a.partitions), "REPLICATION_FACTOR=1", "SCHEMA_REGISTRY_URL=" + a.registry},
	}.Environ()...)
	a.process, err = program.Start(a.name, cmd, a.path("log"))
	return err
}

// close ends the process, and deletes topics and state.
func (a *app) close(ctx context.Context) error {
	a.producer.Close()
	return errors.Join(a.process.Kill(), a.broker.DeleteApp(ctx, a.name), os.RemoveAll(a.path("state")))
}

// event returns the n-th event. It has a new key; its kind is the next of the kinds in turn.
func event(kinds, n int) *kgo.Record {
	return &kgo.Record{Value: fmt.Appendf(nil, `{"id":"event-%d","kind":"kind-%d","text":"some details of the event that no route reads, as most events have"}`, n, n%kinds)}
}

// produce sends the given number of events, at rate events a second, or as fast as possible if rate is 0.
func (a *app) produce(ctx context.Context, events, rate int, next func(n int) *kgo.Record) error {
	promise := kgo.AbortingFirstErrPromise(a.producer)
	began := time.Now()
	for n := range events {
		if rate > 0 && n%max(1, rate/50) == 0 {
			if err := kafkatest.Pause(ctx, time.Until(began.Add(time.Duration(n)*time.Second/time.Duration(rate)))); err != nil {
				return err
			}
		}
		a.producer.Produce(ctx, next(a.sent), promise.Promise())
		a.sent++
	}
	return errors.Join(a.producer.Flush(ctx), promise.Err())
}

// await waits until the running process has judged the given number of events.
func (a *app) await(ctx context.Context, events int) error {
	return kafkatest.AwaitEvery(ctx, 100*time.Millisecond, fmt.Sprint(events, " events are judged"), func(ctx context.Context) error {
		if err := a.process.Ended(); err != nil {
			return kafkatest.Fatal(err)
		}
		m, err := a.process.Metrics(ctx)
		if err != nil {
			return err
		}
		if n := int(m.Sum("oncebus_events_total")); n < events {
			return fmt.Errorf("%d are", n)
		}
		return nil
	})
}

// costs returns the CPU time that the process and the broker have used.
func (a *app) costs() (cpu, broker time.Duration, err error) {
	used, err := a.process.Usage()
	if err != nil {
		return 0, 0, err
	}
	brokers, err := a.broker.Usage()
	return used.CPU, brokers.CPU, err
}

// changelogBytes returns the size on the broker's disk, in bytes, of the changelog of the repartition topic.
func (a *app) changelogBytes(ctx context.Context) (sum float64, err error) {
	dirs, err := a.broker.Admin().DescribeAllLogDirs(ctx, nil)
	if err != nil {
		return 0, err
	}
	dirs.Each(func(dir kadm.DescribedLogDir) {
		dir.Topics.Each(func(p kadm.DescribedLogDirPartition) {
			if p.Topic == a.name+"-repartition-changelog" {
				sum += float64(p.Size)
			}
		})
	})
	return sum, nil
}

// latencies reads the output of the live route until ctx ends. For each event it returns the ms from its creation,
// whose time is in the event's value, until it was read.
func (a *app) latencies(ctx context.Context) (ms []float64, err error) {
	reader, err := kgo.NewClient(kgo.SeedBrokers(a.broker.Seeds()...), kgo.ConsumeTopics(a.name+"-live-out"), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtEnd()), kgo.FetchMaxWait(50*time.Millisecond))
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	for {
		fetches := reader.PollFetches(ctx)
		if ctx.Err() != nil {
			return ms, nil // the end of ctx is the end of the measurement, not an error
		}
		now := time.Now().UnixMicro()
		fetches.EachRecord(func(rec *kgo.Record) {
			var sent int64
			if _, err := fmt.Sscanf(string(rec.Value[:min(40, len(rec.Value))]), `{"sent":%d,`, &sent); err == nil {
				ms = append(ms, float64(now-sent)/1000)
			}
		})
	}
}
