package audit

import (
	"cmp"
	"context"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"
)

// stream has the batches of one partition, in order.
type stream struct {
	now     *batch // the current batch; nil at the end
	batches chan *batch
}

// head returns the next event of the stream.
func (s *stream) head() *Event { return &s.now.events[s.now.next] }

// merger merges the partitions by timestamp. If the timestamps of a partition do not ascend, the partition
// keeps its own order.
type merger struct {
	streams []*stream // a heap by timestamp of the head, then by partition
	folds   []*worker
	chunk   *chunk
	spare   chan *chunk
	seen    Seen
	timed   bool // seen already has a record with a timestamp
	watch   func(done, total int64)
	total   int64
	failed  chan error // error of a fold; holds at most one
}

// Seen is what an audit has seen of the log, independently of the rules.
type Seen struct {
	Records     int64
	Bytes       int64 // of the values
	First, Last int64 // lowest and highest timestamp, without timestamps in the future; 0 if there are none
}

// chunk is a part of the merged records. Every fold counts all chunks.
type chunk struct {
	events []Event
	keys   [][]Key
	done   sync.WaitGroup // counts the folds that have not counted the chunk yet
}

const chunkEvents = 4096

// worker counts the chunks for one rule, in a separate goroutine.
type worker struct {
	fold   *Fold
	rule   int
	chunks chan *chunk
}

func (w *worker) run(failed chan<- error) {
	for c := range w.chunks {
		keys := c.keys[w.rule]
		for i := range c.events {
			if err := w.fold.Add(&c.events[i], &keys[i]); err != nil {
				select {
				case failed <- err:
				default: // another fold has failed before
				}
				break
			}
		}
		c.done.Done()
	}
}

// read reads all partitions, each in its own goroutine, and merges them. It returns once all goroutines have
// ended.
func (m *merger) read(ctx context.Context, l *Log, newDecoder func(partition int32) *decoder) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var readers, folds sync.WaitGroup
	for i, p := range l.Partitions {
		s := &stream{batches: make(chan *batch, 1)}
		m.streams = append(m.streams, s)
		readers.Go(func() {
			defer close(s.batches)
			if err := l.fill(ctx, p, newDecoder(int32(i)), s.batches); err != nil {
				cancel(err)
			}
		})
	}
	for _, w := range m.folds {
		folds.Go(func() { w.run(m.failed) })
	}
	err := m.merge(ctx)
	cancel(err) // ends readers that still wait
	readers.Wait()
	for _, w := range m.folds {
		close(w.chunks)
	}
	folds.Wait()
	if err == nil {
		select {
		case err = <-m.failed:
		default:
		}
	}
	return err
}

// fill sends the decoded batches of a partition.
func (l *Log) fill(ctx context.Context, p Partition, d *decoder, to chan<- *batch) error {
	return l.each(ctx, p, func(records []*kgo.Record) error {
		if len(records) == 0 {
			return nil
		}
		b, err := d.decode(ctx, records)
		if err != nil {
			return err
		}
		select {
		case to <- b:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
}

// merge sends the records to the folds in the merged order.
func (m *merger) merge(ctx context.Context) error {
	all := m.streams
	m.streams = make([]*stream, 0, len(all))
	for _, s := range all {
		if s.next() {
			m.streams = append(m.streams, s)
		}
	}
	for i := len(m.streams)/2 - 1; i >= 0; i-- {
		m.down(i)
	}
	m.chunk = m.newChunk()
	for len(m.streams) > 0 {
		if err := m.step(); err != nil {
			return err
		}
	}
	m.flush()
	// When a reader fails, its stream ends just as after the last record, so the error must be checked here.
	if err := context.Cause(ctx); err != nil {
		return err
	}
	m.watch(m.total, m.total)
	return nil
}

// next moves to the next batch and reports whether there is one.
func (s *stream) next() bool {
	s.now = <-s.batches
	return s.now != nil
}

// step takes the events of the first stream that come before the events of all other streams.
func (m *merger) step() error {
	s := m.streams[0]
	var second *Event
	if len(m.streams) > 1 {
		second = m.streams[1].head()
		if len(m.streams) > 2 && before(m.streams[2].head(), second) {
			second = m.streams[2].head()
		}
	}
	for {
		m.take(s.now)
		if s.now.next == len(s.now.events) {
			m.watch(m.seen.Records, m.total)
			m.seen.Bytes += s.now.bytes
			if !s.next() {
				last := len(m.streams) - 1
				m.streams[0] = m.streams[last]
				m.streams = m.streams[:last]
				break
			}
		}
		if second != nil && before(second, s.head()) {
			break
		}
		if len(m.chunk.events) == chunkEvents {
			break
		}
	}
	if len(m.streams) > 1 {
		m.down(0)
	}
	if len(m.chunk.events) < chunkEvents {
		return nil
	}
	m.flush()
	m.chunk = m.newChunk()
	select {
	case err := <-m.failed:
		return err
	default:
		return nil
	}
}

// take adds the next event of a batch to the chunk.
func (m *merger) take(b *batch) {
	e := &b.events[b.next]
	m.chunk.events = append(m.chunk.events, *e)
	for r := range m.chunk.keys {
		m.chunk.keys[r] = append(m.chunk.keys[r], b.keys[r][b.next])
	}
	b.next++
	m.seen.Records++
	switch {
	case e.Timestamp < 0:
	case !m.timed:
		m.timed, m.seen.First, m.seen.Last = true, e.Timestamp, e.Timestamp
	default:
		m.seen.First, m.seen.Last = min(m.seen.First, e.Timestamp), max(m.seen.Last, e.Timestamp)
	}
}

// newChunk returns an empty chunk, It waits until all folds have counted an earlier chunk, whose memory it
// reuses.
func (m *merger) newChunk() *chunk {
	c := <-m.spare
	c.done.Wait()
	c.events = c.events[:0]
	for r := range c.keys {
		c.keys[r] = c.keys[r][:0]
	}
	return c
}

// flush sends the current chunk to all folds.
func (m *merger) flush() {
	m.chunk.done.Add(len(m.folds))
	for _, w := range m.folds {
		w.chunks <- m.chunk
	}
	m.spare <- m.chunk
}

// before reports whether event a comes before event b in the merged order.
func before(a, b *Event) bool {
	return cmp.Or(cmp.Compare(a.Timestamp, b.Timestamp), cmp.Compare(a.Partition, b.Partition)) < 0
}

// down moves a stream down to its place in the heap.
func (m *merger) down(i int) {
	for {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(m.streams); child++ {
			if before(m.streams[child].head(), m.streams[least].head()) {
				least = child
			}
		}
		if least == i {
			return
		}
		m.streams[i], m.streams[least] = m.streams[least], m.streams[i]
		i = least
	}
}

// newMerger returns a merger for folds.
func newMerger(folds []*Fold, total int64, watch func(done, total int64)) *merger {
	const chunks = 3
	m := &merger{watch: watch, total: total, spare: make(chan *chunk, chunks), failed: make(chan error, 1)}
	for range chunks {
		m.spare <- &chunk{keys: make([][]Key, len(folds))}
	}
	for i, f := range folds {
		m.folds = append(m.folds, &worker{fold: f, rule: i, chunks: make(chan *chunk, chunks)})
	}
	return m
}
