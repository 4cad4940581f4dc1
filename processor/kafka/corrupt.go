package kafka

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"strings"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// IsCorrupt reports whether a fetch ended at a batch with a wrong checksum. franz-go has no name
// for that error (v1.22.3).
func IsCorrupt(err error) bool { return err != nil && strings.HasPrefix(err.Error(), "encoded crc ") }

// The leader epoch and the checksum of a batch. The checksum is of what follows it.
const batchEpochAt, batchSumAt, batchSummedAt = 12, 17, 21

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// FindCorrupt returns the first batch from an offset on whose checksum is wrong; nil for none. It
// was read twice with the same bytes: what the network or a broker's memory changes comes otherwise
// the next time, and no event is lost to that.
func (r *Reader) FindCorrupt(ctx context.Context, from int64) (*kgo.ErrDecompressTooLarge, error) {
	start, end, err := r.ListBounds(ctx)
	if err != nil {
		return nil, err
	}
	for at := max(from, start); at < end; {
		batch, found, next, err := r.corruptIn(ctx, at)
		if err != nil {
			return nil, err
		}
		if found != nil {
			_, again, _, err := r.corruptIn(ctx, at)
			if err != nil || !bytes.Equal(found, again) {
				return nil, err
			}
			return batch, nil
		}
		if next <= at {
			return nil, nil //nolint:nilnil // no such batch, and no error
		}
		at = next
	}
	return nil, nil //nolint:nilnil // no such batch, and no error
}

// corruptIn returns the first batch with a wrong checksum in one fetch, with its bytes, and the
// offset after the batches before it.
func (r *Reader) corruptIn(ctx context.Context, from int64) (*kgo.ErrDecompressTooLarge, []byte, int64, error) {
	fetched, err := r.fetchRaw(ctx, r.request(from, fetchBytes))
	if err != nil {
		return nil, nil, from, err
	}
	next := from
	for in := fetched.RecordBatches; len(in) >= batchHeaderBytes; {
		first := int64(binary.BigEndian.Uint64(in))
		length := batchEpochAt + int64(binary.BigEndian.Uint32(in[batchLengthAt:]))
		if in[batchMagicAt] != batchMagic || length < batchHeaderBytes {
			return nil, nil, from, fmt.Errorf("%s/%d: the batch at offset %d has magic %d and %d bytes, which nothing reads", r.Topic, r.Partition, first, in[batchMagicAt], length)
		}
		if length > int64(len(in)) {
			break // the next fetch has all of it
		}
		batch := in[:length]
		in = in[length:]
		behind := first + int64(int32(binary.BigEndian.Uint32(batch[batchLastDeltaAt:]))) + 1
		if behind <= from || crc32.Checksum(batch[batchSummedAt:], castagnoli) == binary.BigEndian.Uint32(batch[batchSumAt:]) {
			next = max(next, behind)
			continue
		}
		if len(in) >= batchLengthAt {
			behind = int64(binary.BigEndian.Uint64(in)) // the last offset is in what cannot be trusted
		}
		if behind <= max(first, from) || behind > fetched.HighWatermark {
			return nil, nil, from, fmt.Errorf("%s/%d: the batch at offset %d has a wrong checksum, and says that it ends at %d of %d", r.Topic, r.Partition, first, behind, fetched.HighWatermark)
		}
		epoch := int32(binary.BigEndian.Uint32(batch[batchEpochAt:]))
		return &kgo.ErrDecompressTooLarge{Topic: r.Topic, Partition: r.Partition, Offset: first, Epoch: epoch, NextOffset: behind}, batch, next, nil
	}
	return nil, nil, next, nil
}

// passCorrupt returns the offset at which a fetch goes on that ended at a wrong checksum, or the error
// about the batch. What was right when it was read again is fetched again.
func (r *Reader) passCorrupt(ctx context.Context, from int64, ended error) (next int64, err error) {
	batch, err := r.FindCorrupt(ctx, from)
	switch {
	case err != nil:
		return from, err
	case batch == nil:
		return from, fmt.Errorf("%w: %w", kerr.CorruptMessage, ended)
	case r.skipBatch == nil:
		return from, fmt.Errorf("the checksum is wrong in each of two fetches: %w", batch)
	}
	return batch.NextOffset, r.skipBatch(batch)
}

// fetchRaw sends one request.
func (r *Reader) fetchRaw(ctx context.Context, req *kmsg.FetchRequest) (*kmsg.FetchResponseTopicPartition, error) {
	if err := r.findLeader(ctx); err != nil {
		return nil, err
	}
	resp, err := req.RequestWith(ctx, r.client.Broker(int(r.leader)))
	if err != nil {
		return nil, r.unreachable(ctx, err)
	}
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		return nil, err
	}
	if len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
		return nil, fmt.Errorf("%w: fetch response has %d topics, want 1 with 1 partition", kerr.UnknownServerError, len(resp.Topics))
	}
	partition := &resp.Topics[0].Partitions[0]
	return partition, kerr.ErrorForCode(partition.ErrorCode)
}
