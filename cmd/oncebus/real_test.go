//go:build unix

package main_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/kafkatest"
	"oncebus/processor/kafkatest/program"
)

// The tests in real_*_test.go are black-box tests with a real Apache Kafka (package
// kafkatest). They run the built program as child processes with settings in their
// environment. An ordinary producer writes the raw topics, an ordinary read_committed
// consumer reads the outputs, and the ledger (ledger_test.go) verifies them.

const (
	// realDeadline limits every wait, so that a hang fails with its reason and not with the test's timeout.
	realDeadline = 3 * time.Minute
	// realPartitions is the partition count of all topics.
	realPartitions = 6
)

// world is the part of the shared Kafka for one scenario: an app id, which begins all
// its topic names, and random numbers.
type world struct {
	t        *testing.T
	seeds    []string
	external bool // an external cluster: the test cannot change its settings
	admin    *kadm.Client
	producer *kgo.Client
	app      string
	dir      string
	routes   string   // path of the routes file
	settings []string // of every process and command, without prefix
	binary   func(testing.TB) string
	rng      *rand.Rand
}

// newWorld returns a world with this routes file, in which it replaces APP by the app
// id.
func newWorld(t *testing.T, routes string) *world {
	t.Helper()
	broker := kafkatest.Shared(t)
	return newWorldAt(t, routes, broker.Seeds(), broker.Admin(), broker.External())
}

// newLoadedWorld is newWorld for processes under loadRate, which run without the race detector.
func newLoadedWorld(t *testing.T, routes string) *world {
	t.Helper()
	w := newWorld(t, routes)
	w.binary = program.Release
	return w
}

func newWorldAt(t *testing.T, routes string, seeds []string, admin *kadm.Client, external bool) *world {
	t.Helper()
	// It differs in every run, because the cluster may outlive the run.
	name, _, _ := strings.Cut(strings.ToLower(strings.TrimPrefix(strings.TrimPrefix(t.Name(), "TestReal"), "TestSystem")), "/")
	app := fmt.Sprintf("%s-%06x", name, rand.N(1<<24))
	w := newWorldOf(t, app, routes, seeds, admin, external)
	seed := rand.Uint64()
	t.Logf("app %s, seed %d", app, seed)
	w.rng = rand.New(rand.NewPCG(seed, 0))
	return w
}

// newWorldOf makes the world of an app id, with random numbers that are the same in every run.
func newWorldOf(t *testing.T, app, routes string, seeds []string, admin *kadm.Client, external bool) *world {
	t.Helper()
	w := &world{t: t, seeds: seeds, external: external, admin: admin, app: app, dir: t.TempDir(), rng: rand.New(rand.NewPCG(1, 2)), binary: program.Shared}
	w.routes = kafkatest.ReplaceFile(t, filepath.Join(w.dir, "routes.yaml"), []byte(strings.ReplaceAll(routes, "APP", app)))
	var err error
	w.producer, err = kgo.NewClient(kgo.SeedBrokers(seeds...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchMaxBytes(8<<20))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.producer.Close)
	return w
}

// topic returns the world's topic of that name.
func (w *world) topic(name string) string { return w.app + "." + name }

// createTopics creates topics with realPartitions partitions and these settings, name=value.
func (w *world) createTopics(configs []string, names ...string) {
	w.t.Helper()
	w.createPartitions(realPartitions, configs, names...)
}

// createPartitions creates topics with a number of partitions, and waits until the brokers know them.
func (w *world) createPartitions(partitions int32, configs []string, names ...string) {
	w.t.Helper()
	values := map[string]*string{}
	for _, c := range configs {
		name, value, _ := strings.Cut(c, "=")
		values[name] = &value
	}
	created, err := w.admin.CreateTopics(w.t.Context(), partitions, -1, values, w.topicsOf(names)...)
	if err == nil {
		err = created.Error()
	}
	if err != nil {
		w.t.Fatalf("create topics: %v", err)
	}
	// The controller responds before the brokers' metadata has the topics.
	eventually(w.t, "topics in the metadata", func(ctx context.Context) error {
		listed, err := w.admin.ListTopics(ctx, w.topicsOf(names)...)
		if err == nil {
			err = listed.Error()
		}
		return err
	})
}

// produce sends the records to their partitions, in order within a partition. It
// returns when all are acknowledged and have their offsets.
func (w *world) produce(records ...*kgo.Record) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), realDeadline)
	defer cancel()
	if err := w.producer.ProduceSync(ctx, records...).FirstErr(); err != nil {
		w.t.Fatalf("produce %d records: %v", len(records), err)
	}
}

// errNotYet says that the awaited condition is false, without details.
var errNotYet = errors.New("not yet")

// eventually polls until ask returns nil, and fails the test after realDeadline with
// the last error.
func eventually(t *testing.T, what string, ask func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), realDeadline)
	defer cancel()
	if err := kafkatest.Await(ctx, what, ask); err != nil {
		t.Fatal(err)
	}
}

