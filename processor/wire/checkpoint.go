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

// CheckpointKey is the changelog key of a task's whole checkpoint. The key of a row is a digest of 16
// bytes, so a row never has this key. AppendCheckpointKey makes the keys of partial checkpoints.
const CheckpointKey = "checkpoint"

// The versions of a whole checkpoint:
//
//   - checkpointVersion has neither claims nor counts of senders.
//   - checkpointVersionClaims has claims.
//   - checkpointVersionSenders has claims and counts of senders. Builds that cannot read it refuse it,
//     so only an app with sender in its routes file writes it.
//   - checkpointVersionSets is the version of every checkpoint of an app at level 2. Its flags say
//     which fields it has.
//
// Version 5 is partialVersion.
const checkpointVersion, checkpointVersionClaims, checkpointVersionSenders, checkpointVersionSets = 3, 4, 6, 7

// Checkpoint is a task's position in its input, with the state that belongs to that position. The task writes it
// to its changelog in the transaction that processes the input before Next (D2). So everything before Next was
// processed, even if the offset of the consumer group is another one.
//
// Copies of a checkpoint share the slices Known, Sources, Senders, Shadows, Tenants and Fences, so these are
// never changed in place.
type Checkpoint struct {
	// Next is the input offset to process next.
	Next int64
	// Epoch is the leader epoch of the record before Next; -1 if unknown.
	Epoch int32
	// Generation counts how often the input topic had been deleted and recreated. Next is an offset of
	// the topic of that generation.
	Generation int64
	// Sequence counts the task's committed transactions.
	Sequence int64
	// Set is the number of the route set by which the task judges. It never decreases. It is 0 at level
	// 1, where the routes file of the process decides.
	Set int64
	// Known has the namespaces whose window changed, ascending by id. An entry stays until the change has no
	// effect any more.
	Known []KnownSince
	// Closed is the number of the switch for which the task was closed; 0 for none. After that switch another
	// generation of the app's partitions continues with the task's rows. The task judges again only if the
	// switch was aborted (package switchover).
	Closed int64
	// Rows counts all rows that the task ever wrote to the changelog, and FloorRows counts those of them that
	// are below Floor. A sweep begins when the difference is too large.
	Rows, FloorRows int64
	// StreamTimes has the stream time of each namespace id that has a stream time, in ms.
	StreamTimes streamTimes
	// Sources says how far the sources of each namespace have been read, ascending by namespace id.
	// Only tasks of the repartition topic of an app at level 2 have it.
	Sources []Sources
	// Counts are the encoded key counts of the task, valid if Counted is true.
	Counts  string
	Counted bool
	// Senders has the duplicates by sender, for each route that counts them.
	Senders []RouteSenders
	// Shadows has the counts of each shadow of the route set.
	Shadows []ShadowCounts
	// Tenants has the accounts of the tenants of each route that has tenants. They are encoded only for
	// an app at level 2.
	Tenants []RouteTenants
	// Bypassed has, for some namespace ids, an input offset beyond Next: a bypass has forwarded the
	// events before that offset unchecked. The task must not emit these events again.
	Bypassed []BypassedOffset
	// DeadLettered has the offset ranges beyond Next, ascending and disjoint, whose records became dead
	// letters during a bypass. After the restore the task stores no row for these records.
	DeadLettered []OffsetRange
	// Floor is the changelog offset below which rows may be missing, because no row below it decides an
	// event any more. A changelog that begins above its floor has lost rows (T9).
	Floor int64
	// Incomplete reports that the changelog lacks rows above its floor, because the task had to rely on
	// its local store. A sweep writes the live rows again; its end makes the changelog complete.
	Incomplete bool
	// Fences are statements about the rows below some changelog offsets (see Fence), ascending by
	// offset, all above Floor.
	Fences []Fence
	// Ahead has the namespaces with rows whose First is later than the stream time and all sources of the
	// namespace, ascending by id, each with the latest of these times. Only a few rows are so late, such as
	// those of clamped events; normally Ahead is empty.
	Ahead []FirstSeen
	// Progress is what the task knows about outcomes and executors. ClaimedAt is the latest broker time, in ms,
	// at which a lease began that may still run; 0 for no lease.
	Progress  Progress
	ClaimedAt int64
	// ProgressAt is the broker time, in ms, of the last progress record; SteppedAt is the broker time
	// of the last jump of broker time. 0 means none.
	ProgressAt, SteppedAt int64
}

// hasClaims reports whether the encoding contains Progress and the times of claims.
func (c *Checkpoint) hasClaims() bool {
	return c.ClaimedAt != 0 || c.ProgressAt != 0 || c.SteppedAt != 0 || !c.Progress.IsEmpty()
}

