package audit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/security"
)

// Log is the part of some topics that an audit reads.
type Log struct {
	Topics     []string
	Partitions []Partition
	client     *kgo.Client
	leaders    *kafka.Leaders
	ids        map[string][16]byte
	cfg        app.Config
	redact     *security.Redactor

	mu       sync.Mutex
	tooLarge map[batchAt]bool
}

// batchAt is the position at which a batch begins.
type batchAt struct {
	topic     string
	partition int32
	offset    int64
}

// Span bounds a log by the timestamps of its records in Unix ms; 0 means no bound.
type Span struct{ From, To int64 }

// Bounds of the memory for fetches in bytes: of a single fetch, and of all fetches at the same time.
const (
	fetchBytesMax = 1 << 20
	fetchBytesMin = 64 << 10
	fetchBytesAll = 64 << 20
)

// Open connects to Kafka and lists, for each partition, the offset below which all transactions have ended. A
// topic that does not exist is an operator error. Open sends only requests that read.
func Open(ctx context.Context, cfg app.Config, topics []string, span Span, log *slog.Logger, extra ...kgo.Opt) (*Log, error) {
	redact := security.NewRedactor(cfg.Config)
	opts, err := security.ClientOptions(cfg.Config, prometheus.NewRegistry(), slog.New(redact.Handler(log.Handler())), redact)
	if err != nil {
		return nil, err
	}
	l := &Log{Topics: topics, ids: map[string][16]byte{}, tooLarge: map[batchAt]bool{}, cfg: cfg, redact: redact}
	if l.client, err = kgo.NewClient(slices.Concat(opts, cfg.FetchOptions(), []kgo.Opt{kgo.DisableClientMetrics()}, extra)...); err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	l.leaders = kafka.NewLeaders(l.client)
	if err := l.list(ctx, span); err != nil {
		l.Close()
		return nil, l.explain(err)
	}
	return l, nil
}

// Close ends the connections.
func (l *Log) Close() { l.client.Close() }

// Offsets returns how many offsets the audit reads.
func (l *Log) Offsets() (n int64) {
	for _, p := range l.Partitions {
		n += p.End - p.Start
	}
	return n
}

// explain removes secrets from an error, and explains an error about refused credentials.
func (l *Log) explain(err error) error {
	return l.redact.Err(security.ExplainCredentials(err, l.cfg.SASL))
}

// list lists the partitions with the ranges of offsets to read.
func (l *Log) list(ctx context.Context, span Span) error {
	admin := kadm.NewClient(l.client)
	known, err := app.DescribeTopics(ctx, admin, l.Topics...)
	if err != nil {
		return err
	}
	for _, name := range l.Topics {
		if _, ok := known[name]; !ok {
			return kafka.OperatorErrorf("topic %s does not exist, or there is no right to Describe it (%s)", name, kafka.Grant("Describe", kafka.ResourceTopic, name))
		}
		l.ids[name] = known[name].ID
	}
	starts, err := offsets(l.Topics, span.From, func() (kadm.ListedOffsets, error) { return admin.ListStartOffsets(ctx, l.Topics...) },
		func() (kadm.ListedOffsets, error) { return admin.ListOffsetsAfterMilli(ctx, span.From, l.Topics...) })
	if err != nil {
		return err
	}
	// A transaction may be open behind this offset, and its end could take forever, so the audit does not wait
	// for it.
	ends, err := offsets(l.Topics, 0, func() (kadm.ListedOffsets, error) { return admin.ListCommittedOffsets(ctx, l.Topics...) }, nil)
	if err != nil {
		return err
	}
	after := kadm.ListedOffsets{}
	if span.To != 0 {
		if after, err = offsets(l.Topics, span.To, nil, func() (kadm.ListedOffsets, error) { return admin.ListOffsetsAfterMilli(ctx, span.To, l.Topics...) }); err != nil {
			return err
		}
	}
	for _, name := range l.Topics {
		for n := range known[name].Partitions {
			start, _ := starts.Lookup(name, n)
			end, _ := ends.Lookup(name, n)
			if to, ok := after.Lookup(name, n); ok && to.Offset >= 0 {
				end.Offset = min(end.Offset, to.Offset)
			}
			l.Partitions = append(l.Partitions, Partition{Topic: name, Number: n, Start: start.Offset, End: max(end.Offset, start.Offset)})
		}
	}
	return nil
}

// offsets lists offsets: with timed if at is set, otherwise with plain.
func offsets(topics []string, at int64, plain, timed func() (kadm.ListedOffsets, error)) (kadm.ListedOffsets, error) {
	if at != 0 {
		plain = timed
	}
	listed, err := plain()
	if err == nil {
		err = listed.Error()
	}
	if err != nil {
		for _, t := range topics {
			err = kafka.Denied(err, "Describe", kafka.ResourceTopic, t)
		}
		return nil, fmt.Errorf("list offsets of %s: %w", strings.Join(topics, ", "), err)
	}
	return listed, nil
}

// each calls do with the committed records of a partition, one fetch at a time. The fewer partitions there are,
// the larger the fetches. It skips a batch that decompresses to too many bytes, as an app does.
func (l *Log) each(ctx context.Context, p Partition, do func([]*kgo.Record) error) error {
	reader := l.leaders.NewReader(p.Topic, l.ids[p.Topic], p.Number)
	reader.BoundFetches(int32(max(fetchBytesMin, min(fetchBytesMax, fetchBytesAll/len(l.Partitions)))))
	reader.BoundBatches(l.cfg.BatchBytesMax())
	for from := p.Start; from < p.End; {
		err := reader.Read(ctx, from, p.End, func(records []*kgo.Record, position int64) error {
			from = position
			first, _ := slices.BinarySearchFunc(records, p.Start, func(r *kgo.Record, at int64) int { return int(r.Offset - at) })
			last, _ := slices.BinarySearchFunc(records, p.End, func(r *kgo.Record, at int64) int { return int(r.Offset - at) })
			return do(records[first:last])
		})
		var tooLarge *kgo.ErrDecompressTooLarge
		if !errors.As(err, &tooLarge) {
			return err
		}
		l.skip(tooLarge)
		from = tooLarge.NextOffset
	}
	return nil
}

func (l *Log) skip(batch *kgo.ErrDecompressTooLarge) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tooLarge[batchAt{batch.Topic, batch.Partition, batch.Offset}] = true
}

// Warnings tells which batches were not read.
func (l *Log) Warnings() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.tooLarge) == 0 {
		return nil
	}
	first := slices.MinFunc(slices.Collect(maps.Keys(l.tooLarge)), func(a, b batchAt) int {
		return cmp.Or(strings.Compare(a.topic, b.topic), cmp.Compare(a.partition, b.partition), cmp.Compare(a.offset, b.offset))
	})
	return []string{fmt.Sprintf("%d batches decompress to more than %d bytes, or have a wrong checksum, and were not read, the first one at %s/%d offset %d: an app skips them too, with a dead letter; ONCEBUS_MAX_DECOMPRESSED_BATCH_BYTES raises the bound",
		len(l.tooLarge), l.cfg.BatchBytesMax(), first.topic, first.partition, first.offset)}
}
