package transfer

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/wire"
)

// A snapshot is a task as of its newest transaction: everything in its changelog up to an offset.
type snapshot struct {
	id         app.TaskID
	reader     *kafka.Reader
	start, end int64
	checkpoint wire.Checkpoint
	ran        bool // the task has a checkpoint, so it has run
	horizons   [256]int64
}

// errMoved means that rows of a snapshot disappeared while it was read, because the app compacted or trimmed
// its changelog.
var errMoved = errors.New("the changelog was compacted or trimmed while it was read")

// snapshotOf finds out where a changelog ends, and reads the newest checkpoint before that.
func (c *Client) snapshotOf(ctx context.Context, id app.TaskID) (*snapshot, error) {
	s := &snapshot{id: id, reader: c.changelog(id)}
	var err error
	if s.start, s.end, err = s.reader.Bounds(ctx); err != nil {
		return nil, err
	}
	fold, err := app.CheckpointBefore(ctx, s.reader, s.start, s.end)
	switch {
	case errors.Is(err, kerr.OffsetOutOfRange):
		return nil, errMoved
	case err != nil:
		return nil, err
	case fold.Has() && !fold.IsWhole():
		return nil, kafka.OperatorErrorf("task %v: its changelog has lost the newest whole checkpoint; its next transaction writes one", id)
	case fold.Has():
		s.checkpoint, s.ran = fold.Newest(), true
	case s.start > 0:
		return nil, kafka.OperatorErrorf("task %v: its changelog has lost all of its records; see 'oncebus accept'", id)
	}
	if c := &s.checkpoint; s.ran && (c.Incomplete || s.start > c.Floor) {
		return nil, kafka.OperatorErrorf("task %v: its changelog has lost rows, it begins at offset %d and states the floor %d: start the service, which writes them again from its local state, or see 'oncebus accept'", id, s.start, c.Floor)
	}
	s.horizons = c.app.Horizons(&s.checkpoint)
	for _, known := range s.checkpoint.Known {
		s.horizons[known.NamespaceID] = max(s.horizons[known.NamespaceID], known.Since)
	}
	return s, nil
}

// lives reports whether a row decides about its key as of the snapshot. A row of an earlier window decides only
// about late copies, so lives returns false for it, and the file does not contain it.
func (s *snapshot) lives(row *dedup.Row) bool {
	return !row.Earlier && row.Status != dedup.Freed && row.First >= s.horizons[row.NamespaceID]
}

// slices returns in how many parts the rows of the snapshot must be read so that a part has at most keys keys.
func (s *snapshot) slices(keys int64) uint32 {
	return uint32(1 + max(0, s.checkpoint.Rows-s.checkpoint.FloorRows)/max(1, keys))
}

// sliceOf returns the number of the part, of n parts, to which a digest belongs. Digests are random, so the
// parts are about equal.
func sliceOf(d *dedup.Digest, n uint32) uint32 {
	return uint32(uint64(binary.BigEndian.Uint32(d[:])) * uint64(n) >> 32)
}

// rowID identifies a row of a changelog: by the offset of its record, and its index in that record.
type rowID uint64

// packRowsMax is the largest number of rows in a changelog record.
const packRowsMax = 1 << 16

// rows calls each with every row of the snapshot, in the order of the changelog. watch is called with the
// position after each fetch.
func (s *snapshot) rows(ctx context.Context, watch func(position int64), each func(*dedup.Row, rowID) error) error {
	err := s.reader.Read(ctx, s.start, s.end, func(records []*kgo.Record, position int64) error {
		for _, rec := range records {
			if rec.Offset >= s.end || wire.IsCheckpoint(rec.Key) {
				continue
			}
			if err := eachRow(rec, each); err != nil {
				return fmt.Errorf("%s/%d/%d: %w", rec.Topic, rec.Partition, rec.Offset, err)
			}
		}
		watch(min(position, s.end))
		return nil
	})
	if errors.Is(err, kerr.OffsetOutOfRange) {
		return errMoved
	}
	return err
}

// eachRow calls each with the rows of a changelog record. A row beyond packRowsMax is an error, because it
// would have the same id as a row of the next record.
func eachRow(rec *kgo.Record, each func(*dedup.Row, rowID) error) error {
	n := uint64(0)
	for row, err := range wire.RowsOf(rec) {
		if err == nil && n == packRowsMax {
			err = fmt.Errorf("%w: a pack of more than %d rows", dedup.ErrRow, packRowsMax)
		}
		if err == nil {
			err = each(row, rowID(uint64(rec.Offset)*packRowsMax+n))
		}
		if err != nil {
			return err
		}
		n++
	}
	return nil
}

// live calls each with every live row of the snapshot once: with the newest row of each key, in the order of
// the changelog within each slice. It reads the changelog twice per slice: first to find out which row is the
// newest of each key, then to pass these rows on.
func (s *snapshot) live(ctx context.Context, keys int64, watch func(position int64), each func(*dedup.Row) error) error {
	n := s.slices(keys)
	for slice := range n {
		newest := map[dedup.Digest]rowID{}
		err := s.rows(ctx, watch, func(row *dedup.Row, id rowID) error {
			if sliceOf(&row.Digest, n) == slice {
				newest[row.Digest] = id
			}
			return nil
		})
		if err != nil {
			return err
		}
		found := 0
		err = s.rows(ctx, watch, func(row *dedup.Row, id rowID) error {
			if sliceOf(&row.Digest, n) != slice || newest[row.Digest] != id {
				return nil
			}
			if found++; !s.lives(row) {
				return nil
			}
			return each(row)
		})
		if err != nil {
			return err
		}
		if found != len(newest) {
			return errMoved
		}
	}
	return nil
}
