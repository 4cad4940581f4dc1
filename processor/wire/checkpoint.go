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

<<<<<<< ours
const checkpointVersion = 1
||||||| base
// The first version has no counts of keys: a task that goes on from it counts
// the rows of its store.
// Only while events that passed unchecked are still to be recorded there is
// something in it that an older build must not pass over.
const uncountedCheckpointVersion, checkpointVersion, passedCheckpointVersion = 1, 3, 4
=======
// Version 1 has no key counts: the task counts the rows of its store. Version 4 has
// bypassed offsets. Older builds must refuse it, or they emit those events again.
const uncountedCheckpointVersion, checkpointVersion, bypassedCheckpointVersion = 1, 3, 4
>>>>>>> theirs

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

<<<<<<< ours
// Flags of an encoded checkpoint.
const (
	flagCounted = 1 << iota
	flagBypassed
	flagDeadLettered
	checkpointFlags = flagCounted | flagBypassed | flagDeadLettered
)

// Append appends the encoding of c:
//
//	version 1 | flags 1 | next varint | epoch varint | sequence varint |
//	[namespaces with bypassed offsets 1 | for each: id 1, offset uvarint] |
//	[ranges uvarint | for each: gap to the one before, length, uvarint] |
//	[length of the counts uvarint | counts] |
//	for each namespace with a stream time: id 1, stream time varint
||||||| base
=======
// Append appends the encoded checkpoint to dst.
>>>>>>> theirs
func (c *Checkpoint) Append(dst []byte) []byte {
<<<<<<< ours
	var flags byte
	if c.Counted {
		flags |= flagCounted
||||||| base
	switch {
	case len(c.Bypassed) > 0:
		dst = append(dst, passedCheckpointVersion)
	case c.Counted:
		dst = append(dst, checkpointVersion)
	default:
		dst = append(dst, uncountedCheckpointVersion)
=======
	switch {
	case len(c.Bypassed) > 0:
		dst = append(dst, bypassedCheckpointVersion)
	case c.Counted:
		dst = append(dst, checkpointVersion)
	default:
		dst = append(dst, uncountedCheckpointVersion)
>>>>>>> theirs
	}
	if len(c.Bypassed) > 0 {
		flags |= flagBypassed
		if len(c.DeadLettered) > 0 {
			flags |= flagDeadLettered
		}
	}
	dst = append(dst, checkpointVersion, flags)
	dst = binary.AppendVarint(dst, c.Next)
	dst = binary.AppendVarint(dst, int64(c.Epoch))
	dst = binary.AppendVarint(dst, c.Sequence)
	if flags&flagBypassed != 0 {
		dst = append(dst, byte(len(c.Bypassed)))
		for _, p := range c.Bypassed {
			dst = binary.AppendUvarint(append(dst, p.Class), uint64(p.To))
		}
	}
	if flags&flagDeadLettered != 0 {
		dst = binary.AppendUvarint(dst, uint64(len(c.DeadLettered)))
		end := int64(0)
		for _, s := range c.DeadLettered {
			dst = binary.AppendUvarint(dst, uint64(s.from-end))
			dst = binary.AppendUvarint(dst, uint64(s.to-s.from))
			end = s.to
		}
	}
	if flags&flagCounted != 0 {
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

<<<<<<< ours
// DropBypassed drops what next has caught up with.
||||||| base
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
=======
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
>>>>>>> theirs
func (c *Checkpoint) DropBypassed() {
	if len(c.Bypassed) > 0 && !slices.ContainsFunc(c.Bypassed, func(p BypassedOffset) bool { return p.To > c.Next }) {
		c.Bypassed, c.DeadLettered = nil, nil
		return
	}
	if c.DeadLettered = c.DeadLettered[c.endingAt(c.Next+1):]; len(c.DeadLettered) == 0 {
		c.DeadLettered = nil
	}
}

<<<<<<< ours
// DecodeCheckpoint decodes what Append wrote. The error wraps ErrCheckpoint.
||||||| base
=======
// DecodeCheckpoint decodes a checkpoint. Its errors wrap ErrCheckpoint.
>>>>>>> theirs
func DecodeCheckpoint(b []byte) (Checkpoint, error) {
	var c Checkpoint
<<<<<<< ours
	r := dedup.NewCursor(b)
	version, flags := r.Byte(), r.Byte()
	if !r.Bad() && (version != checkpointVersion || flags&^byte(checkpointFlags) != 0) {
		return c, fmt.Errorf("%w: version %d with flags %#x, this build reads %d with %#x", ErrCheckpoint, version, flags, checkpointVersion, checkpointFlags)
||||||| base
	if len(b) == 0 || b[0] != uncountedCheckpointVersion && b[0] != checkpointVersion && b[0] != passedCheckpointVersion {
		return c, fmt.Errorf("%w: %d bytes, want version %d, %d or %d", ErrCheckpoint, len(b),
			uncountedCheckpointVersion, checkpointVersion, passedCheckpointVersion)
=======
	if len(b) == 0 || b[0] != uncountedCheckpointVersion && b[0] != checkpointVersion && b[0] != bypassedCheckpointVersion {
		return c, fmt.Errorf("%w: %d bytes, want version %d, %d or %d", ErrCheckpoint, len(b),
			uncountedCheckpointVersion, checkpointVersion, bypassedCheckpointVersion)
>>>>>>> theirs
	}
	next, epoch, sequence := r.Varint(), r.Varint(), r.Varint()
	if next < 0 || epoch < -1 || epoch > math.MaxInt32 {
		return c, fmt.Errorf("%w: next offset %d, epoch %d", ErrCheckpoint, next, epoch)
	}
	c.Next, c.Epoch, c.Sequence = next, int32(epoch), sequence
	if flags&flagBypassed != 0 {
		c.decodeBypassed(&r)
	}
<<<<<<< ours
	if flags&flagDeadLettered != 0 {
		c.decodeDeadLettered(&r)
||||||| base
	c.Next, c.Epoch, c.Sequence = fields[0], int32(fields[1]), fields[2]
	if version == passedCheckpointVersion {
		var err error
		if b, err = c.decodeBypassed(b); err != nil {
			return c, err
		}
=======
	c.Next, c.Epoch, c.Sequence = fields[0], int32(fields[1]), fields[2]
	if version == bypassedCheckpointVersion {
		var err error
		if b, err = c.decodeBypassed(b); err != nil {
			return c, err
		}
>>>>>>> theirs
	}
	if c.Counted = flags&flagCounted != 0; c.Counted {
		c.Counts = string(r.Bytes(int(r.Uvarint(uint64(r.Left())))))
	}
<<<<<<< ours
	for r.Left() > 0 && !r.Bad() {
		class := r.Byte()
		c.StreamTimes.At[class], c.StreamTimes.Has[class] = r.Varint(), true
	}
	if r.Bad() {
		return Checkpoint{}, fmt.Errorf("%w: cut short or out of range in %d bytes", ErrCheckpoint, len(b))
||||||| base
	for len(b) > 0 {
		class := b[0]
		v, n := binary.Varint(b[1:])
		if n <= 0 {
			return c, fmt.Errorf("%w: cut short in the stream time of class %d", ErrCheckpoint, class)
		}
		c.StreamTimes.At[class], c.StreamTimes.Has[class] = v, true
		b = b[1+n:]
=======
	for len(b) > 0 {
		class := b[0]
		v, n := binary.Varint(b[1:])
		if n <= 0 {
			return c, fmt.Errorf("%w: cut short in the stream time of namespace id %d", ErrCheckpoint, class)
		}
		c.StreamTimes.At[class], c.StreamTimes.Has[class] = v, true
		b = b[1+n:]
>>>>>>> theirs
	}
	return c, nil
}

<<<<<<< ours
func (c *Checkpoint) decodeBypassed(r *dedup.Cursor) {
	n := r.Byte()
	if n == 0 {
		r.Fail()
||||||| base
// decodeBypassed reads what appendPassed wrote and returns what follows.
func (c *Checkpoint) decodeBypassed(b []byte) ([]byte, error) {
	cut := fmt.Errorf("%w: cut short or out of range in what passed", ErrCheckpoint)
	if len(b) < 2 || b[1]&^(flagCounted|flagWithheld) != 0 {
		return nil, cut
=======
// decodeBypassed decodes what appendBypassed wrote, and returns the bytes after it.
func (c *Checkpoint) decodeBypassed(b []byte) ([]byte, error) {
	cut := fmt.Errorf("%w: cut short or out of range in the bypassed offsets", ErrCheckpoint)
	if len(b) < 2 || b[1]&^(flagCounted|flagDeadLettered) != 0 {
		return nil, cut
>>>>>>> theirs
	}
	for ; n > 0 && !r.Bad(); n-- {
		c.Bypassed = append(c.Bypassed, BypassedOffset{r.Byte(), int64(r.Uvarint(math.MaxInt64))})
	}
<<<<<<< ours
||||||| base
	if flags&flagWithheld == 0 {
		return b, nil
	}
	if b = c.decodeDeadLettered(b); b == nil || len(c.Bypassed) == 0 {
		return nil, cut
	}
	return b, nil
=======
	if flags&flagDeadLettered == 0 {
		return b, nil
	}
	if b = c.decodeDeadLettered(b); b == nil || len(c.Bypassed) == 0 {
		return nil, cut
	}
	return b, nil
>>>>>>> theirs
}

<<<<<<< ours
// decodeDeadLettered reads the ranges, which have a gap between them.
func (c *Checkpoint) decodeDeadLettered(r *dedup.Cursor) {
	n := r.Uvarint(deadLetteredMax)
	if n == 0 || len(c.Bypassed) == 0 {
		r.Fail()
	}
	for end := int64(0); n > 0 && !r.Bad(); n-- {
		gap := int64(r.Uvarint(uint64(math.MaxInt64 - end)))
		from := end + gap
		length := int64(r.Uvarint(uint64(math.MaxInt64 - from)))
		if length == 0 || gap == 0 && len(c.DeadLettered) > 0 {
			r.Fail()
||||||| base
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
=======
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
>>>>>>> theirs
		}
		end = from + length
		c.DeadLettered = append(c.DeadLettered, OffsetRange{from, end})
	}
}
