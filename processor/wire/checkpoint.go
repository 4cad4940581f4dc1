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

// CheckpointKey is the changelog key of a task's checkpoint row. Rows of
// dedup keys have 16 bytes, so the two never meet.
const CheckpointKey = "checkpoint"

// The first version has no counts of keys: a task that goes on from it counts
// the rows of its store.
// Only while events that passed unchecked are still to be recorded there is
// something in it that an older build must not pass over.
const uncountedCheckpointVersion, checkpointVersion, passedCheckpointVersion = 1, 3, 4

// Checkpoint is a task's place in its input, written to its changelog in the
// transaction of everything it did up to there (D2). It makes offset and
// state comparable: whatever the group says, input below next was processed.
type Checkpoint struct {
	// Next is the input offset to process next.
	Next int64
	// Epoch is the leader epoch of the record before next; -1 if unknown.
	Epoch int32
	// Sequence counts the task's committed transactions.
	Sequence int64
	// StreamTimes holds the stream time of every class that has one, in ms.
	StreamTimes streamTimes
	// Counts are what the task counts of its keys, encoded, if counted says so.
	Counts  string
	Counted bool
	// Bypassed says up to which input offset the events of a class went out
	// unchecked, where that is beyond next. They are not emitted again.
	Bypassed []BypassedOffset
	// DeadLettered are the stretches beyond next, ascending and apart, of what did
	// not go out but became a dead letter: it is not recorded.
	DeadLettered []OffsetRange
}

// OffsetRange is the offsets from one up to but without another.
type OffsetRange struct{ from, to int64 }

// deadLetteredMax bounds the stretches that a checkpoint keeps, to some 10 KB. What
// would need one more counts as gone out.
const deadLetteredMax = 4096

// BypassedOffset is an input offset of a class; see checkpoint.
type BypassedOffset struct {
	Class uint8
	To    int64
}

// BypassedTo returns up to which offset a class's events have gone out: next, or
// beyond it.
func (c *Checkpoint) BypassedTo(class uint8) int64 {
	for _, p := range c.Bypassed {
		if p.Class == class {
			return max(p.To, c.Next)
		}
	}
	return c.Next
}

// DeadLetter notes that what stands at these offsets does not go out.
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

// IsDeadLettered tells whether what stands at an offset did not go out.
func (c *Checkpoint) IsDeadLettered(offset int64) bool {
	at := c.endingAt(offset + 1)
	return at < len(c.DeadLettered) && c.DeadLettered[at].from <= offset
}

// endingAt returns the first stretch that ends at an offset or later.
func (c *Checkpoint) endingAt(offset int64) int {
	at, _ := slices.BinarySearchFunc(c.DeadLettered, offset, func(s OffsetRange, offset int64) int { return cmp.Compare(s.to, offset) })
	return at
}

// streamTimes is the highest event time seen, by class. Each namespace has
// its own, so that one route's backlog makes no other route's events late.
type streamTimes struct {
	At  [256]int64
	Has [256]bool
}

// Of returns the stream time of a class.
func (s *streamTimes) Of(class uint8) int64 {
	if !s.Has[class] {
		return dedup.NoStreamTime
	}
	return s.At[class]
}

var ErrCheckpoint = errors.New("corrupt checkpoint")

func (c *Checkpoint) Append(dst []byte) []byte {
	switch {
	case len(c.Bypassed) > 0:
		dst = append(dst, passedCheckpointVersion)
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

// Flags of what passed. A build that does not know one refuses it.
const flagCounted, flagWithheld = 1, 2

// appendBypassed appends how many classes have events that passed, flags, and for
// each class how far; then, if the flags say so, how many stretches are withheld,
// and of each how far it is from the one before, and its length.
func (c *Checkpoint) appendBypassed(dst []byte) []byte {
	var flags byte
	if c.Counted {
		flags |= flagCounted
	}
	if len(c.DeadLettered) > 0 {
		flags |= flagWithheld
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

// DropBypassed drops what next has caught up with.
func (c *Checkpoint) DropBypassed() {
	if len(c.Bypassed) > 0 && !slices.ContainsFunc(c.Bypassed, func(p BypassedOffset) bool { return p.To > c.Next }) {
		c.Bypassed, c.DeadLettered = nil, nil
		return
	}
	if c.DeadLettered = c.DeadLettered[c.endingAt(c.Next+1):]; len(c.DeadLettered) == 0 {
		c.DeadLettered = nil
	}
}

func DecodeCheckpoint(b []byte) (Checkpoint, error) {
	var c Checkpoint
	if len(b) == 0 || b[0] != uncountedCheckpointVersion && b[0] != checkpointVersion && b[0] != passedCheckpointVersion {
		return c, fmt.Errorf("%w: %d bytes, want version %d, %d or %d", ErrCheckpoint, len(b),
			uncountedCheckpointVersion, checkpointVersion, passedCheckpointVersion)
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
	if version == passedCheckpointVersion {
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
			return c, fmt.Errorf("%w: cut short in the stream time of class %d", ErrCheckpoint, class)
		}
		c.StreamTimes.At[class], c.StreamTimes.Has[class] = v, true
		b = b[1+n:]
	}
	return c, nil
}

// decodeBypassed reads what appendPassed wrote and returns what follows.
func (c *Checkpoint) decodeBypassed(b []byte) ([]byte, error) {
	cut := fmt.Errorf("%w: cut short or out of range in what passed", ErrCheckpoint)
	if len(b) < 2 || b[1]&^(flagCounted|flagWithheld) != 0 {
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
	if flags&flagWithheld == 0 {
		return b, nil
	}
	if b = c.decodeDeadLettered(b); b == nil || len(c.Bypassed) == 0 {
		return nil, cut
	}
	return b, nil
}

// decodeDeadLettered returns what follows, nil if there is not what should be.
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
