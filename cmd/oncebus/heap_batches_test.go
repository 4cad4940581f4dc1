//go:build unix

package main_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"hash/crc32"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/dedup"
	"oncebus/processor/kafkatest"
	"oncebus/processor/kafkatest/embedded"
	"oncebus/processor/wire"
)

const (
	// heapAboveIdleMax is what batches may add to the heap of an idle process.
	heapAboveIdleMax = 256 << 20
	// manyBatchesMax limits the time of one case.
	manyBatchesMax = 6 * time.Hour
	heapInterval   = 5 * time.Millisecond
)

// TestHeapWithManyBatches measures the heap of the built program while it reads many
// batches, each of which decompresses to just under the bound of one. It takes minutes to
// hours, so it runs only on request:
//
//	ONCEBUS_MANY_BATCHES=10000 go test -run TestHeapWithManyBatches -timeout 0 -v ./cmd/oncebus
//
// ONCEBUS_MANY_BATCHES_BOUND sets another bound than the default of 64 MiB, and
// ONCEBUS_MANY_BATCHES_RECORD the bytes of a record, by default 1,000,000.
func TestHeapWithManyBatches(t *testing.T) {
	m := manyBatches{count: parameter(t, "ONCEBUS_MANY_BATCHES", 0), bound: parameter(t, "ONCEBUS_MANY_BATCHES_BOUND", 64<<20), size: parameter(t, "ONCEBUS_MANY_BATCHES_RECORD", 1_000_000)}
	if m.count == 0 {
		t.Skip("set ONCEBUS_MANY_BATCHES=10000 to run it")
	}
	for _, c := range []struct{ name, route, settings string }{
		{"raw topic", "key: [record_key]", ""},
		{"prepartitioned topic", "key: [record_key]\n    prepartitioned: true", ""},
		{"restore", "key: [record_key]\n    prepartitioned: true", ""},
		{"ingress", "key: [{field: id}]\n    http: {path: /signals, signature: {scheme: bearer, secret: SENDER}}",
			"INGRESS_ADDR=127.0.0.1:0 INGRESS_SECRET_SENDER=token-of-the-sender"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m.cluster = embedded.Start(t, kfake.BrokerConfigs(map[string]string{"message.max.bytes": "67108864", "log.cleaner.backoff.ms": "1000000000000"}))
			client, err := kgo.NewClient(kgo.SeedBrokers(m.cluster.ListenAddrs()...))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(client.Close)
			m.world = newWorldAt(t, "routes:\n  - name: signals\n    topics: [APP.raw]\n    window: 24h\n    output: APP.unique\n    dead_letter: APP.dead\n    "+c.route+"\n",
				m.cluster.ListenAddrs(), kadm.NewClient(client), false)
			m.createTopics(nil, "raw", "unique", "dead")
			m.settings = append(strings.Fields(c.settings), "MAX_DECOMPRESSED_BATCH_BYTES="+strconv.Itoa(m.bound), "TRANSACTION_TIMEOUT=15s")
			m.start()
			idle := m.heap(t.Context())
			var done func(context.Context) bool
			switch c.name {
			case "restore":
				done = m.fillChangelog()
			case "ingress":
				done = m.fillVerdicts()
			default:
				done = m.fillInput()
			}
			began := time.Now()
			most := m.largest(done)
			usage, err := m.process.Usage()
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%d batches of %d bytes: the heap grew from %.0f to %.0f MiB, the most resident memory is %d MiB, CPU time %v, time %v",
				m.count, m.bound, idle/(1<<20), most/(1<<20), usage.RSSMax>>20, usage.CPU, time.Since(began).Round(time.Second))
			if most > idle+heapAboveIdleMax {
				t.Errorf("the heap grew from %.0f to %.0f bytes", idle, most)
			}
		})
	}
}

