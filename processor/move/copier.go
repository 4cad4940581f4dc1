package move

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/processor/app"
	"oncebus/processor/hanging"
	"oncebus/processor/kafka"
	"oncebus/processor/wire"
)

// TransactionalID returns the transactional id under which rows are copied. The id is fixed, so that a new run
// fences an earlier one.
func TransactionalID(appID string) string { return appID + "-move" }

// copiesKey is the record key under which the manifest topic has the progress of the copies.
const copiesKey = "switch-copies"

// copies is the progress of the copies of a switch.
type copies struct {
	Switch    int64   `json:"switch"`
	Positions []int64 `json:"positions"` // next offsets to read in the changelogs of app.Switch.Sources
	Rows      []int64 `json:"rows"`      // how many rows were copied, by new partition
	// First reports that the first checkpoints of the new tasks are written.
	First bool `json:"first,omitempty"`
}

const (
	// chunkBytes is how many bytes of a changelog one transaction copies at most, and copyReaders how many
	// changelogs are read at the same time.
	chunkBytes, copyReaders = 4 << 20, 4
	// packBytes is the size, in bytes, at which the copier sends a pack of rows.
	packBytes = 32 << 10
	// packMark is added to the number in the key of a copied pack. No offset is that large, so the key differs
	// from the keys of the packs that the new tasks write.
	packMark = 1 << 62
)

// copier copies the rows of all old changelogs. Only one goroutine uses it.
type copier struct {
	*Mover

	writer  *hanging.Writer
	number  int64 // number of the switch
	to      int32
	topic   string // the changelog of the new generation
	limit   int    // size of a pack, in bytes
	sources []app.TaskID
	readers []*kafka.Reader // of the changelogs of the sources

	mu sync.Mutex // guards p while several changelogs are read
	p  copies
}

// openCopier registers the transactional id, which fences any other copier. before is the previous switch, nil
// if there was none: its copier may have left a transaction open.
func (m *Mover) openCopier(ctx context.Context, before *app.Switch) (*hanging.Writer, error) {
	topics := []string{m.app.Topology.Manifest}
	if before != nil {
		topics = append(topics, m.copiedTo(before))
	}
	return m.conn.OpenWriter(ctx, TransactionalID(m.cfg.AppID), m.cfg.TransactionTimeout, topics,
		kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchMaxBytes(4<<20),
		kgo.ProducerBatchCompression(kgo.ZstdCompression(), kgo.NoCompression()))
}

// copiedTo returns the changelog to which the copier of a switch copies.
func (m *Mover) copiedTo(sw *app.Switch) string {
	return app.ChangelogName(m.cfg.AppID, app.RepartitionName(m.cfg.AppID, sw.Number))
}

// newCopier returns the copier of a switch, which continues from the progress that was stored so far. The
// topics of the switch must exist.
func (m *Mover) newCopier(w *hanging.Writer, sw *app.Switch, rows app.Rows) (*copier, error) {
	c := &copier{Mover: m, writer: w, number: sw.Number, to: sw.To, sources: sw.Sources(m.app.Topology), topic: m.copiedTo(sw), limit: packBytes}
	for _, id := range c.sources {
		name := app.ChangelogName(m.cfg.AppID, id.Topic)
		c.readers = append(c.readers, m.leaders.NewReader(name, m.app.Topology.Topics[name].ID, id.Partition))
	}
	if value, ok := rows[copiesKey]; ok {
		if err := json.Unmarshal(value, &c.p); err != nil {
			return nil, kafka.OperatorErrorf("row %s of the manifest topic: %v", copiesKey, err)
		}
	}
	if c.p.Switch != sw.Number || len(c.p.Positions) != len(c.sources) || len(c.p.Rows) != int(sw.To) {
		c.p = copies{Switch: sw.Number, Positions: make([]int64, len(c.sources)), Rows: make([]int64, sw.To)}
	}
	return c, nil
}

// pass copies everything that the changelogs contain at the call.
func (c *copier) pass(ctx context.Context, watch func(left int64)) error {
	ends := make([]int64, len(c.readers))
	for p, reader := range c.readers {
		start, _, err := reader.Bounds(ctx)
		if err == nil {
			ends[p], err = reader.StableEnd(ctx)
		}
		if err != nil {
			return err
		}
		c.p.Positions[p] = max(start, c.p.Positions[p]) // the task has trimmed the rows before start, because they no longer decide anything
	}
	for {
		left := int64(0)
		for p, end := range ends {
			left += max(0, end-c.p.Positions[p])
		}
		watch(left)
		if left == 0 {
			return nil
		}
		if err := c.transaction(func() error { return c.chunk(ctx, ends) }); err != nil {
			return err
		}
	}
}

