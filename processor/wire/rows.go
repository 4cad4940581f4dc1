package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
)

// The changelog has four kinds of records: checkpoints, single rows (whose key is the digest), packs of
// rows, and seed counts.

// packPrefix begins the record key of a pack.
const packPrefix = "rows/"

// PackKeyBytes is the length of a pack's record key. No digest and no key of a checkpoint has this
// length.
const PackKeyBytes = len(packPrefix) + 8 + 4

// AppendPackKey appends the record key of the nth pack in a transaction. offset is the changelog offset
// of the task's state at the beginning of the transaction. Each committed transaction moves that
// offset, so no two packs in a changelog have the same key, and compaction removes none (hazard T16).
func AppendPackKey(dst []byte, offset int64, n uint32) []byte {
	dst = binary.BigEndian.AppendUint64(append(dst, packPrefix...), uint64(offset))
	return binary.BigEndian.AppendUint32(dst, n)
}

// IsPack reports whether a changelog record is a pack of rows.
func IsPack(rec *kgo.Record) bool {
	return len(rec.Key) == PackKeyBytes && string(rec.Key[:len(packPrefix)]) == packPrefix
}

// ErrChangelogKey is wrapped by the error about a changelog record that is neither a row, nor a pack,
// nor a checkpoint.
var ErrChangelogKey = errors.New("only oncebus may write this topic")

// RowsOf yields the rows of a changelog record that is not a checkpoint, in the order in which they
// were stored. A row is valid until the next one is yielded. Errors wrap ErrChangelogKey or
// dedup.ErrRow.
func RowsOf(rec *kgo.Record) iter.Seq2[*dedup.Row, error] {
	switch {
	case IsPack(rec):
		return dedup.PackedRows(rec.Value)
	case IsSeedCounts(rec):
		return noRows()
	}
	return func(yield func(*dedup.Row, error) bool) {
		if len(rec.Key) != len(dedup.Digest{}) {
			yield(nil, fmt.Errorf("a key of %d bytes: %w", len(rec.Key), ErrChangelogKey))
			return
		}
		row, err := dedup.DecodeValue(dedup.Digest(rec.Key), rec.Value)
		yield(&row, err)
	}
}
