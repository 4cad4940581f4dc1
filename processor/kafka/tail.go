package kafka

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	// tailFetchBytes is the most bytes of a fetch of SkipUncommitted.
	tailFetchBytes = 64 << 10
	// Offsets in a record batch of format 2, the attributes of a batch, and its format.
	batchHeaderBytes, batchLengthAt, batchMagicAt, batchAttributesAt, batchLastDeltaAt = 61, 8, 16, 21, 23
	batchProducerAt, batchCountAt                                                      = 43, 57
	batchTransactional, batchControl, batchMagic                                       = 1 << 4, 1 << 5, 2
	// controlKeyAt is where the key of a control record begins: after its batch, and the
	// varints of length, attributes, timestamp, offset and key length, one byte each.
	controlKeyAt, controlAbort = batchHeaderBytes + 5, 0
)

// SkipUncommitted returns the offset of the first committed record at or after from, or
// end if none is before it. Where a transaction is open it returns the first offset of
// that. It reads one fetch: if that is all control records or aborted ones, the result
// is the offset after it.
//
// A consumer's position stays at the offset after its last record. This tells whether
// only control records follow. It decompresses nothing: the topic may be another's.
func (r *Reader) SkipUncommitted(ctx context.Context, from, end int64) (next int64, err error) {
	if err := r.findLeader(ctx); err != nil {
		return from, err
	}
	req := r.request(from, tailFetchBytes)
	req.MaxWaitMillis = 0
	resp, err := req.RequestWith(ctx, r.client.Broker(int(r.leader)))
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	if err == nil && (len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1) {
		err = fmt.Errorf("%w: fetch response has %d topics, want 1 with 1 partition", kerr.UnknownServerError, len(resp.Topics))
	}
	if err == nil {
		err = kerr.ErrorForCode(resp.Topics[0].Partitions[0].ErrorCode)
	}
	if err != nil {
		r.leader = -1
		return from, fmt.Errorf("fetch %s/%d at %d: %w", r.Topic, r.Partition, from, Denied(err, "Read", ResourceTopic, r.Topic))
	}
	p := &resp.Topics[0].Partitions[0]
	if len(p.RecordBatches) == 0 && p.LastStableOffset >= end {
		return end, nil // retention or compaction removed all records up to end
	}
	return min(end, skipUncommitted(p, from)), nil
}

// skipUncommitted returns the offset of the first committed record in a response, or the
// offset after its batches.
func skipUncommitted(p *kmsg.FetchResponseTopicPartition, from int64) int64 {
	aborted := map[int64][]int64{} // first offsets of aborted transactions, ascending, by producer
	for _, a := range p.AbortedTransactions {
		aborted[a.ProducerID] = append(aborted[a.ProducerID], a.FirstOffset)
	}
	for b := p.RecordBatches; len(b) >= batchHeaderBytes; {
		size := batchLengthAt + 4 + int(int32(binary.BigEndian.Uint32(b[batchLengthAt:])))
		if size < batchHeaderBytes || size > len(b) {
			break // cut off by the limit of the fetch
		}
		first := int64(binary.BigEndian.Uint64(b))
		next := first + int64(int32(binary.BigEndian.Uint32(b[batchLastDeltaAt:]))) + 1
		attributes := binary.BigEndian.Uint16(b[batchAttributesAt:])
		producer := int64(binary.BigEndian.Uint64(b[batchProducerAt:]))
		open := aborted[producer]
		switch {
		case next <= from: // before the position
		case b[batchMagicAt] != batchMagic:
			return max(from, first)
		case attributes&batchControl != 0:
			if size > controlKeyAt+3 && len(open) > 0 && open[0] <= first && binary.BigEndian.Uint16(b[controlKeyAt+2:]) == controlAbort {
				aborted[producer] = open[1:]
			}
		case attributes&batchTransactional != 0 && len(open) > 0 && open[0] <= first:
		case binary.BigEndian.Uint32(b[batchCountAt:]) == 0: // compaction emptied it
		default:
			return max(from, first)
		}
		from, b = max(from, next), b[size:]
	}
	return from
}