// OffsetRange is a range of offsets: from, up to but not including to.
type OffsetRange struct{ from, to int64 }

// deadLetteredMax is the largest number of offset ranges in a checkpoint, some 10 KB. If a record would need a
// further range, the checkpoint treats it as forwarded instead.
const deadLetteredMax = 4096

// BypassedOffset is the input offset before which a bypass forwarded the events of a namespace id
// unchecked.
type BypassedOffset struct {
	NamespaceID uint8
	To          int64
}

// BypassedTo returns the input offset before which the events of a namespace id were either judged or
// forwarded unchecked. It is at least Next.
func (c *Checkpoint) BypassedTo(namespaceID uint8) int64 {
	for _, p := range c.Bypassed {
		if p.NamespaceID == namespaceID {
			return max(p.To, c.Next)
		}
	}
	return c.Next
}

// DeadLetter adds a range of offsets whose records became dead letters during a bypass.
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

// endingAt returns the index of the first offset range that ends at the offset or later.
func (c *Checkpoint) endingAt(offset int64) int {
	at, _ := slices.BinarySearchFunc(c.DeadLettered, offset, func(s OffsetRange, offset int64) int { return cmp.Compare(s.to, offset) })
	return at
}

// ErrCheckpoint is wrapped by every error of a checkpoint that cannot be decoded.
var ErrCheckpoint = errors.New("corrupt checkpoint")

// Flags of an encoded checkpoint. Each says that the field of its name is present.
const (
	flagCounted = 1 << iota
	flagBypassed
	flagDeadLettered
	flagFloor
	flagIncomplete
	flagFences
	flagAhead
	flagGeneration
	checkpointFlags = flagGeneration<<1 - 1
	// The flags below exist only in checkpointVersionSets, which encodes its flags as a uvarint.
	flagClaims          = flagGeneration << 1
	flagSenders         = flagGeneration << 2
	flagKnown           = flagGeneration << 3
	flagClosed          = flagGeneration << 4
	flagShadows         = flagGeneration << 5
	flagTenants         = flagGeneration << 6
	flagSources         = flagGeneration << 7
	checkpointFlagsSets = flagSources<<1 - 1
)

// Append appends the encoding of c:
//
//	version 1 | flags 1, from version 7 on uvarint | [set uvarint: from version 7 on] |
//	[switch for which the task is closed uvarint] |
//	next varint | epoch varint | sequence varint | rows uvarint | [generation uvarint] |
//	[namespaces with bypassed offsets 1 | for each: id 1, offset uvarint] |
//	[ranges uvarint | for each: gap to the one before, length, uvarint] |
//	[floor uvarint | rows below it uvarint] |
//	[fences uvarint | for each: gaps of offset and rows to the one before or to the floor, uvarint, entries] |
//	[entries ahead of stream time] |
//	[namespaces with a changed window 1 | for each: id 1, since, late before varints] |
//	[length of the counts uvarint | counts] |
//	[claimed at varint | progress at varint | stepped at varint | progress: with claims or senders only] |
//	[senders: with senders only] | [shadows] | [tenants] | [sources] |
//	for each namespace with a stream time: id 1, stream time varint
//
// Parts in brackets are optional: the flags or the version say whether they are present.
//
// Entries are: number uvarint | for each: namespace id 1, time varint, as the difference to the time before.
// The first time of the fences and the first time of Ahead are absolute.
func (c *Checkpoint) Append(dst []byte) []byte {
	flags, version := c.flags(), c.version()
	if dst = append(dst, version); version == checkpointVersionSets {
		flags |= c.flagsSets()
		dst = binary.AppendUvarint(dst, flags)
		dst = binary.AppendUvarint(dst, uint64(c.Set))
		if c.Closed > 0 {
			dst = binary.AppendUvarint(dst, uint64(c.Closed))
		}
	} else {
		dst = append(dst, byte(flags))
	}
	dst = binary.AppendVarint(dst, c.Next)
	dst = binary.AppendVarint(dst, int64(c.Epoch))
	dst = binary.AppendVarint(dst, c.Sequence)
	dst = binary.AppendUvarint(dst, uint64(c.Rows))
	if flags&flagGeneration != 0 {
		dst = binary.AppendUvarint(dst, uint64(c.Generation))
	}
	dst = c.appendBypass(dst, flags)
	if flags&flagFloor != 0 {
		dst = binary.AppendUvarint(dst, uint64(c.Floor))
		dst = binary.AppendUvarint(dst, uint64(c.FloorRows))
	}
	if flags&flagFences != 0 {
		dst = c.appendFences(dst)
	}
	if flags&flagAhead != 0 {
		dst, _ = appendFirstSeen(dst, c.Ahead, 0)
	}
	if flags&flagKnown != 0 {
		dst = c.appendKnown(dst)
	}
	if flags&flagCounted != 0 {
		dst = binary.AppendUvarint(dst, uint64(len(c.Counts)))
		dst = append(dst, c.Counts...)
	}
	if version == checkpointVersionClaims || version == checkpointVersionSenders || flags&flagClaims != 0 {
		for _, at := range []int64{c.ClaimedAt, c.ProgressAt, c.SteppedAt} {
			dst = binary.AppendVarint(dst, at)
		}
		dst = c.Progress.Append(dst)
	}
	if version == checkpointVersionSenders || flags&flagSenders != 0 {
		dst = appendSenders(dst, c.Senders)
	}
	if flags&flagShadows != 0 {
		dst = appendShadows(dst, c.Shadows)
	}
	dst = c.appendTenants(dst, flags)
	if flags&flagSources != 0 {
		dst = appendSources(dst, c.Sources)
	}
	return c.StreamTimes.append(dst)
}

