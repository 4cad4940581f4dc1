package processor

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"oncebus/dedup"
)

// checkpointKey is the changelog key of a task's checkpoint row. Rows of
// dedup keys have 16 bytes, so the two never meet.
const checkpointKey = "checkpoint"

// The first version has no counts of keys: a task that goes on from it counts
// the rows of its store.
// Only while events that passed unchecked are still to be recorded there is
// something in it that an older build must not pass over.
const uncountedCheckpointVersion, checkpointVersion, passedCheckpointVersion = 1, 3, 4

// checkpoint is a task's place in its input, written to its changelog in the
// transaction of everything it did up to there (D2). It makes offset and
// state comparable: whatever the group says, input below next was processed.
type checkpoint struct {
	// next is the input offset to process next.
	next int64
	// epoch is the leader epoch of the record before next; -1 if unknown.
	epoch int32
	// sequence counts the task's committed transactions.
	sequence int64
	// streamTimes holds the stream time of every class that has one, in ms.
	streamTimes streamTimes
	// counts are what the task counts of its keys, encoded, if counted says so.
	counts  string
	counted bool
	// passed says up to which input offset the events of a class went out
	// unchecked, where that is beyond next. They are not emitted again.
	passed []passed
	// withheld are the stretches beyond next, ascending and apart, of what did
	// not go out but became a dead letter: it is not recorded.
	withheld []stretch
}

// stretch is the offsets from one up to but without another.
type stretch struct{ from, to int64 }

// withheldMax bounds the stretches that a checkpoint keeps, to some 10 KB. What
// would need one more counts as gone out.
const withheldMax = 4096

// passed is an input offset of a class; see checkpoint.
type passed struct {
	class uint8
	to    int64
}

// passedTo returns up to which offset a class's events have gone out: next, or
// beyond it.
func (c *checkpoint) passedTo(class uint8) int64 {
	for _, p := range c.passed {
		if p.class == class {
			return max(p.to, c.next)
		}
	}
	return c.next
}

// withhold notes that what stands at these offsets does not go out.
func (c *checkpoint) withhold(from, to int64) {
	at := c.endingAt(from)
	end := at
	for ; end < len(c.withheld) && c.withheld[end].from <= to; end++ {
		from, to = min(from, c.withheld[end].from), max(to, c.withheld[end].to)
	}
	if end > at || len(c.withheld) < withheldMax {
		c.withheld = slices.Replace(c.withheld, at, end, stretch{from, to})
	}
}

// withholds tells whether what stands at an offset did not go out.
func (c *checkpoint) withholds(offset int64) bool {
	at := c.endingAt(offset + 1)
	return at < len(c.withheld) && c.withheld[at].from <= offset
}

// endingAt returns the first stretch that ends at an offset or later.
func (c *checkpoint) endingAt(offset int64) int {
	at, _ := slices.BinarySearchFunc(c.withheld, offset, func(s stretch, offset int64) int { return cmp.Compare(s.to, offset) })
	return at
}

// streamTimes is the highest event time seen, by class. Each namespace has
// its own, so that one route's backlog makes no other route's events late.
type streamTimes struct {
	at  [256]int64
	has [256]bool
}

// of returns the stream time of a class.
func (s *streamTimes) of(class uint8) int64 {
	if !s.has[class] {
		return dedup.NoStreamTime
	}
	return s.at[class]
}

var errCheckpoint = errors.New("corrupt checkpoint")

func (c *checkpoint) append(dst []byte) []byte {
	switch {
	case len(c.passed) > 0:
		dst = append(dst, passedCheckpointVersion)
	case c.counted:
		dst = append(dst, checkpointVersion)
	default:
		dst = append(dst, uncountedCheckpointVersion)
	}
	dst = binary.AppendVarint(dst, c.next)
	dst = binary.AppendVarint(dst, int64(c.epoch))
	dst = binary.AppendVarint(dst, c.sequence)
	if len(c.passed) > 0 {
		dst = c.appendPassed(dst)
	}
	if c.counted {
		dst = binary.AppendUvarint(dst, uint64(len(c.counts)))
		dst = append(dst, c.counts...)
	}
	for class, has := range c.streamTimes.has {
		if has {
			dst = append(dst, byte(class))
			dst = binary.AppendVarint(dst, c.streamTimes.at[class])
		}
	}
	return dst
}

// Flags of what passed. A build that does not know one refuses it.
const flagCounted, flagWithheld = 1, 2

