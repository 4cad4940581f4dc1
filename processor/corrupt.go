package processor

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/wire"
)

// A batch with a wrong checksum may be damaged in the log, in the memory of its leader, or on the wire, and a
// client cannot tell which. So the worker does not skip the batch unless an operator says so (G5). It pauses the
// partition, and goes on with all other partitions. It reads the batch twice more, with a pause in between and
// with two clients, and so on two connections. If both reads bring the same bytes, and no committed record lies
// between the partition's committed offset and the batch, the partition waits for an operator. Otherwise the
// client fetches the batch again. After the operator's decision the worker reads the batch twice more in the
// same way. If the checksum is right by then, the records of the batch are processed, and otherwise one dead
// letter stands for its offsets. A batch of an internal topic gets no dead letter, because only oncebus writes
// to internal topics.

// corruptTries is how often the two reads of a batch with a wrong checksum may differ before the board shows it.
const corruptTries = 5

// corruptReads holds the partitions of one client that wait until a batch with a wrong checksum has been
// read again.
type corruptReads struct {
	ctx     context.Context //nolint:containedctx // that of the client
	wake    func()
	reading sync.WaitGroup

	mu sync.Mutex
	// parts holds what is known about each such partition, until the client fetches records of it.
	parts map[app.TaskID]*corruptPart
	// read holds the partitions whose batch has been read again, and that the client has to fetch next.
	read []app.TaskID
}

// corruptPart is a partition that the client has paused at a batch with a wrong checksum.
type corruptPart struct {
	reading bool
	from    int64                    // the committed offset at the time of the two reads
	batch   *kafka.CorruptBatchError // the batch; nil if the two reads differed
	tries   int                      // how often the two reads from that offset differed
	why     string                   // why the partition waits, according to the last reads; "" for no reason
	shown   string                   // the reason that the board shows for the partition; "" for none
}

func newCorruptReads(ctx context.Context, wake func()) *corruptReads {
	return &corruptReads{ctx: ctx, wake: wake, parts: map[app.TaskID]*corruptPart{}}
}

// findCorrupt takes the batches with a wrong checksum out of a poll, except for batches of which both further
// reads brought the same bytes. If a poll has records before such a batch, only those are processed now: the
// client fetches the batch again afterwards.
func (x *transactions) findCorrupt(fetches kgo.Fetches) kgo.Fetches {
	for i := range fetches {
		for j := range fetches[i].Topics {
			t := &fetches[i].Topics[j]
			for k := range t.Partitions {
				p := &t.Partitions[k]
				switch id := (app.TaskID{Topic: t.Topic, Partition: p.Partition}); {
				case len(p.Records) == 0 && kafka.IsCorrupt(p.Err):
					p.Err = x.readAgain(id, p.Err)
				case kafka.IsCorrupt(p.Err):
					p.Err = nil
				case len(p.Records) > 0:
					x.passCorrupt(id)
				}
			}
		}
	}
	return fetches
}

// readAgain pauses a partition at a batch with a wrong checksum, and starts the two further reads of the batch.
// If these reads have been done already, and nothing of the partition was committed since, readAgain returns the
// batch as an error.
func (x *transactions) readAgain(id app.TaskID, err error) error {
	x.client.PauseFetchPartitions(map[string][]int32{id.Topic: {id.Partition}})
	from, c := x.readFrom(id), x.corrupt
	c.mu.Lock()
	defer c.mu.Unlock()
	part := c.parts[id]
	switch {
	case from < 0 || part != nil && part.reading || x.oversized.batches[id] != nil:
		return nil
	case part != nil && part.batch != nil && part.from == from:
		delete(c.parts, id)
		return part.batch
	}
	next := corruptPart{from: from}
	if part != nil {
		next.shown = part.shown
		if part.from == from {
			next.tries = part.tries
		}
	}
	c.parts[id] = &corruptPart{reading: true, from: from, shown: next.shown}
	if x.tasks != nil {
		x.tasks.stale = true // the lag of the partition is not 0, although polls bring nothing
	}
	x.log.Warn("batch with a wrong checksum: its partition waits until it was read again", "topic", id.Topic, "partition", id.Partition, "from", from, "error", err)
	of := x.rt.Topology.Topics[id.Topic].ID
	first, again := kafka.NewReader(x.client, id.Topic, of, id.Partition), x.source.Leaders.NewReader(id.Topic, of, id.Partition)
	c.reading.Go(func() {
		batch, same, err := kafka.FindCorruptTwice(c.ctx, first, again, from)
		next.wasRead(id, batch, same, err)
		c.mu.Lock()
		c.parts[id] = &next
		c.read = append(c.read, id)
		c.mu.Unlock()
		c.wake()
	})
	return nil
}

