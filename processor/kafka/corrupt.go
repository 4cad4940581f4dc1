package kafka

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// IsCorrupt reports whether a fetch ended at a batch with a wrong checksum. franz-go exports no error
// for that (v1.22.3), so IsCorrupt looks at the text.
func IsCorrupt(err error) bool { return err != nil && strings.HasPrefix(err.Error(), "encoded crc ") }

// CorruptBatchError is a batch with a wrong checksum, as one fetch returned it. The offsets that the batch
// states may be wrong, too. So the error covers all offsets between the batch before and the batch after it.
type CorruptBatchError struct {
	*kgo.ErrDecompressTooLarge

	Digest string // digest of all bytes of the batch
}

// Error implements error.
func (b *CorruptBatchError) Error() string {
	return fmt.Sprintf("the checksum of the batch at %s/%d/%d is wrong", b.Topic, b.Partition, b.Offset)
}

// Unwrap returns the error with which a client stops at a batch and names its offsets.
func (b *CorruptBatchError) Unwrap() error { return b.ErrDecompressTooLarge }

// Is reports whether two fetches brought the same batch with the same bytes.
func (b *CorruptBatchError) Is(other error) bool {
	o, ok := other.(*CorruptBatchError)
	return ok && o != nil && *o.ErrDecompressTooLarge == *b.ErrDecompressTooLarge && o.Digest == b.Digest
}

// The checksum is at batchSumAt and covers the bytes from batchSummedAt on.
const batchSumAt, batchSummedAt = 17, 21

// corruptFetchMax bounds the size of the fetch that looks for the batch after a corrupt batch.
const corruptFetchMax = 16 << 20

// errNoEnd reports that nothing shows where a batch with a wrong checksum ends.
var errNoEnd = errors.New("its checksum is wrong, and no whole batch behind it, nor the end of the partition, shows where it ends")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// isRight reports whether the checksum of a batch is right. Formats before 2 have another checksum and
// pass.
func isRight(b []byte) bool {
	return b[batchMagicAt] != batchMagic || crc32.Checksum(b[batchSummedAt:], castagnoli) == binary.BigEndian.Uint32(b[batchSumAt:])
}

// FindCorrupt returns the next batch with a wrong checksum at or after an offset. It returns nil if a committed
// record comes before such a batch, or if this fetch has no such batch. Everything between the offset and the
// batch was aborted, compacted away or a control record, according to batches with right checksums.
func (r *Reader) FindCorrupt(ctx context.Context, from int64) (*CorruptBatchError, error) {
	for bytes := int32(fetchBytes); ; {
		p, err := r.fetchRaw(ctx, r.request(from, bytes))
		if err != nil {
			return nil, err
		}
		batch, next, err := corruptIn(p, from)
		switch {
		case errors.Is(err, errNoEnd) && bytes < corruptFetchMax:
			bytes *= 4 // a fetch is cut off at its size limit
		case err != nil:
			return nil, fmt.Errorf("batch of %s/%d at offset %d or behind it: %w", r.Topic, r.Partition, from, err)
		case batch != nil:
			batch.Topic, batch.Partition = r.Topic, r.Partition
			return batch, nil
		case next <= from:
			return nil, nil //nolint:nilnil // no such batch, and no error
		default:
			from = next
		}
	}
}

// corruptPause is the pause between two reads of a batch with a wrong checksum.
const corruptPause = time.Second

// FindCorruptTwice returns the corrupt batch that the reader first finds at an offset; nil for none. same
// reports whether the reader again finds the same bytes. If so, the damage is at the leader, and not on the
// network.
func FindCorruptTwice(ctx context.Context, first, again *Reader, from int64) (found *CorruptBatchError, same bool, err error) {
	found, err = first.FindCorrupt(ctx, from)
	pause := corruptPause
	if err != nil {
		pause *= 10 // the caller repeats this call again and again
	}
	if paused := Pause(ctx, pause); err != nil || paused != nil || found == nil {
		return nil, false, err
	}
	other, err := again.FindCorrupt(ctx, from)
	return found, err == nil && other != nil && found.Is(other), err
}

// endAt returns the error for a fetch that ended at a wrong checksum. If two further reads return the same
// bytes, the error is the batch itself. A command then continues after the batch, as after a batch that is too
// large.
func (r *Reader) endAt(ctx context.Context, from int64, ended error) error {
	batch, same, err := FindCorruptTwice(ctx, r, r, from)
	if same {
		return batch
	}
	return cmp.Or(err, ended)
}

// corruptIn looks for a batch with a wrong checksum in one fetch. It returns that batch if no committed record
// comes before it. Otherwise next is the offset from which to look further; if a committed record comes first,
// next is at most from.
func corruptIn(p *kmsg.FetchResponseTopicPartition, from int64) (batch *CorruptBatchError, next int64, err error) {
	next, at := passUncommitted(p, from, true)
	size := batchSize(at)
	switch {
	case at == nil && next == from && len(p.RecordBatches) > 0, size > 0 && at[batchMagicAt] != batchMagic:
		return nil, from, errNoEnd // a broker returns the first batch whole
	case at == nil:
		return nil, next, nil
	case isRight(at[:size]):
		return nil, from, nil
	}
	after, behind := int64(-1), at[size:]
	if s := batchSize(behind); s > 0 && behind[batchMagicAt] == batchMagic && isRight(behind[:s]) {
		after = int64(binary.BigEndian.Uint64(behind))
	} else if last := int64(int32(binary.BigEndian.Uint32(at[batchLastDeltaAt:]))); len(behind) == 0 && int64(binary.BigEndian.Uint64(at))+last+1 == p.HighWatermark {
		after = p.HighWatermark // the batch states the end that the broker states
	}
	if after <= next || after > p.HighWatermark || hasBatch(at[:size], next, after) {
		return nil, next, errNoEnd
	}
	sum := sha256.Sum256(at[:size])
	return &CorruptBatchError{
		ErrDecompressTooLarge: &kgo.ErrDecompressTooLarge{Offset: next, Epoch: -1, NextOffset: after},
		Digest:                hex.EncodeToString(sum[:16]),
	}, next, nil
}

// hasBatch reports whether the bytes of a batch contain another batch that is right and begins between
// the two offsets. Then the length of the outer batch is wrong, and skipping it would skip the inner
// batch, too.
func hasBatch(b []byte, after, before int64) bool {
	for at := 1; at+batchHeaderBytes <= len(b); at++ {
		inner := b[at:]
		if first := int64(binary.BigEndian.Uint64(inner)); first <= after || first >= before || inner[batchMagicAt] != batchMagic {
			continue
		}
		if size := batchSize(inner); size > 0 && isRight(inner[:size]) {
			return true
		}
	}
	return false
}
