package processor_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"oncebus/dedup/rules"
	"oncebus/processor"
	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/kafkatest"
	"oncebus/processor/kafkatest/embedded"
	"oncebus/processor/security"
	"oncebus/processor/wire"
	"oncebus/state"
)

func TestMain(m *testing.M) {
	collectLess()
	goleak.VerifyTestMain(m,
		// A garbage collection ends by itself, but on a busy machine later than goleak waits.
		goleak.IgnoreAnyFunction("oncebus/processor/kafka.(*Budget).collectNow"),
		// The flusher of glog comes with Badger's dependencies and never ends.
		goleak.IgnoreTopFunction("github.com/golang/glog.(*fileSink).flushDaemon"),
		// Badger leaves these goroutines behind when it fails to open damaged files. A store that a test does not
		// close still shows by its background goroutine.
		goleak.IgnoreTopFunction("github.com/dgraph-io/ristretto/v2/z.(*AllocatorPool).freeupAllocators"),
		goleak.IgnoreTopFunction("github.com/dgraph-io/badger/v4.(*DB).monitorCache"),
		goleak.IgnoreTopFunction("github.com/dgraph-io/badger/v4.(*DB).updateSize"),
		goleak.IgnoreTopFunction("github.com/dgraph-io/badger/v4/y.(*WaterMark).process"))
}

// gcPercent suits a process that opens thousands of stores: Badger allocates 3 MB to close a store. With Go's default
// of 100 the garbage collector takes a third of the CPU time of these tests, for a live heap of some 100 MB.
const gcPercent = 400

// collectLess makes the garbage collector run less often, unless the environment sets its frequency.
func collectLess() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
}

// bench is an embedded broker, a routes file, and processors that run on them.
type bench struct {
	batchMax int // ONCEBUS_MAX_DECOMPRESSED_BATCH_BYTES; 0 for the default
	t        *testing.T
	cluster  *embedded.Cluster
	client   *kgo.Client
	admin    *kadm.Client
	routes   *rules.Routes
	logs     *embedded.Log
	// clientOpts are options of the bench's own clients; a simulation puts its network here.
	clientOpts []kgo.Opt
	// says makes processors write progress records of how far they have read their inputs, so that stream time moves.
	// It is off by default, because these records change the offsets and transactions that other tests count.
	says bool
}

const benchRoutes = `routes:
  - name: signals
    topics: [signals.raw]
    key:
      - field: id
    window: 1h
    grace: 10m
    output: signals.unique
    dead_letter: dead
`

func newBench(t *testing.T, routes string, extra ...kfake.Opt) *bench {
	t.Helper()
	parsed, err := rules.ParseRoutes("routes.yaml", []byte(routes))
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, logs: embedded.NewLog(t), cluster: embedded.Start(t, extra...), routes: parsed}
	b.client = b.newClient()
	b.admin = kadm.NewClient(b.client)
	t.Cleanup(b.logPositions)
	return b
}

// logPositions logs the positions of both stages if the test failed: the log distinguishes a stage that no longer
// reads from a stage that waits for the other.
func (b *bench) logPositions() {
	if !b.t.Failed() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for _, group := range []string{"app-route", "app-dedup"} {
		lags, err := b.admin.Lag(ctx, group)
		if err != nil {
			b.t.Logf("group %s: %v", group, err)
			continue
		}
		for _, p := range lags[group].Lag.Sorted() {
			b.t.Logf("group %s, %s/%d: committed %d of %d", group, p.Topic, p.Partition, p.Commit.At, p.End.Offset)
		}
	}
}

func (b *bench) newClient(opts ...kgo.Opt) *kgo.Client {
	b.t.Helper()
	opts = append([]kgo.Opt{kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.FetchMaxWait(100 * time.Millisecond)}, opts...)
	return b.cluster.Client(append(opts, b.clientOpts...)...)
}

func (b *bench) config(instance string) processor.Config {
	return processor.Config{
		Config: app.Config{
			Config: security.Config{
				Brokers:    b.cluster.ListenAddrs(),
				AppID:      "app",
				InstanceID: instance,
			},
			Partitions:         4,
			ReplicationFactor:  1,
			CreateTopics:       true,
			Start:              app.StartEarliest,
			TransactionTimeout: 5 * time.Second,

			MaxDecompressedBatchBytes: b.batchMax,
		},
		StateDir:       b.t.TempDir(),
		Workers:        1,
		CommitInterval: 20 * time.Millisecond,
		SessionTimeout: 6 * time.Second, // longer than a busy machine stops
		StopTimeout:    20 * time.Second,
		State:          state.DefaultConfig(),
	}
}

// createTopic creates a topic with settings, which are given as name, value, name, value.
func (b *bench) createTopic(name string, partitions int32, settings ...string) {
	b.t.Helper()
	b.cluster.CreateTopic(name, partitions, settings...)
}