func parameter(t *testing.T, name string, otherwise int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// manyBatches is a process that reads many equal batches.
type manyBatches struct {
	*world

	cluster            *embedded.Cluster
	process            *service
	settings           []string
	count, bound, size int
}

func (m *manyBatches) start() {
	m.process = m.world.start("one", m.settings...)
	m.process.awaitReady()
}

// heap returns the bytes of the heap in use.
func (m *manyBatches) heap(ctx context.Context) float64 {
	metrics, err := m.process.Metrics(ctx)
	if err != nil {
		m.t.Fatal(err)
	}
	return metrics.Sum("go_memstats_heap_inuse_bytes")
}

// largest returns the largest heap until done.
func (m *manyBatches) largest(done func(context.Context) bool) (most float64) {
	ctx, cancel := context.WithTimeout(m.t.Context(), manyBatchesMax)
	defer cancel()
	if err := kafkatest.AwaitEvery(ctx, heapInterval, "all batches are read", func(ctx context.Context) error {
		most = max(most, m.heap(ctx))
		if !done(ctx) {
			return errNotYet
		}
		return nil
	}); err != nil {
		m.t.Fatal(err)
	}
	return most
}

// reaches returns a condition: the sum of a metric is n or more.
func (m *manyBatches) reaches(name string, n int) func(context.Context) bool {
	return func(ctx context.Context) bool {
		metrics, err := m.process.Metrics(ctx)
		return err == nil && metrics.Sum(name) >= float64(n)
	}
}

// fillInput fills the input with equal events.
func (m *manyBatches) fillInput() (done func(context.Context) bool) {
	events := m.fill(m.topic("raw"), realPartitions, 0, kmsg.Record{Key: []byte("same"), Value: bytes.Repeat([]byte("0"), m.size)})
	return m.reaches("oncebus_events_total", events)
}

// fillVerdicts fills the verdicts topic. The ingress has read it when it fetches at the end
// of every partition that it reads.
func (m *manyBatches) fillVerdicts() (done func(context.Context) bool) {
	topic := m.metadata(m.app + "-verdicts")
	records := m.fill(topic.Topic, 1, int32(0), kmsg.Record{Value: bytes.Repeat([]byte("0"), m.size)})
	for partition := 1; partition < len(topic.Partitions); partition++ {
		records = m.fill(topic.Topic, 1, int32(partition), kmsg.Record{Value: bytes.Repeat([]byte("0"), m.size)})
	}
	var read atomic.Bool
	m.cluster.Intercept(func(req kmsg.Request) (kmsg.Response, error, bool) {
		if fetch, ok := req.(*kmsg.FetchRequest); ok {
			for _, t := range fetch.Topics {
				for _, p := range t.Partitions {
					if t.TopicID == topic.ID && p.FetchOffset >= int64(records) {
						read.Store(true)
					}
				}
			}
		}
		return nil, nil, false
	}, kmsg.Fetch)
	return func(context.Context) bool { return read.Load() }
}

// fillChangelog fills the changelog of a task with rows, and starts the process without its
// local state.
func (m *manyBatches) fillChangelog() (done func(context.Context) bool) {
	m.produce(&kgo.Record{Topic: m.topic("raw"), Key: []byte("same"), Value: []byte("x")})
	m.drained([]string{"raw"}, []string{"unique"})
	if err := m.process.Stop(); err != nil {
		m.t.Fatal(err)
	}
	topic := m.app + "-" + m.topic("raw") + "-changelog"
	records, err := kafkatest.ReadCommitted(m.t.Context(), m.producer, nil, topic)
	if err != nil {
		m.t.Fatal(err)
	}
	var row, checkpoint *kgo.Record
	for _, r := range records {
		switch {
		case len(r.Key) == len(dedup.Digest{}):
			row = r
		case row != nil && r.Partition == row.Partition && string(r.Key) == wire.CheckpointKey:
			checkpoint = r
		}
	}
	if checkpoint == nil {
		m.t.Fatalf("%s has no row with a checkpoint: %v", topic, records)
	}
	padding := kmsg.Header{Key: "padding", Value: bytes.Repeat([]byte("0"), m.size)}
	rows := m.fill(topic, 1, row.Partition, kmsg.Record{Key: row.Key, Value: row.Value, Headers: []kmsg.Header{padding}})
	raw, _ := encodeBatch(m.t, 0, kmsg.Record{Key: checkpoint.Key, Value: checkpoint.Value})
	m.produceRaw(m.metadata(topic), row.Partition, raw)
	if err := os.RemoveAll(m.stateDir("one")); err != nil {
		m.t.Fatal(err)
	}
	m.process = m.world.start("one", m.settings...)
	return m.reaches("oncebus_restored_rows_total", rows)
}

func (m *manyBatches) metadata(topic string) kadm.TopicDetail {
	m.t.Helper()
	meta, err := m.admin.Metadata(m.t.Context(), topic)
	if err != nil {
		m.t.Fatal(err)
	}
	return meta.Topics[topic]
}

// fill writes the batches to so many partitions from one on, and returns their records.
func (m *manyBatches) fill(topic string, partitions int, from int32, record kmsg.Record) (records int) {
	m.t.Helper()
	raw, each := encodeBatch(m.t, m.bound, record)
	at := m.metadata(topic)
	for n := range m.count {
		m.produceRaw(at, from+int32(n%partitions), raw)
	}
	return m.count * each
}

// produceRaw writes a batch.
func (m *manyBatches) produceRaw(topic kadm.TopicDetail, partition int32, raw []byte) {
	m.t.Helper()
	req := kmsg.NewPtrProduceRequest()
	req.Acks, req.TimeoutMillis = -1, 5000
	to := kmsg.NewProduceRequestTopic()
	to.Topic, to.TopicID = topic.Topic, topic.ID
	p := kmsg.NewProduceRequestTopicPartition()
	p.Partition, p.Records = partition, raw
	to.Partitions = append(to.Partitions, p)
	req.Topics = append(req.Topics, to)
	resp, err := req.RequestWith(m.t.Context(), m.producer)
	if err == nil {
		err = kerr.ErrorForCode(resp.Topics[0].Partitions[0].ErrorCode)
	}
	if err != nil {
		m.t.Fatal(err)
	}
}

// encodeBatch returns a batch with as many equal records as decompress to just under bound
// bytes, at least one.
func encodeBatch(t *testing.T, bound int, record kmsg.Record) (raw []byte, records int) {
	t.Helper()
	var body []byte
	for {
		record.OffsetDelta, record.Length = int32(records), 0
		record.Length = int32(len(record.AppendTo(nil)) - 1) // a length of 0 has one byte
		if next := record.AppendTo(nil); records > 0 && len(body)+len(next) >= bound {
			break
		}
		body = record.AppendTo(body)
		records++
	}
	compressor, err := kgo.DefaultCompressor(kgo.ZstdCompression())
	if err != nil {
		t.Fatal(err)
	}
	packed, codec := compressor.Compress(new(bytes.Buffer), body)
	now := time.Now().UnixMilli()
	batch := kmsg.RecordBatch{
		PartitionLeaderEpoch: -1, Magic: 2, Attributes: int16(codec), LastOffsetDelta: int32(records - 1), FirstTimestamp: now, MaxTimestamp: now,
		ProducerID: -1, ProducerEpoch: -1, FirstSequence: -1, NumRecords: int32(records), Records: packed,
	}
	batch.Length = int32(len(batch.AppendTo(nil)) - 12)
	raw = batch.AppendTo(nil)
	binary.BigEndian.PutUint32(raw[17:], crc32.Checksum(raw[21:], crc32.MakeTable(crc32.Castagnoli)))
	return raw, records
}
