//go:build unix

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/benchmarks/internal/bench"
	"oncebus/processor/kafkatest"
	"oncebus/processor/kafkatest/program"
)

const partitions = 4

// routesText is a routes file without an executor group, so that earlier programs accept it.
const routesText = `routes:
  - name: ops
    topics: [%[1]s-raw]
    mode: claim
    key: [record_key]
    window: 24h
    output: %[1]s-run
    outcomes: %[1]s-outcomes
    replies: %[1]s-replies
    lease: 10m
    dead_letter: %[1]s-dead
`

// measurement has the figures of one round. Rates are per second. CPU times are times of the process: per event, or
// at rest per second.
type measurement struct {
	Dispatched, Answered       float64
	DispatchCPU, AnswerCPU     time.Duration
	OpenCPU, ClosedCPU         time.Duration // at rest, while claims are open and while none is open
	OpenRecords, ClosedRecords float64       // records that the process wrote to the repartition topic at rest
}

// round is one run of a program. It has its own topics.
type round struct {
	broker      *bench.Broker
	binary, app string
	settings    settings
}

func (r *round) topic(name string) string { return r.app + "-" + name }
func (r *round) dir() string              { return filepath.Join(r.broker.Dir, r.app) }

func (r *round) measure(ctx context.Context) (m measurement, err error) {
	if err := r.prepare(ctx); err != nil {
		return m, err
	}
	events := r.events()
	p, err := r.start(ctx)
	if err != nil {
		return m, err
	}
	defer func() { _ = p.Kill() }()
	if m.Dispatched, m.DispatchCPU, err = r.work(ctx, p, "oncebus_events_total", func() error { return r.produce(ctx, events) }); err != nil {
		return m, err
	}
	if m.OpenCPU, m.OpenRecords, err = r.rest(ctx, p); err != nil {
		return m, err
	}
	outcomes, err := r.outcomes(ctx)
	if err != nil {
		return m, err
	}
	if m.Answered, m.AnswerCPU, err = r.work(ctx, p, "oncebus_outcomes_total", func() error { return r.produce(ctx, outcomes) }); err != nil {
		return m, err
	}
	if m.ClosedCPU, m.ClosedRecords, err = r.rest(ctx, p); err != nil {
		return m, err
	}
	return m, p.Stop()
}

func (r *round) prepare(ctx context.Context) error {
	if err := os.MkdirAll(r.dir(), 0o700); err != nil {
		return err
	}
	if err := r.broker.CreateTopics(ctx, partitions, r.topic("raw"), r.topic("outcomes")); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.dir(), "routes.yaml"), fmt.Appendf(nil, routesText, r.app), 0o600)
}

func (r *round) start(ctx context.Context) (*program.Process, error) {
	cmd := exec.CommandContext(ctx, r.binary, "run")
	cmd.Env = append(program.Isolated(r.dir()), program.Settings{
		Brokers: r.broker.Seeds(), AppID: r.app, Instance: "one", Routes: filepath.Join(r.dir(), "routes.yaml"), StateDir: filepath.Join(r.dir(), "state"),
		More: []string{"CREATE_TOPICS=true", fmt.Sprint("PARTITIONS=", partitions), "REPLICATION_FACTOR=1", "WORKERS=1"},
	}.Environ()...)
	p, err := program.Start(r.app, cmd, filepath.Join(r.dir(), "oncebus.log"))
	if err != nil {
		return nil, err
	}
	_, err = p.AwaitReady(ctx)
	return p, err
}

// events returns the events of a round.
func (r *round) events() []*kgo.Record {
	records := make([]*kgo.Record, r.settings.events)
	for n := range records {
		records[n] = &kgo.Record{Topic: r.topic("raw"), Key: fmt.Append(nil, "op-", n), Value: fmt.Appendf(make([]byte, 0, 200), `{"account":"a-%d","amount":5,"note":"%0150d"}`, n, n)}
	}
	return records
}

// outcomes reads the output, and returns a completed outcome for each event.
func (r *round) outcomes(ctx context.Context) ([]*kgo.Record, error) {
	var records []*kgo.Record
	err := bench.ReadTopic(ctx, r.broker.Seeds(), r.topic("run"), func(event *kgo.Record) {
		for _, h := range event.Headers {
			if h.Key == "oncebus-claim-token" {
				records = append(records, &kgo.Record{Topic: r.topic("outcomes"), Key: event.Key, Value: []byte(`{"granted":5}`), Headers: []kgo.RecordHeader{
					{Key: "oncebus-claim-token", Value: h.Value}, {Key: "oncebus-outcome", Value: []byte("completed")},
				}})
			}
		}
	})
	if err == nil && len(records) != r.settings.events {
		err = fmt.Errorf("the output has %d events with a token, want %d", len(records), r.settings.events)
	}
	return records, err
}

func (r *round) produce(ctx context.Context, records []*kgo.Record) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(r.broker.Seeds()...), kgo.ProducerLinger(5*time.Millisecond), kgo.MaxBufferedRecords(1<<20))
	if err != nil {
		return err
	}
	defer client.Close()
	return client.ProduceSync(ctx, records...).FirstErr()
}

// work produces records and measures until a counter of the process has grown by the number of these records.
func (r *round) work(ctx context.Context, p *program.Process, counter string, produce func() error) (rate float64, cpu time.Duration, err error) {
	before, err := p.Usage()
	if err != nil {
		return 0, 0, err
	}
	began := time.Now()
	if err := produce(); err != nil {
		return 0, 0, err
	}
	err = kafkatest.Await(ctx, fmt.Sprintf("%s is %d", counter, r.settings.events), func(ctx context.Context) error {
		if err := p.Ended(); err != nil {
			return kafkatest.Fatal(err)
		}
		metrics, err := p.Metrics(ctx)
		if err != nil {
			return err
		}
		if n := metrics.Sum(counter); n < float64(r.settings.events) {
			return fmt.Errorf("it is %v", n)
		}
		return nil
	})
	if err != nil {
		return 0, 0, err
	}
	took := time.Since(began)
	after, err := p.Usage()
	return float64(r.settings.events) / took.Seconds(), (after.CPU - before.CPU) / time.Duration(r.settings.events), err
}

// rest measures a process without input: per second, its CPU time and the records that it writes to the repartition
// topic.
func (r *round) rest(ctx context.Context, p *program.Process) (cpu time.Duration, records float64, err error) {
	if err := kafkatest.Pause(ctx, 2*time.Second); err != nil { // wait until the process has committed what is left
		return 0, 0, err
	}
	before, err := p.Usage()
	if err != nil {
		return 0, 0, err
	}
	from, err := r.broker.Ends(ctx, r.topic("repartition"))
	if err != nil {
		return 0, 0, err
	}
	if err := kafkatest.Pause(ctx, r.settings.rest); err != nil {
		return 0, 0, err
	}
	after, err := p.Usage()
	if err != nil {
		return 0, 0, err
	}
	to, err := r.broker.Ends(ctx, r.topic("repartition"))
	seconds := r.settings.rest.Seconds()
	return time.Duration(float64(after.CPU-before.CPU) / seconds), float64(to-from) / seconds, err
}