// appendPassed appends how many classes have events that passed, flags, and for
// each class how far; then, if the flags say so, how many stretches are withheld,
// and of each how far it is from the one before, and its length.
func (c *checkpoint) appendPassed(dst []byte) []byte {
	var flags byte
	if c.counted {
		flags |= flagCounted
	}
	if len(c.withheld) > 0 {
		flags |= flagWithheld
	}
	dst = append(dst, byte(len(c.passed)), flags)
	for _, p := range c.passed {
		dst = binary.AppendUvarint(append(dst, p.class), uint64(p.to))
	}
	if len(c.withheld) == 0 {
		return dst
	}
	dst = binary.AppendUvarint(dst, uint64(len(c.withheld)))
	end := int64(0)
	for _, s := range c.withheld {
		dst = binary.AppendUvarint(dst, uint64(s.from-end))
		dst = binary.AppendUvarint(dst, uint64(s.to-s.from))
		end = s.to
	}
	return dst
}

// forgetPassed drops what next has caught up with.
func (c *checkpoint) forgetPassed() {
	if len(c.passed) > 0 && !slices.ContainsFunc(c.passed, func(p passed) bool { return p.to > c.next }) {
		c.passed, c.withheld = nil, nil
		return
	}
	if c.withheld = c.withheld[c.endingAt(c.next+1):]; len(c.withheld) == 0 {
		c.withheld = nil
	}
}

func decodeCheckpoint(b []byte) (checkpoint, error) {
	var c checkpoint
	if len(b) == 0 || b[0] != uncountedCheckpointVersion && b[0] != checkpointVersion && b[0] != passedCheckpointVersion {
		return c, fmt.Errorf("%w: %d bytes, want version %d, %d or %d", errCheckpoint, len(b),
			uncountedCheckpointVersion, checkpointVersion, passedCheckpointVersion)
	}
	version := b[0]
	c.counted = version == checkpointVersion
	b = b[1:]
	var fields [3]int64
	for i := range fields {
		v, n := binary.Varint(b)
		if n <= 0 {
			return c, fmt.Errorf("%w: cut short in field %d", errCheckpoint, i)
		}
		fields[i], b = v, b[n:]
	}
	if fields[0] < 0 || fields[1] < -1 || fields[1] > 1<<31-1 {
		return c, fmt.Errorf("%w: next offset %d, epoch %d", errCheckpoint, fields[0], fields[1])
	}
	c.next, c.epoch, c.sequence = fields[0], int32(fields[1]), fields[2]
	if version == passedCheckpointVersion {
		var err error
		if b, err = c.decodePassed(b); err != nil {
			return c, err
		}
	}
	if c.counted {
		size, n := binary.Uvarint(b)
		if n <= 0 || size > uint64(len(b)-n) {
			return c, fmt.Errorf("%w: cut short in the counts of keys", errCheckpoint)
		}
		c.counts, b = string(b[n:n+int(size)]), b[n+int(size):]
	}
	for len(b) > 0 {
		class := b[0]
		v, n := binary.Varint(b[1:])
		if n <= 0 {
			return c, fmt.Errorf("%w: cut short in the stream time of class %d", errCheckpoint, class)
		}
		c.streamTimes.at[class], c.streamTimes.has[class] = v, true
		b = b[1+n:]
	}
	return c, nil
}

// decodePassed reads what appendPassed wrote and returns what follows.
func (c *checkpoint) decodePassed(b []byte) ([]byte, error) {
	cut := fmt.Errorf("%w: cut short or out of range in what passed", errCheckpoint)
	if len(b) < 2 || b[1]&^(flagCounted|flagWithheld) != 0 {
		return nil, cut
	}
	n, flags := int(b[0]), b[1]
	c.counted, b = flags&flagCounted != 0, b[2:]
	for range n {
		if len(b) < 2 {
			return nil, cut
		}
		to, size := binary.Uvarint(b[1:])
		if size <= 0 || to > 1<<63-1 {
			return nil, cut
		}
		c.passed = append(c.passed, passed{b[0], int64(to)})
		b = b[1+size:]
	}
	if flags&flagWithheld == 0 {
		return b, nil
	}
	if b = c.decodeWithheld(b); b == nil || len(c.passed) == 0 {
		return nil, cut
	}
	return b, nil
}

// decodeWithheld returns what follows, nil if there is not what should be.
func (c *checkpoint) decodeWithheld(b []byte) []byte {
	n, size := binary.Uvarint(b)
	if size <= 0 || n == 0 || n > withheldMax {
		return nil
	}
	b = b[size:]
	for end := int64(0); n > 0; n-- {
		gap, size := binary.Uvarint(b)
		if size <= 0 || gap > uint64(math.MaxInt64-end) || gap == 0 && len(c.withheld) > 0 {
			return nil
		}
		b = b[size:]
		from := end + int64(gap)
		length, size := binary.Uvarint(b)
		if size <= 0 || length == 0 || length > uint64(math.MaxInt64-from) {
			return nil
		}
		b, end = b[size:], from+int64(length)
		c.withheld = append(c.withheld, stretch{from, end})
	}
	return b
}
