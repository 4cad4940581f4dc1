package processor_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/processor"
	"oncebus/processor/app"
	"oncebus/processor/move"
	"oncebus/processor/security"
	"oncebus/processor/wire"
)

// rawBatch makes a batch of records with zero values of this size, as a producer could write it on the wire but no
// Kafka client would.
func rawBatch(t *testing.T, codec kgo.CompressionCodec, records, valueBytes int) []byte {
	t.Helper()
	return rawBatchOf(t, codec, records, valueBytes, func(n int) string { return fmt.Sprint("bomb-", n) })
}

// rawBatchOf makes a batch of records with these keys.
func rawBatchOf(t *testing.T, codec kgo.CompressionCodec, records, valueBytes int, key func(n int) string) []byte {
	t.Helper()
	var body []byte
	value := bytes.Repeat([]byte("0"), valueBytes)
	for i := range records {
		rec := kmsg.Record{OffsetDelta: int32(i), TimestampDelta64: 0, Key: []byte(key(i)), Value: value}
		sized := rec.AppendTo(nil) // Length is a varint of one byte here
		rec.Length = int32(len(sized) - 1)
		body = rec.AppendTo(body)
	}
	compressor, err := kgo.DefaultCompressor(codec)
	must(t, err)
	packed, kind := body, kgo.CodecNone
	if compressor != nil {
		packed, kind = compressor.Compress(new(bytes.Buffer), body)
	}
	batch := kmsg.RecordBatch{
		PartitionLeaderEpoch: -1, Magic: 2, Attributes: int16(kind), LastOffsetDelta: int32(records - 1),
		FirstTimestamp: testTime, MaxTimestamp: testTime, ProducerID: -1, ProducerEpoch: -1, FirstSequence: -1,
		NumRecords: int32(records), Records: packed,
	}
	raw := batch.AppendTo(nil)
	batch.Length = int32(len(raw) - 12)
	raw = batch.AppendTo(nil)
	binary.BigEndian.PutUint32(raw[17:], crc32.Checksum(raw[21:], crc32.MakeTable(crc32.Castagnoli)))
	return raw
}

// produceBatch writes a raw batch and returns its first offset.
func (b *bench) produceBatch(topic string, partition int32, raw []byte) int64 {
	b.t.Helper()
	ctx := context.Background()
	req := kmsg.NewPtrProduceRequest()
	req.Acks, req.TimeoutMillis = -1, 5000
	rt := kmsg.NewProduceRequestTopic()
	meta, err := b.admin.Metadata(ctx, topic)
	must(b.t, err)
	rt.Topic, rt.TopicID = topic, meta.Topics[topic].ID
	rp := kmsg.NewProduceRequestTopicPartition()
	rp.Partition, rp.Records = partition, raw
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	resp, err := req.RequestWith(ctx, b.client)
	must(b.t, err)
	p := resp.Topics[0].Partitions[0]
	must(b.t, kerr.ErrorForCode(p.ErrorCode))
	return p.BaseOffset
}

// TestBombIsSkipped puts batches that decompress to more than the limit between others. Each becomes one dead letter
// that says where the batch stands, and the records around it are emitted once.
func TestBombIsSkipped(t *testing.T) {
	t.Parallel()
	for name, codec := range map[string]kgo.CompressionCodec{"gzip": kgo.GzipCompression(), "zstd": kgo.ZstdCompression(), "snappy": kgo.SnappyCompression(), "lz4": kgo.Lz4Compression()} {
		bothWays(t, benchRoutes, func(t *testing.T, routes string) {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				b := newBench(t, routes)
				b.createTopic("signals.raw", 4)
				bomb := rawBatch(t, codec, 3, 700_000)
				b.produce(signal("before", 1, testTime))
				first := b.produceBatch("signals.raw", 1, bomb)
				second := b.produceBatch("signals.raw", 1, bomb)
				b.produce(signal("after", 1, testTime))
				only := b.produceBatch("signals.raw", 2, bomb)
				cfg := b.config("one")
				cfg.MaxDecompressedBatchBytes = app.DecompressedBatchBytesMin
				i := b.ready(b.start(cfg))
				b.drain(i, "signals.raw")
				last := b.produceBatch("signals.raw", 1, bomb)
				b.produce(signal("last", 1, testTime))
				b.drain(i, "signals.raw")
				assertOut(t, b, []*kgo.Record{signal("before", 1, testTime), signal("after", 1, testTime), signal("last", 1, testTime)})
				assertBatches(t, b, map[string]string{
					fmt.Sprint("signals.raw/1/", first): fmt.Sprint("signals.raw/1/", first+2), fmt.Sprint("signals.raw/1/", second): fmt.Sprint("signals.raw/1/", second+2),
					fmt.Sprint("signals.raw/2/", only): fmt.Sprint("signals.raw/2/", only+2), fmt.Sprint("signals.raw/1/", last): fmt.Sprint("signals.raw/1/", last+2),
				})
				if n := testutil.ToFloat64(i.Oversize().WithLabelValues("signals.raw")); n != 4 {
					t.Errorf("%v batches were counted, want 4", n)
				}
				assertCounts(t, i, "signals", map[string]float64{"unique": 3, "invalid": 4})
			})
		})
	}
}