// wasRead stores what the two reads of a partition have found. same reports that both brought the same bytes.
// batch is nil if the reads found other records first, which come before the batch and are not committed yet.
func (p *corruptPart) wasRead(id app.TaskID, batch *kafka.CorruptBatchError, same bool, err error) {
	switch {
	case err != nil:
		p.why = err.Error() + ": make another replica the leader"
	case same:
		p.batch = batch
	case batch != nil:
		if p.tries++; p.tries > corruptTries {
			p.why = fmt.Sprintf("partition %v: a batch behind offset %d has a wrong checksum, and other bytes each time: the network or a memory damages them", id, p.from)
		}
	}
}

// showCorrupt makes the board say why a partition waits at a batch that was read again. If the partition was
// revoked and assigned again meanwhile, it may wait for another reason, which then stays on the board.
func (x *transactions) showCorrupt(id app.TaskID) {
	x.corrupt.mu.Lock()
	defer x.corrupt.mu.Unlock()
	part := x.corrupt.parts[id]
	if part == nil || part.reading || part.from != x.readFrom(id) {
		return
	}
	if part.why != part.shown {
		x.log.Warn("partition that waits at a wrong checksum", "partition", id.String(), "reason", part.why)
	}
	x.board.replace(id, part.shown, part.why)
	part.shown = part.why
}

// close waits until no batch is being read again. It removes the reasons of the waiting partitions from the
// board, because the next client may read the partitions without an error.
func (c *corruptReads) close(b *board) {
	c.reading.Wait()
	for id, part := range c.parts {
		b.replace(id, part.shown, "")
	}
}

// has reports whether a partition waits at a wrong checksum.
func (c *corruptReads) has(id app.TaskID) bool {
	if c == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.parts[id] != nil
}

// passCorrupt forgets a partition whose records the client has fetched, or that this client no longer reads.
func (x *transactions) passCorrupt(id app.TaskID) {
	x.corrupt.mu.Lock()
	defer x.corrupt.mu.Unlock()
	part := x.corrupt.parts[id]
	if part == nil || part.reading {
		return
	}
	delete(x.corrupt.parts, id)
	x.board.replace(id, part.shown, "")
}

// readFrom returns the committed offset of a partition; -1 if the worker does not read it.
func (x *transactions) readFrom(id app.TaskID) int64 {
	if x.router != nil {
		at, _ := x.marks.Of(id)
		return at
	}
	if t := x.tasks.tasks[id]; t != nil && t.asks == nil && (t.state == running || t.state == bypassing) {
		return t.Committed.Next
	}
	return -1
}

// fetchRead makes the client fetch the partitions whose batch has been read again. It leaves out a partition
// that also waits for a decision, or whose task restores: the end of that other wait resumes the partition.
func (x *transactions) fetchRead() {
	x.corrupt.mu.Lock()
	read, all := x.corrupt.read, slices.Collect(maps.Keys(x.corrupt.parts))
	x.corrupt.read = nil
	x.corrupt.mu.Unlock()
	for _, id := range all {
		switch {
		case x.readFrom(id) < 0:
			x.passCorrupt(id)
		case slices.Contains(read, id):
			x.showCorrupt(id)
			x.fetchAgain(id)
		}
	}
}

// fetchAgain resumes a partition that the worker has paused at a wrong checksum, unless the worker has
// another reason to pause it.
func (x *transactions) fetchAgain(id app.TaskID) {
	if !x.schemas.waits(id) && (x.router == nil || !x.pacer.isPaused(id) && !x.order.isFull(id)) {
		x.client.ResumeFetchPartitions(map[string][]int32{id.Topic: {id.Partition}})
	}
}

// unreadable returns the error about a polled batch with a wrong checksum; nil if there is no such batch.
func unreadable(batch *kafka.CorruptBatchError) *wire.UnreadableError {
	if batch == nil {
		return nil
	}
	return wire.CorruptBatch(batch.Topic, batch.Partition, batch.Offset, batch.NextOffset-1, batch.Digest, batch)
}