// useRoutes gives another routes file to the processors that are started from now on.
func (b *bench) useRoutes(routes string) {
	b.t.Helper()
	parsed, err := rules.ParseRoutes("routes.yaml", []byte(routes))
	if err != nil {
		b.t.Fatal(err)
	}
	b.routes = parsed
}

// instance is a processor that runs until it is stopped or the test ends.
type instance struct {
	*processor.Processor
	registry *prometheus.Registry
	cancel   context.CancelFunc
	done     chan struct{}
	err      error
}

func (b *bench) start(cfg processor.Config, extra ...kgo.Opt) *instance {
	b.t.Helper()
	return b.startWith(cfg, func(*processor.Processor) {}, extra...)
}

// startWith starts a processor that prepare has changed before it runs.
func (b *bench) startWith(cfg processor.Config, prepare func(*processor.Processor), extra ...kgo.Opt) *instance {
	b.t.Helper()
	reg := prometheus.NewRegistry()
	log := slog.New(slog.NewTextHandler(b.logs, &slog.HandlerOptions{Level: slog.LevelInfo}))
	p, err := processor.New(cfg, b.routes, reg, log.With("instance", cfg.InstanceID), extra...)
	if err != nil {
		b.t.Fatal(err)
	}
	p.SetPurgeInterval(time.Hour) // tests read the repartition topic back, some after minutes
	p.SetFree(func() {})          // it collects the garbage of all tests that run meanwhile
	if !b.says {
		p.SetInputsInterval(-1)
	}
	prepare(p)
	ctx, cancel := context.WithCancel(context.Background())
	i := &instance{Processor: p, registry: reg, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(i.done)
		i.err = p.Run(ctx)
	}()
	b.t.Cleanup(func() { _ = i.stop() })
	return i
}

// stop asks the instance to stop and returns what Run returned.
func (i *instance) stop() error {
	i.cancel()
	<-i.done
	return i.err
}

// wait waits until a condition holds that some event in the system brings about.
func (b *bench) wait(what string, holds func() bool) {
	b.t.Helper()
	embedded.Wait(b.t, what, holds)
}

func (b *bench) ready(i *instance) *instance {
	b.t.Helper()
	var last error // why it is not ready, for a wait in vain
	b.t.Cleanup(func() {
		if last != nil && b.t.Failed() {
			b.t.Logf("the processor was not ready: %v", last)
		}
	})
	b.wait("readiness", func() bool {
		select {
		case <-i.done:
			b.t.Fatalf("processor ended: %v", i.err)
		default:
		}
		last = i.Ready()
		return last == nil
	})
	return i
}

// produce writes records and waits until they are acknowledged.
func (b *bench) produce(records ...*kgo.Record) {
	b.t.Helper()
	if err := b.client.ProduceSync(context.Background(), records...).FirstErr(); err != nil {
		b.t.Fatal(err)
	}
}

// signal makes a raw record; at is its event time in ms.
func signal(id string, partition int32, at int64) *kgo.Record {
	return &kgo.Record{
		Topic: "signals.raw", Partition: partition, Key: []byte("k-" + id), Timestamp: time.UnixMilli(at),
		Value:   []byte(fmt.Sprintf(`{"id":%q,"price":"1.0"}`, id)),
		Headers: []kgo.RecordHeader{{Key: "traceparent", Value: []byte("00-abc")}},
	}
}

// routedRecords returns the records of the repartition topic without progress records.
func (b *bench) routedRecords() []*kgo.Record {
	b.t.Helper()
	return slices.DeleteFunc(b.read("app-repartition"), func(r *kgo.Record) bool {
		var env wire.Envelope
		must(b.t, wire.ReadEnvelope(r, &env))
		return env.IsProgress
	})
}

// read returns all committed records of a topic, in partition and offset order.
func (b *bench) read(topic string) []*kgo.Record {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), embedded.WaitMax)
	defer cancel()
	meta, err := b.admin.Metadata(ctx, topic)
	if err != nil {
		b.t.Fatal(err)
	}
	var all []*kgo.Record
	detail := meta.Topics[topic]
	for partition := range int32(len(detail.Partitions)) {
		r := kafka.NewReader(b.client, topic, detail.ID, partition)
		start, end, err := r.Bounds(ctx)
		if err == nil {
			err = r.Read(ctx, start, end, func(records []*kgo.Record, _ int64) error {
				all = append(all, records...)
				return nil
			})
		}
		if err != nil {
			b.t.Fatal(err)
		}
	}
	return all
}

