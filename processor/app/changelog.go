package app

import (
	"context"
	"errors"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/kafka"
	"oncebus/processor/wire"
)

// checkpointSpan is how many offsets at the end of a changelog LastCheckpoint reads
// first. It doubles the number until it finds a whole checkpoint.
const checkpointSpan = 1000

// LastCheckpoint folds the newest checkpoint of a changelog, and returns the changelog's
// first offset. It finds the newest whole checkpoint, and adds the partial ones up to the end.
// If the changelog has lost the whole one, the fold is not whole.
func LastCheckpoint(ctx context.Context, r *kafka.Reader) (newest wire.Fold, start int64, err error) {
	for {
		start, end, err := r.Bounds(ctx)
		if err != nil {
			return newest, 0, err
		}
		newest, err = CheckpointBefore(ctx, r, start, end)
		if !errors.Is(err, kerr.OffsetOutOfRange) { // trimmed meanwhile
			return newest, start, err
		}
	}
}

// CheckpointBefore folds the newest checkpoint of a changelog between two offsets, of which
// the first is that of the changelog's start.
func CheckpointBefore(ctx context.Context, r *kafka.Reader, start, end int64) (newest wire.Fold, err error) {
	for span := int64(checkpointSpan); ; span *= 2 {
		from := max(start, end-span)
		newest, err = foldFrom(ctx, r, from, end)
		if err != nil || newest.IsWhole() || from == start {
			return newest, err
		}
	}
}

// foldFrom folds the checkpoints between two offsets.
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