// transaction runs a transaction that also contains the progress.
func (c *copier) transaction(produce func() error) error {
	before := copies{Switch: c.p.Switch, Positions: slices.Clone(c.p.Positions), Rows: slices.Clone(c.p.Rows), First: c.p.First}
	// The caller's context must not be used here: if it were cancelled, a record whose production is cancelled
	// might have been written nevertheless (A2).
	ctx, cancel := context.WithTimeout(context.Background(), 2*c.cfg.TransactionTimeout)
	defer cancel()
	err := c.writer.Write(ctx, func() error {
		if err := produce(); err != nil {
			return err
		}
		value, err := json.Marshal(&c.p)
		if err != nil {
			return err
		}
		c.writer.Produce(&kgo.Record{Topic: c.app.Topology.Manifest, Key: []byte(copiesKey), Value: value})
		return nil
	})
	if err != nil {
		c.p = before
	}
	if hanging.IsFenced(err) {
		return fmt.Errorf("%w: %w", app.ErrReplaced, err)
	}
	return err
}

// chunk copies the next part of every changelog that is not copied to its end, within the open transaction.
func (c *copier) chunk(ctx context.Context, ends []int64) error {
	var wg sync.WaitGroup
	errs := make([]error, len(c.readers))
	turn := make(chan struct{}, copyReaders)
	for p := range c.readers {
		if c.p.Positions[p] >= ends[p] {
			continue
		}
		wg.Go(func() {
			turn <- struct{}{}
			defer func() { <-turn }()
			errs[p] = c.copyFrom(ctx, int32(p), ends[p])
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// errChunk ends the reading of a changelog because the transaction has enough bytes.
var errChunk = errors.New("enough for one transaction")

// copyFrom copies a part of the changelog of source number p.
func (c *copier) copyFrom(ctx context.Context, p int32, end int64) error {
	part := &part{copier: c, from: p, packs: make([]dedup.Pack, c.to), rows: make([]int64, c.to)}
	position, bytes := c.p.Positions[p], 0
	err := c.readers[p].Read(ctx, position, end, func(records []*kgo.Record, next int64) error {
		for _, rec := range records {
			if err := part.add(rec); err != nil {
				return fmt.Errorf("%s/%d/%d: %w", rec.Topic, rec.Partition, rec.Offset, err)
			}
			bytes += len(rec.Key) + len(rec.Value)
		}
		position = next
		if bytes >= chunkBytes {
			return errChunk
		}
		return nil
	})
	switch {
	case errors.Is(err, kerr.OffsetOutOfRange) && bytes == 0: // the records were trimmed in the meantime
		start, _, err := c.readers[p].Bounds(ctx)
		if err != nil {
			return err
		}
		position = start
	case errors.Is(err, kerr.OffsetOutOfRange), errors.Is(err, errChunk): // the next chunk continues
	case err != nil:
		return err
	}
	part.flush()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.p.Positions[p] = position
	for to, n := range part.rows {
		c.p.Rows[to] += n
	}
	return nil
}

// part copies rows of one changelog within one transaction.
type part struct {
	*copier

	from   int32 // number of the source
	offset int64 // offset of the record whose rows are being copied
	sent   uint32
	packs  []dedup.Pack // by new partition
	rows   []int64
}

// add copies the rows of a changelog record. A row that is not in a pack is copied as it is.
func (p *part) add(rec *kgo.Record) error {
	if wire.IsCheckpoint(rec.Key) {
		return nil
	}
	p.offset = rec.Offset
	for row, err := range wire.RowsOf(rec) {
		if err != nil {
			return err
		}
		key := row.Key()
		to := p.app.PartitionAmong(&key, p.to)
		p.rows[to]++
		if wire.IsPack(rec) {
			pack := &p.packs[to]
			pack.Add(row)
			if len(pack.Bytes())+dedup.PackedBytesMax > p.limit {
				p.send(to)
			}
			continue
		}
		p.send(to) // sent before this row, so that the rows of a key keep their order
		p.writer.Produce(&kgo.Record{Topic: p.topic, Partition: to, Key: rec.Key, Value: rec.Value, Headers: rec.Headers})
	}
	return nil
}

// send produces the pack of a new partition, unless the pack is empty.
func (p *part) send(to int32) {
	pack := &p.packs[to]
	if pack.Rows() == 0 {
		return
	}
	key := wire.AppendPackKey(nil, packMark|int64(p.from)<<44|p.offset, p.sent)
	p.writer.Produce(&kgo.Record{Topic: p.topic, Partition: to, Key: key, Value: slices.Clone(pack.Bytes())})
	pack.Reset()
	p.sent++
}

func (p *part) flush() {
	for to := range p.packs {
		p.send(int32(to))
	}
}

// writeFirst writes the first checkpoints of the new tasks, derived from the closed checkpoints of the old
// tasks.
func (c *copier) writeFirst(closed []wire.Checkpoint) error {
	counts, err := wire.EventCounts(closed)
	if err != nil {
		return err
	}
	return c.transaction(func() error {
		for to := range c.to {
			first := wire.FirstOf(closed)
			first.Rows = c.p.Rows[to]
			if to == 0 {
				first.Counts = counts // only once, so that the sums over the app stay the same
			}
			c.writer.Produce(&kgo.Record{Topic: c.topic, Partition: to, Key: []byte(wire.CheckpointKey), Value: first.Append(nil)})
		}
		c.p.First = true
		return nil
	})
}
