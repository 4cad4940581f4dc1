package portable

import (
	"encoding/binary"
	"fmt"
	"math"

	"oncebus/dedup"
)

// Row is a live row, with the index that its task has in Header.Tasks.
type Row struct {
	dedup.Row

	Task int
}

// Flags of a body:
const (
	bodyNamespace = 1 << iota
	bodyTask
	bodyDetails
	bodyFlags = bodyNamespace | bodyTask | bodyDetails
)

// appendBody appends the body of row r. before is the previous row of the block; first says that r is the first
// row of the block.
func appendBody(dst []byte, r, before *Row, first bool) []byte {
	var flags byte
	if first || r.NamespaceID != before.NamespaceID {
		flags |= bodyNamespace
	}
	if first || r.Task != before.Task {
		flags |= bodyTask
	}
	details := r.DetailFlags()
	if r.Status != dedup.Seen || details != 0 {
		flags |= bodyDetails
	}
	dst = append(dst, flags)
	if flags&bodyNamespace != 0 {
		dst = append(dst, r.NamespaceID)
	}
	if flags&bodyTask != 0 {
		dst = binary.AppendUvarint(dst, uint64(r.Task))
	}
	dst = binary.AppendVarint(dst, r.First-before.First) // an overflow wraps around here and back in readBody
	if flags&bodyDetails != 0 {
		dst = r.AppendDetails(append(dst, byte(r.Status), details))
	}
	return dst
}

// readBody reads a body into r, which has the previous row of the block.
func (r *Row) readBody(b []byte, first bool) (rest []byte, err error) {
	c := dedup.NewCursor(b)
	flags := c.Byte()
	if flags&^byte(bodyFlags) != 0 || first && flags&(bodyNamespace|bodyTask) != bodyNamespace|bodyTask {
		c.Fail()
	}
	if flags&bodyNamespace != 0 {
		r.NamespaceID = c.Byte()
	}
	if flags&bodyTask != 0 {
		r.Task = int(c.Uvarint(math.MaxInt32))
	}
	r.First += c.Varint()
	r.Status, r.Fingerprint, r.Attempt, r.Shift, r.Result, r.HasResult = dedup.Seen, 0, 0, 0, nil, false
	var detailFlags byte
	if flags&bodyDetails != 0 {
		r.Status = dedup.Status(c.Byte())
		detailFlags = c.Byte()
	}
	if c.Bad() || r.Status > dedup.Freed {
		return nil, fmt.Errorf("%w: a body is cut short or out of range", ErrFile)
	}
	rest = b[len(b)-c.Left():]
	if flags&bodyDetails == 0 {
		return rest, nil
	}
	n, err := r.DecodeDetails(detailFlags, rest)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFile, err)
	}
	return rest[n:], nil
}
