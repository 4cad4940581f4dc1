package wire

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"oncebus/dedup"
)

// CheckpointKey is the changelog key of a task's checkpoint row. The keys of other
// rows have 16 bytes, so the two never collide.
const CheckpointKey = "checkpoint"

// Version 1 has no key counts: the task counts the rows of its store. Version 4 has
// bypassed offsets. Older builds must refuse it, or they emit those events again.
const uncountedCheckpointVersion, checkpointVersion, bypassedCheckpointVersion = 1, 3, 4

// Checkpoint is a task's position in its input. The task writes it to its changelog
// in the transaction of all that it processed up to there (D2). Input below Next was
// processed, whatever offset the group has.
type Checkpoint struct {
	// Next is the input offset to process next.
	Next int64
	// Epoch is the leader epoch of the record before next; -1 if unknown.
	Epoch int32
	// Sequence counts the task's committed transactions.
	Sequence int64
	// StreamTimes has the stream time of each namespace id that has one, in ms.
	StreamTimes streamTimes
	// Counts are the encoded key counts of the task, if Counted is set.
	Counts  string
	Counted bool
	// Bypassed has, for each namespace id, the input offset beyond Next up to
	// which its events were forwarded unchecked. They are not emitted again.
	Bypassed []BypassedOffset
	// DeadLettered has the offset ranges beyond Next, ascending and disjoint,
	// whose records became dead letters. A restore stores no row for them.
	DeadLettered []OffsetRange
}

// OffsetRange is a range of offsets, without its end.
type OffsetRange struct{ from, to int64 }

// deadLetteredMax is the most offset ranges in a checkpoint, some 10 KB. A record
// that would need one more counts as forwarded.
const deadLetteredMax = 4096

// BypassedOffset is the input offset before which the events of a namespace id were
// forwarded unchecked.
type BypassedOffset struct {
	Class uint8 // namespace id
	To    int64
}

// BypassedTo returns the offset before which a namespace id's events were emitted or
// forwarded, at least Next.
func (c *Checkpoint) BypassedTo(class uint8) int64 {
	for _, p := range c.Bypassed {
		if p.Class == class {
			return max(p.To, c.Next)
		}
	}
	return c.Next
}

// DeadLetter notes that the records of an offset range became dead letters.
func (c *Checkpoint) DeadLetter(from, to int64) {
	at := c.endingAt(from)
	end := at
	for ; end < len(c.DeadLettered) && c.DeadLettered[end].from <= to; end++ {
		from, to = min(from, c.DeadLettered[end].from), max(to, c.DeadLettered[end].to)
	}
	if end > at || len(c.DeadLettered) < deadLetteredMax {
		c.DeadLettered = slices.Replace(c.DeadLettered, at, end, OffsetRange{from, to})
	}
}

// IsDeadLettered reports whether the record at an offset became a dead letter.
func (c *Checkpoint) IsDeadLettered(offset int64) bool {
	at := c.endingAt(offset + 1)
	return at < len(c.DeadLettered) && c.DeadLettered[at].from <= offset
}

// endingAt returns the index of the first offset range that ends at an offset or
// later.
func (c *Checkpoint) endingAt(offset int64) int {
	at, _ := slices.BinarySearchFunc(c.DeadLettered, offset, func(s OffsetRange, offset int64) int { return cmp.Compare(s.to, offset) })
	return at
}

// streamTimes has the highest event time by namespace id. Each namespace has its
// own, so that one route's backlog does not make the events of another late.
type streamTimes struct {
	At  [256]int64
	Has [256]bool
}

// Of returns the stream time of a namespace id in ms, or dedup.NoStreamTime.
func (s *streamTimes) Of(class uint8) int64 {
	if !s.Has[class] {
		return dedup.NoStreamTime
	}
	return s.At[class]
}

// ErrCheckpoint is wrapped by every error of a checkpoint that cannot be decoded.
var ErrCheckpoint = errors.New("corrupt checkpoint")

// Append appends the encoded checkpoint to dst.
func (c *Checkpoint) Append(dst []byte) []byte {
	switch {
	case len(c.Bypassed) > 0:
		dst = append(dst, bypassedCheckpointVersion)
	case c.Counted:
		dst = append(dst, checkpointVersion)
	default:
		dst = append(dst, uncountedCheckpointVersion)
	}
	dst = binary.AppendVarint(dst, c.Next)
	dst = binary.AppendVarint(dst, int64(c.Epoch))
	dst = binary.AppendVarint(dst, c.Sequence)
	if len(c.Bypassed) > 0 {
		dst = c.appendBypassed(dst)
	}
	if c.Counted {
		dst = binary.AppendUvarint(dst, uint64(len(c.Counts)))
		dst = append(dst, c.Counts...)
	}
	for class, has := range c.StreamTimes.Has {
		if has {
			dst = append(dst, byte(class))
			dst = binary.AppendVarint(dst, c.StreamTimes.At[class])
		}
	}
	return dst
}

// Flags of the bypassed part. A build refuses an unknown one.
const flagCounted, flagDeadLettered = 1, 2