// assertBatches compares the dead letters of batches, which name the first and the last position of each batch.
func assertBatches(t *testing.T, b *bench, want map[string]string) {
	t.Helper()
	letters := b.read("dead")
	if len(letters) != len(want) {
		t.Errorf("%d dead letters, want %d", len(letters), len(want))
	}
	for _, r := range letters {
		first := header(r, wire.HeaderSource)
		if want[first] != header(r, wire.HeaderBatchLast) || header(r, wire.HeaderVerdict) != "invalid" || header(r, wire.HeaderRoute) != "signals" ||
			!strings.Contains(header(r, wire.HeaderReason), "decompresses to more than 1048576 bytes") || r.Value != nil {
			t.Errorf("dead letter of %s has headers %v", first, r.Headers)
		}
		delete(want, first)
	}
	for first := range want {
		t.Errorf("no dead letter for %s", first)
	}
}

// TestDamagedBatchIsSkipped protects that a batch which no client can decompress becomes one dead letter with its
// offsets, and that its partition goes on.
func TestDamagedBatchIsSkipped(t *testing.T) {
	t.Parallel()
	bothWays(t, benchRoutes, func(t *testing.T, routes string) {
		t.Run("damaged", func(t *testing.T) {
			t.Parallel()
			b := newBench(t, routes)
			b.createTopic("signals.raw", 4)
			b.produce(signal("before", 1, testTime))
			first := b.produceBatch("signals.raw", 1, damagedBatch(rawBatch(t, kgo.GzipCompression(), 3, 5000)))
			second := b.produceBatch("signals.raw", 1, damagedBatch(rawBatch(t, kgo.ZstdCompression(), 3, 5000)))
			b.produce(signal("after", 1, testTime))
			i := b.ready(b.start(b.config("one")))
			b.wait("the dead letters and the event behind them", func() bool { return len(b.read("dead")) == 2 && len(b.read("signals.unique")) == 2 })
			b.ready(i)
			assertOut(t, b, []*kgo.Record{signal("before", 1, testTime), signal("after", 1, testTime)})
			for _, at := range []int64{first, second} {
				if !slices.ContainsFunc(b.read("dead"), func(r *kgo.Record) bool {
					return header(r, wire.HeaderSource) == fmt.Sprint("signals.raw/1/", at) && header(r, wire.HeaderBatchLast) == fmt.Sprint("signals.raw/1/", at+2) &&
						strings.Contains(header(r, wire.HeaderReason), "damaged so that no client can decompress it")
				}) {
					t.Errorf("no dead letter of the batch at %d", at)
				}
			}
			if n := len(b.read("dead")); n != 2 {
				t.Errorf("%d dead letters, want 2", n)
			}
		})
	})
}

// damagedBatch changes the compressed bytes of a batch, and gives the batch a correct CRC.
func damagedBatch(raw []byte) []byte {
	copy(raw[len(raw)-20:], "these bytes are none")
	binary.BigEndian.PutUint32(raw[17:], crc32.Checksum(raw[21:], crc32.MakeTable(crc32.Castagnoli)))
	return raw
}

// TestBombInATransactionThatAborts protects that the dead letter is lost with its transaction and written again,
// although the client does not announce the batch a second time.
func TestBombInATransactionThatAborts(t *testing.T) {
	t.Parallel()
	bothWays(t, benchRoutes, func(t *testing.T, routes string) {
		for name, fault := range map[string]kfake.Fault{
			"offsets refused": {Keys: []kmsg.Key{kmsg.TxnOffsetCommit}, Err: kerr.IllegalGeneration, Count: 1},
			"end not known":   {Keys: []kmsg.Key{kmsg.EndTxn}, Err: kerr.UnknownServerError, Count: 1},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				b := newBench(t, routes)
				b.createTopic("signals.raw", 4)
				i := b.start(func() processor.Config {
					c := b.config("one")
					c.MaxDecompressedBatchBytes = app.DecompressedBatchBytesMin
					return c
				}())
				b.ready(i)
				armed := b.cluster.Fault(fault)
				first := b.produceBatch("signals.raw", 1, rawBatch(t, kgo.GzipCompression(), 3, 700_000))
				b.wait("the fault", func() bool { return armed.Hits() > 0 })
				b.produce(signal("after", 1, testTime), signal("other", 2, testTime))
				b.drain(i, "signals.raw")
				assertOut(t, b, []*kgo.Record{signal("after", 1, testTime), signal("other", 2, testTime)})
				assertBatches(t, b, map[string]string{fmt.Sprint("signals.raw/1/", first): fmt.Sprint("signals.raw/1/", first+2)})
			})
		}
	})
}