// uncommitted returns how many records a topic holds, including those of aborted transactions.
func (b *bench) uncommitted(topic string) int {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), embedded.WaitMax)
	defer cancel()
	ends, err := b.admin.ListEndOffsets(ctx, topic)
	if err != nil {
		b.t.Fatal(err)
	}
	from := map[string]map[int32]kgo.Offset{topic: {}}
	ends.Each(func(o kadm.ListedOffset) {
		if o.Offset > 0 {
			from[topic][o.Partition] = kgo.NewOffset().At(0)
		}
	})
	client := b.newClient(kgo.ConsumePartitions(from), kgo.KeepControlRecords())
	n := 0
	for len(from[topic]) > 0 {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			b.t.Fatal(err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if !r.Attrs.IsControl() {
				n++
			}
			if end, _ := ends.Lookup(topic, r.Partition); r.Offset == end.Offset-1 {
				delete(from[topic], r.Partition)
			}
		})
	}
	return n
}

// gather returns the metrics of an instance as embedded.Metrics does.
func gather(t *testing.T, i *instance) map[string]float64 {
	t.Helper()
	return embedded.Metrics(t, i.registry)
}

// ends are the offsets up to which an app has to read, by topic and partition.
type ends map[string]map[int32]int64

// drained reports whether the app has committed everything that is in its inputs.
func (b *bench) drained(i *instance, inputs ...string) bool {
	b.t.Helper()
	return b.drainedTo(ends{}, i, inputs...)
}

// drainedTo is drained for the records that were in the topics when it first asked about them. It stores the ends of
// the topics in to.
func (b *bench) drainedTo(to ends, i *instance, inputs ...string) bool {
	b.t.Helper()
	if i.Ready() != nil {
		return false
	}
	// The topics come in the direction in which a record travels: a record that leaves a topic after the loop has
	// looked at it has arrived in the next topic.
	for _, topic := range append(slices.Clone(inputs), i.App().Topology.TaskTopics()...) {
		group := app.GroupName(i.Config().AppID, processor.StageDedup)
		if slices.Contains(i.App().Topology.Routed, topic) {
			group = app.GroupName(i.Config().AppID, processor.StageRoute)
		}
		partitions := b.cluster.PartitionInfos(topic)
		if to[topic] == nil {
			to[topic] = map[int32]int64{}
			for _, p := range partitions {
				to[topic][p.Partition] = p.HighWatermark
			}
		}
		committed, err := b.admin.FetchOffsets(context.Background(), group)
		if err != nil || len(partitions) == 0 {
			return false
		}
		for _, p := range partitions {
			at, ok := committed.Lookup(topic, p.Partition)
			if !ok {
				at.At, _ = i.App().Manifest.Start(topic, i.App().Topology.Topics[topic].ID, p.Partition)
			}
			// Neither stage can read past a transaction that another instance left open, and committed records may
			// follow that transaction.
			end := to[topic][p.Partition]
			if p.LastStableOffset < end || b.waiting(topic, p.Partition, max(0, at.At), end) {
				return false
			}
		}
	}
	return i.Polling()
}

// openTransactions returns the partitions of topics with an open transaction.
func (b *bench) openTransactions(topics ...string) (open []string) {
	for _, topic := range topics {
		for _, p := range b.cluster.PartitionInfos(topic) {
			if p.LastStableOffset != p.HighWatermark {
				open = append(open, fmt.Sprint(topic, "/", p.Partition))
			}
		}
	}
	return open
}

// waiting reports whether [from, end) has committed records. A comparison of offsets is not enough: a transactional
// topic ends in control records, and committed offsets stay before them.
func (b *bench) waiting(topic string, partition int32, from, end int64) bool {
	b.t.Helper()
	if from >= end {
		return false
	}
	ctx := context.Background()
	meta, err := b.admin.Metadata(ctx, topic)
	if err != nil {
		b.t.Fatal(err)
	}
	found := false
	err = kafka.NewReader(b.client, topic, meta.Topics[topic].ID, partition).Read(ctx, from, end, func(records []*kgo.Record, _ int64) error {
		found = found || len(records) > 0
		return nil
	})
	if errors.Is(err, kerr.OffsetOutOfRange) {
		return true // the app committed more meanwhile, and purged it: look again
	}
	if err != nil {
		b.t.Fatal(err)
	}
	return found
}

// drain waits until the app has committed what is in its inputs now. The routers may still write what they have read.
func (b *bench) drain(i *instance, inputs ...string) {
	b.t.Helper()
	to := ends{}
	b.wait("the app to work off its input", func() bool {
		select {
		case <-i.done:
			b.t.Fatalf("processor ended: %v", i.err)
		default:
		}
		return b.drainedTo(to, i, inputs...)
	})
}

// lived starts an instance, lets it process records of signals.raw, stops it and returns it.
func (b *bench) lived(cfg processor.Config, records ...*kgo.Record) *instance {
	b.t.Helper()
	i := b.ready(b.start(cfg))
	b.produce(records...)
	b.drain(i, "signals.raw")
	must(b.t, i.stop())
	return i
}

func header(r *kgo.Record, name string) string { return kafkatest.Header(r, name) }