// appendBypassed appends the number of bypassed namespaces, the flags, and of each
// namespace its id and offset. With flagDeadLettered the number of offset ranges
// follows, and of each its distance from the one before and its length.
func (c *Checkpoint) appendBypassed(dst []byte) []byte {
	var flags byte
	if c.Counted {
		flags |= flagCounted
	}
	if len(c.DeadLettered) > 0 {
		flags |= flagDeadLettered
	}
	dst = append(dst, byte(len(c.Bypassed)), flags)
	for _, p := range c.Bypassed {
		dst = binary.AppendUvarint(append(dst, p.Class), uint64(p.To))
	}
	if len(c.DeadLettered) == 0 {
		return dst
	}
	dst = binary.AppendUvarint(dst, uint64(len(c.DeadLettered)))
	end := int64(0)
	for _, s := range c.DeadLettered {
		dst = binary.AppendUvarint(dst, uint64(s.from-end))
		dst = binary.AppendUvarint(dst, uint64(s.to-s.from))
		end = s.to
	}
	return dst
}

// DropBypassed drops the bypassed offsets and dead letters below Next.
func (c *Checkpoint) DropBypassed() {
	if len(c.Bypassed) > 0 && !slices.ContainsFunc(c.Bypassed, func(p BypassedOffset) bool { return p.To > c.Next }) {
		c.Bypassed, c.DeadLettered = nil, nil
		return
	}
	if c.DeadLettered = c.DeadLettered[c.endingAt(c.Next+1):]; len(c.DeadLettered) == 0 {
		c.DeadLettered = nil
	}
}

// DecodeCheckpoint decodes a checkpoint. Its errors wrap ErrCheckpoint.
func DecodeCheckpoint(b []byte) (Checkpoint, error) {
	var c Checkpoint
	if len(b) == 0 || b[0] != uncountedCheckpointVersion && b[0] != checkpointVersion && b[0] != bypassedCheckpointVersion {
		return c, fmt.Errorf("%w: %d bytes, want version %d, %d or %d", ErrCheckpoint, len(b),
			uncountedCheckpointVersion, checkpointVersion, bypassedCheckpointVersion)
	}
	version := b[0]
	c.Counted = version == checkpointVersion
	b = b[1:]
	var fields [3]int64
	for i := range fields {
		v, n := binary.Varint(b)
		if n <= 0 {
			return c, fmt.Errorf("%w: cut short in field %d", ErrCheckpoint, i)
		}
		fields[i], b = v, b[n:]
	}
	if fields[0] < 0 || fields[1] < -1 || fields[1] > 1<<31-1 {
		return c, fmt.Errorf("%w: next offset %d, epoch %d", ErrCheckpoint, fields[0], fields[1])
	}
	c.Next, c.Epoch, c.Sequence = fields[0], int32(fields[1]), fields[2]
	if version == bypassedCheckpointVersion {
		var err error
		if b, err = c.decodeBypassed(b); err != nil {
			return c, err
		}
	}
	if c.Counted {
		size, n := binary.Uvarint(b)
		if n <= 0 || size > uint64(len(b)-n) {
			return c, fmt.Errorf("%w: cut short in the counts of keys", ErrCheckpoint)
		}
		c.Counts, b = string(b[n:n+int(size)]), b[n+int(size):]
	}
	for len(b) > 0 {
		class := b[0]
		v, n := binary.Varint(b[1:])
		if n <= 0 {
			return c, fmt.Errorf("%w: cut short in the stream time of namespace id %d", ErrCheckpoint, class)
		}
		c.StreamTimes.At[class], c.StreamTimes.Has[class] = v, true
		b = b[1+n:]
	}
	return c, nil
}

// decodeBypassed decodes what appendBypassed wrote, and returns the bytes after it.
func (c *Checkpoint) decodeBypassed(b []byte) ([]byte, error) {
	cut := fmt.Errorf("%w: cut short or out of range in the bypassed offsets", ErrCheckpoint)
	if len(b) < 2 || b[1]&^(flagCounted|flagDeadLettered) != 0 {
		return nil, cut
	}
	n, flags := int(b[0]), b[1]
	c.Counted, b = flags&flagCounted != 0, b[2:]
	for range n {
		if len(b) < 2 {
			return nil, cut
		}
		to, size := binary.Uvarint(b[1:])
		if size <= 0 || to > 1<<63-1 {
			return nil, cut
		}
		c.Bypassed = append(c.Bypassed, BypassedOffset{b[0], int64(to)})
		b = b[1+size:]
	}
	if flags&flagDeadLettered == 0 {
		return b, nil
	}
	if b = c.decodeDeadLettered(b); b == nil || len(c.Bypassed) == 0 {
		return nil, cut
	}
	return b, nil
}

// decodeDeadLettered returns the bytes after the offset ranges, nil if they are
// malformed.
func (c *Checkpoint) decodeDeadLettered(b []byte) []byte {
	n, size := binary.Uvarint(b)
	if size <= 0 || n == 0 || n > deadLetteredMax {
		return nil
	}
	b = b[size:]
	for end := int64(0); n > 0; n-- {
		gap, size := binary.Uvarint(b)
		if size <= 0 || gap > uint64(math.MaxInt64-end) || gap == 0 && len(c.DeadLettered) > 0 {
			return nil
		}
		b = b[size:]
		from := end + int64(gap)
		length, size := binary.Uvarint(b)
		if size <= 0 || length == 0 || length > uint64(math.MaxInt64-from) {
			return nil
		}
		b, end = b[size:], from+int64(length)
		c.DeadLettered = append(c.DeadLettered, OffsetRange{from, end})
	}
	return b
}
