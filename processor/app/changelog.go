package app

import (
	"context"
	"errors"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/kafka"
	"oncebus/processor/wire"
)

// checkpointSpan is how many offsets at the end of a changelog LastCheckpoint reads first. If they contain no
// full checkpoint, CheckpointBefore doubles the number and reads again.
const checkpointSpan = 1000

// LastCheckpoint returns the newest checkpoint of a changelog, and the changelog's first offset. It reads the
// newest full checkpoint and adds the partial checkpoints between it and the end. If the full checkpoint is
// missing from the changelog, the result is not whole, see wire.Fold.
func LastCheckpoint(ctx context.Context, r *kafka.Reader) (newest wire.Fold, start int64, err error) {
	for {
		start, end, err := r.Bounds(ctx)
		if err != nil {
			return newest, 0, err
		}
		newest, err = CheckpointBefore(ctx, r, start, end)
		if !errors.Is(err, kerr.OffsetOutOfRange) { // the records were deleted since Bounds: read the bounds again
			return newest, start, err
		}
	}
}

// CheckpointBefore returns the newest checkpoint of a changelog before end. start is the changelog's first
// offset.
func CheckpointBefore(ctx context.Context, r *kafka.Reader, start, end int64) (newest wire.Fold, err error) {
	for span := int64(checkpointSpan); ; span *= 2 {
		from := max(start, end-span)
		newest, err = foldFrom(ctx, r, from, end)
		if err != nil || newest.IsWhole() || from == start {
			return newest, err
		}
	}
}

// foldFrom folds all checkpoints from one offset up to another.
func foldFrom(ctx context.Context, r *kafka.Reader, from, end int64) (newest wire.Fold, err error) {
	err = r.Read(ctx, from, end, func(records []*kgo.Record, _ int64) error {
		for _, rec := range records {
			number, ok := wire.CheckpointNumber(rec.Key)
			if !ok {
				continue
			}
			if err := newest.Add(number, rec.Value); err != nil {
				return wire.Unreadable(rec, err)
			}
		}
		return nil
	})
	return newest, err
}
