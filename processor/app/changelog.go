package app

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/kafka"
	"oncebus/processor/wire"
)

// checkpointSpan is how many offsets at the end of a changelog LastCheckpoint reads
// first. It doubles the number until it finds a checkpoint.
const checkpointSpan = 1000

// LastCheckpoint returns the newest checkpoint of a changelog, and the changelog's
// first offset.
func LastCheckpoint(ctx context.Context, r *kafka.Reader) (newest wire.Checkpoint, found bool, start int64, err error) {
	start, end, err := r.Bounds(ctx)
	if err != nil {
		return newest, false, 0, err
	}
	for span := int64(checkpointSpan); ; span *= 2 {
		from := max(start, end-span)
		newest, found, err = lastCheckpointFrom(ctx, r, from, end)
		if errors.Is(err, kerr.OffsetOutOfRange) { // trimmed meanwhile
			if start, _, err = r.Bounds(ctx); err != nil {
				return newest, found, start, err
			}
			continue
		}
		if err != nil || found || from == start {
			return newest, found, start, err
		}
	}
}

// lastCheckpointFrom returns the newest checkpoint between two offsets.
func lastCheckpointFrom(ctx context.Context, r *kafka.Reader, from, end int64) (newest wire.Checkpoint, found bool, err error) {
	err = r.Read(ctx, from, end, func(records []*kgo.Record, _ int64) error {
		for _, rec := range records {
			if string(rec.Key) != wire.CheckpointKey {
				continue
			}
			var err error
			if newest, err = wire.DecodeCheckpoint(rec.Value); err != nil {
				return fmt.Errorf("%s/%d/%d: %w", r.Topic, r.Partition, rec.Offset, err)
			}
			found = true
		}
		return nil
	})
	return newest, found, err
}