func (c *Checkpoint) appendKnown(dst []byte) []byte {
	dst = append(dst, byte(len(c.Known)))
	for _, k := range c.Known {
		dst = binary.AppendVarint(append(dst, k.NamespaceID), k.Since)
		dst = binary.AppendVarint(dst, k.LateBefore)
	}
	return dst
}

// version returns the version of the encoding.
func (c *Checkpoint) version() byte {
	switch {
	case c.Set > 0:
		return checkpointVersionSets
	case len(c.Senders) > 0:
		return checkpointVersionSenders
	case c.hasClaims():
		return checkpointVersionClaims
	}
	return checkpointVersion
}

// appendBypass appends the fields about a bypass that the flags announce.
func (c *Checkpoint) appendBypass(dst []byte, flags uint64) []byte {
	if flags&flagBypassed != 0 {
		dst = append(dst, byte(len(c.Bypassed)))
		for _, p := range c.Bypassed {
			dst = binary.AppendUvarint(append(dst, p.NamespaceID), uint64(p.To))
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
	return dst
}

// flags returns the flags of the optional fields that c has.
func (c *Checkpoint) flags() (flags uint64) {
	if c.Counted {
		flags |= flagCounted
	}
	if len(c.Bypassed) > 0 {
		flags |= flagBypassed
		if len(c.DeadLettered) > 0 {
			flags |= flagDeadLettered
		}
	}
	if c.Floor > 0 {
		flags |= flagFloor
	}
	if c.Incomplete {
		flags |= flagIncomplete
	}
	if len(c.Fences) > 0 {
		flags |= flagFences
	}
	if len(c.Ahead) > 0 {
		flags |= flagAhead
	}
	if c.Generation > 0 {
		flags |= flagGeneration
	}
	return flags
}

// flagsSets returns the flags of the optional fields that only checkpointVersionSets can have.
func (c *Checkpoint) flagsSets() (flags uint64) {
	if c.hasClaims() {
		flags |= flagClaims
	}
	if len(c.Senders) > 0 {
		flags |= flagSenders
	}
	if len(c.Known) > 0 {
		flags |= flagKnown
	}
	if c.Closed > 0 {
		flags |= flagClosed
	}
	if len(c.Shadows) > 0 {
		flags |= flagShadows
	}
	if len(c.Tenants) > 0 {
		flags |= flagTenants
	}
	if len(c.Sources) > 0 {
		flags |= flagSources
	}
	return flags
}

// DropBypassed removes the dead-lettered ranges before Next. Once no bypassed offset is beyond Next, it
// removes all bypassed offsets and all ranges.
func (c *Checkpoint) DropBypassed() {
	if len(c.Bypassed) > 0 && !slices.ContainsFunc(c.Bypassed, func(p BypassedOffset) bool { return p.To > c.Next }) {
		c.Bypassed, c.DeadLettered = nil, nil
		return
	}
	if c.DeadLettered = c.DeadLettered[c.endingAt(c.Next+1):]; len(c.DeadLettered) == 0 {
		c.DeadLettered = nil
	}
}

// readsVersion reports whether this build reads whole checkpoints of a version.
func readsVersion(v byte) bool {
	return v == checkpointVersion || v == checkpointVersionClaims || v == checkpointVersionSenders || v == checkpointVersionSets
}

// DecodeCheckpoint decodes what Append wrote. The error wraps ErrCheckpoint.
func DecodeCheckpoint(b []byte) (Checkpoint, error) {
	var c Checkpoint
	r := dedup.NewCursor(b)
	version, flags, err := c.decodeVersion(&r)
	if err != nil {
		return c, err
	}
	next, epoch, sequence := r.Varint(), r.Varint(), r.Varint()
	if next < 0 || epoch < -1 || epoch > math.MaxInt32 {
		return c, fmt.Errorf("%w: next offset %d, epoch %d", ErrCheckpoint, next, epoch)
	}
	c.Next, c.Epoch, c.Sequence, c.Rows = next, int32(epoch), sequence, int64(r.Uvarint(math.MaxInt64))
	if flags&flagGeneration != 0 {
		if c.Generation = int64(r.Uvarint(math.MaxInt64)); c.Generation == 0 {
			r.Fail()
		}
	}
	if flags&flagBypassed != 0 {
		c.decodeBypassed(&r)
	}
	if flags&flagDeadLettered != 0 {
		c.decodeDeadLettered(&r)
	}
	c.Incomplete = flags&flagIncomplete != 0
	if flags&flagFloor != 0 {
		if c.Floor = int64(r.Uvarint(math.MaxInt64)); c.Floor == 0 {
			r.Fail()
		}
		c.FloorRows = int64(r.Uvarint(uint64(c.Rows)))
	}
	if flags&flagFences != 0 {
		c.decodeFences(&r)
	}
	if flags&flagAhead != 0 {
		c.Ahead, _ = decodeFirstSeen(&r, 256, 0)
	}
	if flags&flagKnown != 0 {
		c.decodeKnown(&r)
	}
	if c.Counted = flags&flagCounted != 0; c.Counted {
		c.Counts = string(r.Bytes(int(r.Uvarint(uint64(r.Left())))))
	}
	c.decodeVersioned(&r, version, flags)
	for r.Left() > 0 && !r.Bad() {
		namespaceID := r.Byte()
		c.StreamTimes.At[namespaceID], c.StreamTimes.Has[namespaceID] = r.Varint(), true
	}
	if r.Bad() {
		return Checkpoint{}, fmt.Errorf("%w: cut short or out of range in %d bytes", ErrCheckpoint, len(b))
	}
	return c, nil
}

// decodeVersion reads the version, the flags, and the fields right after them.
func (c *Checkpoint) decodeVersion(r *dedup.Cursor) (version byte, flags uint64, err error) {
	version = r.Byte()
	known := uint64(checkpointFlags)
	if version == checkpointVersionSets {
		flags, known = r.Uvarint(math.MaxInt64), checkpointFlagsSets
	} else {
		flags = uint64(r.Byte())
	}
	if !r.Bad() && (!readsVersion(version) || flags&^known != 0) {
		return version, flags, fmt.Errorf("%w: version %d with flags %#x, this build reads %d with %#x", ErrCheckpoint, version, flags, checkpointVersionSets, uint64(checkpointFlagsSets))
	}
	if version == checkpointVersionSets {
		if c.Set = int64(r.Uvarint(math.MaxInt64)); c.Set == 0 {
			r.Fail()
		}
		if flags&flagClosed != 0 {
			if c.Closed = int64(r.Uvarint(math.MaxInt64)); c.Closed == 0 {
				r.Fail()
			}
		}
	}
	return version, flags, nil
}

// decodeVersioned reads the fields that only some versions have.
func (c *Checkpoint) decodeVersioned(r *dedup.Cursor, version byte, flags uint64) {
	if version == checkpointVersionClaims || version == checkpointVersionSenders || flags&flagClaims != 0 {
		c.ClaimedAt, c.ProgressAt, c.SteppedAt = r.Varint(), r.Varint(), r.Varint()
		c.Progress = decodeProgress(r)
	}
	if version == checkpointVersionSenders || flags&flagSenders != 0 {
		c.Senders = decodeSenders(r)
	}
	if flags&flagShadows != 0 {
		c.Shadows = decodeShadows(r)
	}
	if flags&flagTenants != 0 {
		c.Tenants = decodeTenants(r)
	}
	if flags&flagSources != 0 {
		if c.Sources = decodeSources(r); len(c.Sources) == 0 {
			r.Fail()
		}
	}
}

func (c *Checkpoint) decodeBypassed(r *dedup.Cursor) {
	n := r.Byte()
	if n == 0 {
		r.Fail()
	}
	for ; n > 0 && !r.Bad(); n-- {
		c.Bypassed = append(c.Bypassed, BypassedOffset{r.Byte(), int64(r.Uvarint(math.MaxInt64))})
	}
}

// decodeDeadLettered reads the ranges. It refuses ranges without a gap between them, which DeadLetter
// merges.
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
		}
		end = from + length
		c.DeadLettered = append(c.DeadLettered, OffsetRange{from, end})
	}
}
