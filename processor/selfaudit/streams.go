package selfaudit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/kafka"
	"oncebus/processor/oracle"
)

// parallelReads is how many partitions are read at the same time. Each of these partitions has two fetches in
// memory: one that is being read, and one that the ledger is processing.
const parallelReads = 4

// A stream is a partition that is being read.
type stream struct {
	reader        *kafka.Reader
	from, at, end int64
	read          func(w *worker, records []*kgo.Record) func(*oracle.Ledger)
	// skips tells that a batch that is too large to decompress may be skipped.
	skips bool
}

// done returns which part of the stream was read, 0 to 1; 2 at the end.
func (s *stream) done() float64 {
	if s.at >= s.end {
		return 2
	}
	return float64(s.at-s.from) / float64(s.end-s.from)
}

// read reads all streams of a span at about the same pace: it always continues with the streams of which the
// smallest part was read. A record and its counterpart are therefore read at about the same time, and few
// records have to wait.
func (a *Auditor) read(ctx context.Context, ledger *oracle.Ledger, span *span, watch func(int64, int64)) (int64, error) {
	var all []*stream
	lowest := span.from.lowest(a)
	for _, topic := range a.inputs() {
		for partition, end := range span.to.Inputs[topic] {
			all = append(all, a.stream(topic, partition, lowest[topic][partition], end, a.inputOf(topic, span)))
		}
	}
	for _, topic := range a.app.Topology.TaskTopics() {
		name := a.app.ChangelogOf(topic)
		for partition, end := range span.to.Changelogs[name] {
			all = append(all, a.stream(name, partition, span.from.Changelogs[name][partition], end, a.changelogOf(topic, rowKind{certain: span.to.sure[name][partition]})))
		}
	}
	for _, topic := range a.emissions() {
		for partition, end := range span.to.Emissions[topic] {
			all = append(all, a.stream(topic, partition, span.from.Emissions[topic][partition], end, a.emissionOf(topic)))
		}
	}
	return a.readAll(ctx, ledger, all, watch)
}

// readKeys reads the changelogs up to an edge. The outputs of rows from the offsets sure on may lie after the
// edge.
func (a *Auditor) readKeys(ctx context.Context, ledger *oracle.Ledger, sure map[string][]int64, edge *Position, watch func(int64, int64)) (int64, error) {
	var all []*stream
	for _, topic := range a.app.Topology.TaskTopics() {
		name := a.app.ChangelogOf(topic)
		starts, err := a.list(ctx, a.admin.ListStartOffsets, []string{name})
		if err != nil {
			return 0, err
		}
		for partition, end := range edge.Changelogs[name] {
			all = append(all, a.stream(name, partition, starts[name][partition], end, a.changelogOf(topic, rowKind{base: sure[name][partition], soft: true})))
		}
	}
	return a.readAll(ctx, ledger, all, watch)
}

func (a *Auditor) stream(topic string, partition int, from, end int64, read func(*worker, []*kgo.Record) func(*oracle.Ledger)) *stream {
	reader := a.leaders.NewReader(topic, a.topics[topic].ID, int32(partition))
	if !a.app.Topology.HasState(topic) {
		reader.BoundBatches(a.cfg.BatchBytesMax()) // other programs write to this topic
	}
	return &stream{reader: reader, from: from, at: from, end: end, read: read, skips: slices.Contains(a.inputs(), topic)}
}

// chunk is the result of one fetch of a stream.
type chunk struct {
	apply func(*oracle.Ledger)
	next  int64
	n     int64
	err   error
}

// readAll reads the streams to their ends. While the ledger processes the chunks of one round, it already
// fetches the chunks of the next round.
func (a *Auditor) readAll(ctx context.Context, ledger *oracle.Ledger, all []*stream, watch func(int64, int64)) (records int64, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	total, read := int64(0), int64(0)
	for _, s := range all {
		total += max(0, s.end-s.from)
	}
	workers := make([]*worker, parallelReads)
	for i := range workers {
		workers[i] = a.newWorker()
	}
	chosen := choose(all)
	wait := fetch(ctx, workers, chosen)
	for len(chosen) > 0 {
		chunks := wait()
		for i, s := range chosen {
			if err := chunks[i].err; err != nil {
				return records, err
			}
			read += chunks[i].next - s.at
			s.at = chunks[i].next
			records += chunks[i].n
		}
		chosen = choose(all)
		wait = fetch(ctx, workers, chosen)
		for _, c := range chunks {
			c.apply(ledger)
		}
		if watch != nil {
			watch(read, total)
		}
	}
	return records, nil
}

// choose returns the streams of which the smallest part was read.
func choose(all []*stream) (chosen []*stream) {
	for range parallelReads {
		var least *stream
		for _, s := range all {
			if s.at < s.end && !slices.Contains(chosen, s) && (least == nil || s.done() < least.done()) {
				least = s
			}
		}
		if least == nil {
			break
		}
		chosen = append(chosen, least)
	}
	return chosen
}

// fetch begins a fetch of each stream, and returns a function that waits for all of them.
func fetch(ctx context.Context, workers []*worker, streams []*stream) (wait func() []chunk) {
	chunks := make([]chunk, len(streams))
	var running sync.WaitGroup
	for i, s := range streams {
		running.Go(func() { chunks[i] = s.next(ctx, workers[i]) })
	}
	return func() []chunk {
		running.Wait()
		return chunks
	}
}

// errFetched ends the reading of a stream after one fetch.
var errFetched = errors.New("fetched")

// next reads the next fetch of the stream. The chunk that it returns contains a function that applies the fetch
// to the ledger, so that only one goroutine uses the ledger.
func (s *stream) next(ctx context.Context, w *worker) (c chunk) {
	c = chunk{next: s.end, apply: func(*oracle.Ledger) {}}
	w.ctx, w.failed = ctx, nil
	err := s.reader.Read(ctx, s.at, s.end, func(records []*kgo.Record, position int64) error {
		for len(records) > 0 && records[len(records)-1].Offset >= s.end {
			records = records[:len(records)-1]
		}
		c.next, c.n = min(position, s.end), int64(len(records))
		if c.apply = s.read(w, records); w.failed != nil {
			return w.failed
		}
		return errFetched
	})
	var tooLarge *kgo.ErrDecompressTooLarge
	if errors.As(err, &tooLarge) && s.skips {
		c.next, err = min(tooLarge.NextOffset, s.end), nil // the app has a dead letter for this batch
	}
	if err != nil && !errors.Is(err, errFetched) {
		c.err = fmt.Errorf("read %s/%d: %w", s.reader.Topic, s.reader.Partition, err)
	}
	return c
}
