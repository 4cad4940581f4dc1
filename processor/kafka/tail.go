package kafka

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	// tailFetchBytes is the largest size of a fetch of SkipUncommitted.
	tailFetchBytes = 64 << 10
	// Positions of the fields in a record batch of format 2, then bits of the batch's attributes and
	// its format.
	batchHeaderBytes, batchLengthAt, batchMagicAt, batchAttributesAt, batchLastDeltaAt = 61, 8, 16, 21, 23
	batchProducerAt, batchCountAt                                                      = 43, 57
	batchTransactional, batchControl, batchMagic                                       = 1 << 4, 1 << 5, 2
	// controlKeyAt is where the key of a control record begins: after the header of its batch and the
	// varints of length, attributes, timestamp, offset and key length, which take one byte each.
	controlKeyAt, controlAbort = batchHeaderBytes + 5, 0
)

// SkipUncommitted returns the offset of the first committed record at or after from, or end if there is
// none before end. At an open transaction it returns the transaction's first offset. It reads a single
// fetch: if that contains only control records or aborted records, the result is the offset after them.
//
// A consumer's position stays at the offset after its last record. SkipUncommitted finds out whether only control
// records or aborted records follow there. It decompresses nothing: other producers may write to the topic, so a
// batch may decompress to any size.
func (r *Reader) SkipUncommitted(ctx context.Context, from, end int64) (next int64, err error) {
	req := r.request(from, tailFetchBytes)
	req.MaxWaitMillis = 0
	p, err := r.fetchRaw(ctx, req)
	if err != nil {
		r.leader = -1
		return from, fmt.Errorf("fetch %s/%d at %d: %w", r.Topic, r.Partition, from, Denied(err, "Read", ResourceTopic, r.Topic))
	}
	if len(p.RecordBatches) == 0 && p.LastStableOffset >= end {
		return end, nil // retention or compaction removed all records up to end
	}
	next, _ = passUncommitted(p, from, false)
	return min(end, next), nil
}

// passUncommitted returns the offset of the first committed record in a response and the bytes from its
// batch on; without such a record, the offset after the last batch, and nil. With sums, it also stops
// at a batch with a wrong checksum, before it uses anything that the batch says.
func passUncommitted(p *kmsg.FetchResponseTopicPartition, from int64, sums bool) (next int64, at []byte) {
	aborted := map[int64][]int64{} // first offsets of aborted transactions, ascending, by producer
	for _, a := range p.AbortedTransactions {
		aborted[a.ProducerID] = append(aborted[a.ProducerID], a.FirstOffset)
	}
	for b := p.RecordBatches; len(b) >= batchHeaderBytes; {
		size := batchSize(b)
		if size == 0 {
			break // the size limit of the fetch cut the batch off
		}
		if sums && !isRight(b[:size]) {
			return from, b
		}
		first := int64(binary.BigEndian.Uint64(b))
		after := first + int64(int32(binary.BigEndian.Uint32(b[batchLastDeltaAt:]))) + 1
		attributes := binary.BigEndian.Uint16(b[batchAttributesAt:])
		producer := int64(binary.BigEndian.Uint64(b[batchProducerAt:]))
		open := aborted[producer]
		switch {
		case after <= from: // before the position
		case b[batchMagicAt] != batchMagic:
			return max(from, first), b
		case attributes&batchControl != 0:
			if size > controlKeyAt+3 && len(open) > 0 && open[0] <= first && binary.BigEndian.Uint16(b[controlKeyAt+2:]) == controlAbort {
				aborted[producer] = open[1:]
			}
		case attributes&batchTransactional != 0 && len(open) > 0 && open[0] <= first:
		case binary.BigEndian.Uint32(b[batchCountAt:]) == 0: // compaction emptied it
		default:
			return max(from, first), b
		}
		from, b = max(from, after), b[size:]
	}
	return from, nil
}

// batchSize returns the size of the batch that begins at b; 0 if b does not contain all of it.
func batchSize(b []byte) int {
	if len(b) < batchHeaderBytes {
		return 0
	}
	size := batchLengthAt + 4 + int(int32(binary.BigEndian.Uint32(b[batchLengthAt:])))
	if size < batchHeaderBytes || size > len(b) {
		return 0
	}
	return size
}