// drained waits until all produced records are processed and committed. Then the
// groups have committed to the end of the inputs and of the repartition topic, and no
// transaction is open on the outputs. It waits for the stages in order, because
// offsets only rise.
func (w *world) drained(inputs, outputs []string) {
	w.t.Helper()
	w.drainedFrom(w.topicsOf(inputs), w.topicsOf(outputs))
}

// drainedFrom is drained for complete topic names, also of another world.
func (w *world) drainedFrom(inputs, outputs []string) {
	w.t.Helper()
	w.taken(inputs)
	if repartition := w.app + "-repartition"; w.exists(repartition) {
		eventually(w.t, "the repartition topic is processed", func(ctx context.Context) error { return w.repartitionDone(ctx, repartition) })
	}
	eventually(w.t, "no transaction is open on the outputs", func(ctx context.Context) error {
		open, err := w.openTransactions(ctx, outputs...)
		if err == nil && len(open) > 0 {
			err = fmt.Errorf("open on %v", open)
		}
		return err
	})
}

// taken waits until the stage that reads the inputs has processed them.
func (w *world) taken(inputs []string) {
	w.t.Helper()
	eventually(w.t, "all input is processed", func(ctx context.Context) error {
		committed, err := w.committed(ctx)
		if err != nil {
			return err
		}
		ends, err := w.admin.ListEndOffsets(ctx, inputs...)
		if err != nil {
			return err
		}
		if err := ends.Error(); err != nil {
			return err
		}
		var behind error
		ends.Each(func(o kadm.ListedOffset) {
			if at := committed[o.Topic][o.Partition]; at < o.Offset {
				behind = fmt.Errorf("input %s/%d is committed to %d of %d", o.Topic, o.Partition, at, o.Offset)
			}
		})
		return behind
	})
}

func (w *world) topicsOf(names []string) []string {
	topics := make([]string, len(names))
	for i, name := range names {
		topics[i] = w.topic(name)
	}
	return topics
}

func (w *world) exists(topic string) bool {
	w.t.Helper()
	listed, err := w.admin.ListTopics(w.t.Context(), topic)
	if err != nil {
		w.t.Fatal(err)
	}
	return listed.Has(topic)
}

// committed returns the highest committed offset of every partition in the groups of
// the app.
func (w *world) committed(ctx context.Context) (map[string]map[int32]int64, error) {
	groups, err := w.admin.ListGroups(ctx)
	if err != nil {
		return nil, err
	}
	committed := map[string]map[int32]int64{}
	for _, group := range groups.Groups() {
		if !strings.HasPrefix(group, w.app) {
			continue
		}
		offsets, err := w.admin.FetchOffsets(ctx, group)
		if err != nil {
			return nil, err
		}
		offsets.Each(func(o kadm.OffsetResponse) {
			if committed[o.Topic] == nil {
				committed[o.Topic] = map[int32]int64{}
			}
			committed[o.Topic][o.Partition] = max(committed[o.Topic][o.Partition], o.At)
		})
	}
	return committed, nil
}

// repartitionDone returns nil when the repartition topic has no committed record at
// or above the group's committed offset. It may have control records there, above the
// offset that a consumer commits.
func (w *world) repartitionDone(ctx context.Context, repartition string) error {
	if open, err := w.openTransactions(ctx, repartition); err != nil || len(open) > 0 {
		return errors.Join(err, fmt.Errorf("transactions open on %v", open))
	}
	committed, err := w.committed(ctx)
	if err != nil {
		return err
	}
	left, err := w.read(ctx, repartition, committed)
	if err != nil {
		return err
	}
	if len(left) > 0 {
		return fmt.Errorf("%d records of %s are not processed, the first at %s", len(left), repartition, at(left[0]))
	}
	return nil
}

// openTransactions returns the partitions with an open transaction.
func (w *world) openTransactions(ctx context.Context, topics ...string) ([]string, error) {
	return kafkatest.OpenTransactions(ctx, w.admin, topics...)
}

// sendIntoTransaction sends events until a transaction is open on an output. On a
// busy machine the first events may be committed before the check: then it sends
// more.
func (w *world) sendIntoTransaction(output string, n int, all ...*traffic) {
	w.t.Helper()
	looks := 0
	eventually(w.t, "a transaction is open on "+output, func(ctx context.Context) error {
		if looks%100 == 0 {
			send(w, n, all...)
		}
		looks++
		open, err := w.openTransactions(ctx, w.topic(output))
		if err == nil && len(open) == 0 {
			err = errNotYet
		}
		return err
	})
}

// output returns the records that a read_committed consumer reads, by partition in
// offset order.
func (w *world) output(name string) []*kgo.Record {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), realDeadline)
	defer cancel()
	records, err := w.read(ctx, w.topic(name), nil)
	if err != nil {
		w.t.Fatalf("read %s: %v", w.topic(name), err)
	}
	return records
}

// read reads a topic read_committed from the offsets in from, by topic and partition, or from its start.
func (w *world) read(ctx context.Context, topic string, from map[string]map[int32]int64) ([]*kgo.Record, error) {
	return kafkatest.ReadCommitted(ctx, w.producer, from, topic)
}