// TestBombOfAStrangerInTheRepartitionTopic protects that a task waits for an operator at such a batch in the
// repartition topic: no other client may write there, so the batch may hold our own records. The other tasks go on.
func TestBombOfAStrangerInTheRepartitionTopic(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	cfg := b.config("one")
	cfg.MaxDecompressedBatchBytes = app.DecompressedBatchBytesMin
	i := b.ready(b.start(cfg))
	first := b.produceBatch("app-repartition", 3, rawBatch(t, kgo.GzipCompression(), 3, 700_000))
	b.skipInRepartition(i, first, fmt.Sprintf("the records at offsets %d to %d", first, first+2))
}

// skipInRepartition lets an operator skip the batch at which task 3 waits, once the refusal contains the text in
// want. The other tasks go on meanwhile, and the batch becomes no dead letter.
func (b *bench) skipInRepartition(i *instance, first int64, want string) {
	b.t.Helper()
	refusal := b.awaitRefused(i, app.TaskID{Topic: "app-repartition", Partition: 3}, &kgo.Record{Topic: "app-repartition", Partition: 3, Offset: first})
	if !strings.Contains(refusal.Detail, want) {
		b.t.Errorf("refused is %q, want %q in it", refusal.Detail, want)
	}
	for p := range int32(4) {
		b.produce(signal(b.idIn(i, "signals.raw", p, 1), p, testTime))
	}
	b.wait("the events of the other tasks", func() bool { return len(b.read("signals.unique")) == 3 })
	b.accept([]app.Refusal{refusal}, app.SkipRecord, false)
	b.wait("the event behind the batch", func() bool { return len(b.read("signals.unique")) == 4 })
	b.ready(i)
	if n := len(b.read("dead")); n != 0 {
		b.t.Errorf("%d dead letters", n)
	}
}

// TestBombInTheTopicThatAMoveHasLeft protects that the router that forwards from the old repartition topic waits for
// an operator at such a batch, and routes the inputs meanwhile.
func TestBombInTheTopicThatAMoveHasLeft(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	b.createTopic("signals.raw", 4)
	cfg := b.config("one")
	cfg.MaxDecompressedBatchBytes = app.DecompressedBatchBytesMin
	i := b.ready(b.start(cfg))
	b.produce(movedEvents(1, 0, 20)...)
	b.drain(i, "signals.raw")
	b.move(move.Options{Partitions: 5, Limit: time.Minute})
	b.awaitGeneration(i, 2)
	first := b.produceBatch("app-repartition", 0, rawBatch(t, kgo.GzipCompression(), 3, 700_000))
	refusal := b.awaitRefused(i, app.TaskID{Topic: "app-repartition", Partition: 0}, &kgo.Record{Topic: "app-repartition", Partition: 0, Offset: first})
	b.produce(movedEvents(2, 20, 20)...)
	b.wait("the events of the inputs", func() bool { return len(b.keysOf("signals.unique")) == 40 })
	b.accept([]app.Refusal{refusal}, app.SkipRecord, false)
	b.ready(i)
	b.drain(i, "signals.raw", "app-repartition")
	b.checkOnce(40)
	if n := len(b.read("dead")); n != 0 {
		t.Errorf("%d dead letters", n)
	}
}

// TestTheClientLogsABatchItStopsAt pins the log line of franz-go that oversizeLogger listens for.
func TestTheClientLogsABatchItStopsAt(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	b.createTopic("signals.raw", 4)
	b.produceBatch("signals.raw", 3, rawBatch(t, kgo.ZstdCompression(), 3, 700_000))
	announced := make(chan app.TaskID, 1)
	client := b.newClient(kgo.ConsumeTopics("signals.raw"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.MaxDecompressBatchBytes(1<<20),
		kgo.WithLogger(processor.NewOversizeLogger(security.NewClientLogger(slog.New(slog.DiscardHandler)), func(id app.TaskID) { announced <- id })))
	polled := client.PollFetches(t.Context())
	var tooLarge *kgo.ErrDecompressTooLarge
	if err := polled.Err(); !errors.As(err, &tooLarge) {
		t.Fatalf("polled %v", err)
	}
	if id := <-announced; id != (app.TaskID{Topic: "signals.raw", Partition: 3}) {
		t.Errorf("announced for %v", id)
	}
}

// TestLostAnnouncementReplacesTheClient covers a client that has met a batch which is too large while no poll
// announces it.
func TestLostAnnouncementReplacesTheClient(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	i := b.ready(b.start(b.config("one")))
	i.AnnounceOversized(app.TaskID{Topic: "signals.raw", Partition: 1})
	b.wait("another client", func() bool { return testutil.ToFloat64(i.Rebuilt().WithLabelValues(processor.StageRoute)) >= 1 })
	b.produce(batch("a", 8)...)
	b.drain(i, "signals.raw")
	assertOut(t, b, batch("a", 8))
}
