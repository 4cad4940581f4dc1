package wire

import (
	"encoding/binary"
	"fmt"

	"oncebus/dedup"
)

// partialKeyPrefix begins the key of a partial checkpoint; its number follows in 4 bytes, big-endian.
// Such a key has 15 bytes, so it is never the key of a row, which is a digest of 16 bytes.
const partialKeyPrefix = CheckpointKey + "/"

// AppendCheckpointKey appends the changelog key of a checkpoint. The number of a whole checkpoint is 0.
// The number of a partial checkpoint counts the partial checkpoints since the last whole one. A later
// partial checkpoint with the same number replaces an earlier one, so compaction keeps the newest whole
// checkpoint and every partial checkpoint after it.
func AppendCheckpointKey(dst []byte, number uint32) []byte {
	if number == 0 {
		return append(dst, CheckpointKey...)
	}
	return binary.BigEndian.AppendUint32(append(dst, partialKeyPrefix...), number)
}

// CheckpointNumber returns the number of the checkpoint that has a changelog key: 0 for a whole
// checkpoint. ok is false for the key of any other record.
func CheckpointNumber(key []byte) (number uint32, ok bool) {
	if string(key) == CheckpointKey {
		return 0, true
	}
	if len(key) != len(partialKeyPrefix)+4 || string(key[:len(partialKeyPrefix)]) != partialKeyPrefix {
		return 0, false
	}
	number = binary.BigEndian.Uint32(key[len(partialKeyPrefix):])
	return number, number > 0
}

// IsCheckpoint reports whether a changelog key belongs to a checkpoint.
func IsCheckpoint(key []byte) bool {
	_, ok := CheckpointNumber(key)
	return ok
}

// partialVersion is the version of a partial checkpoint.
const partialVersion = 5

// Marks of a partial checkpoint: the fields that it has.
const (
	markFences = 1 << iota
	markClaims
	markProgress
	markSenders
	markShadows
	markTenants
	markSources
	partialMarks = markSources<<1 - 1
)

// AppendPartial appends c as a partial checkpoint: only what changed since before, the checkpoint of
// the preceding transaction. c and before must have the same sources (SameSources). senders and tenants
// are the encoded changes of the sender counts and tenant accounts. The caller appends the changes of
// the key counts itself.
//
//	version 1 | marks 1 | length uvarint | c without stream times, sources, counts and claims, and
//	without fences unless they changed | [claimed at, progress at, stepped at varints] |
//	[length uvarint, progress] | [length uvarint, changes of the senders] | [shadows] |
//	[length uvarint, changes of the tenants] | [length uvarint, changes of the sources] |
//	changed stream times uvarint | for each: namespace id 1, difference to the time before varint |
//	changes of the counts
func (c *Checkpoint) AppendPartial(dst []byte, before *Checkpoint, senders, tenants []byte) []byte {
	small, marks := *c, byte(0)
	small.StreamTimes, small.Counts, small.Counted = streamTimes{}, "", false
	small.Progress, small.ClaimedAt, small.ProgressAt, small.SteppedAt = Progress{}, 0, 0, 0
	small.Senders = nil
	small.Set, small.Known = 0, nil // these change only with a whole checkpoint
	small.Shadows, small.Tenants, small.Sources = nil, nil, nil
	if sameSlice(c.Fences, before.Fences) {
		small.Fences = nil
	} else {
		marks |= markFences
	}
	if c.hasClaims() {
		marks |= markClaims
		if !sameSlice(c.Progress.Outcomes, before.Progress.Outcomes) || !sameSlice(c.Progress.Executors, before.Progress.Executors) {
			marks |= markProgress
		}
	}
	if len(senders) > 0 {
		marks |= markSenders
	}
	if !sameSlice(c.Shadows, before.Shadows) {
		marks |= markShadows
	}
	if len(tenants) > 0 {
		marks |= markTenants
	}
	at := len(dst) + 1 // index of the marks
	dst = append(dst, partialVersion, marks)
	dst = appendSized(dst, small.Append)
	if marks&markClaims != 0 {
		for _, at := range []int64{c.ClaimedAt, c.ProgressAt, c.SteppedAt} {
			dst = binary.AppendVarint(dst, at)
		}
	}
	if marks&markProgress != 0 {
		dst = appendSized(dst, c.Progress.Append)
	}
	if marks&markSenders != 0 {
		dst = binary.AppendUvarint(dst, uint64(len(senders)))
		dst = append(dst, senders...)
	}
	if marks&markShadows != 0 {
		dst = appendShadows(dst, c.Shadows)
	}
	if marks&markTenants != 0 {
		dst = append(binary.AppendUvarint(dst, uint64(len(tenants))), tenants...)
	}
	var changed bool
	sources := appendSized(dst, func(dst []byte) []byte {
		dst, changed = appendChangedSources(dst, c.Sources, before.Sources)
		return dst
	})
	if changed {
		dst = sources
		dst[at] |= markSources
	}
	return c.appendStreamTimes(dst, before)
}

// sameSlice reports whether a and b are the same slice. If so, they are equal, because their elements are never
// changed.
func sameSlice[T any](a, b []T) bool { return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0]) }

// appendSized appends what encode appends, preceded by its length.
func appendSized(dst []byte, encode func([]byte) []byte) []byte {
	at := len(dst)
	dst = encode(dst)
	size := binary.AppendUvarint(nil, uint64(len(dst)-at))
	dst = append(dst, size...)
	copy(dst[at+len(size):], dst[at:len(dst)-len(size)])
	copy(dst[at:], size)
	return dst
}

func (c *Checkpoint) appendStreamTimes(dst []byte, before *Checkpoint) []byte {
	changed := func(id int) bool {
		return c.StreamTimes.Has[id] && (!before.StreamTimes.Has[id] || c.StreamTimes.At[id] != before.StreamTimes.At[id])
	}
	n := uint64(0)
	for id := range c.StreamTimes.Has {
		if changed(id) {
			n++
		}
	}
	dst = binary.AppendUvarint(dst, n)
	for id := range c.StreamTimes.Has {
		if changed(id) {
			// At is 0 for a namespace without a stream time; the difference may wrap around.
			dst = binary.AppendVarint(append(dst, byte(id)), c.StreamTimes.At[id]-before.StreamTimes.At[id])
		}
	}
	return dst
}

// partial is a decoded partial checkpoint.
type partial struct {
	small Checkpoint // without the fields that are relative to the checkpoint before
	marks byte
	// senders are the changes of the sender counts; empty for none.
	senders []byte
	tenants []byte       // changes of the tenant accounts; empty for none
	sources []byte       // changes of the sources; empty for none
	rest    dedup.Cursor // the changed stream times, and the changes of the counts
}

// decodePartial decodes what AppendPartial wrote. It leaves the changes, which are relative to the
// checkpoint before, encoded. The error wraps ErrCheckpoint.
func decodePartial(b []byte) (p partial, err error) {
	r := dedup.NewCursor(b)
	version := r.Byte()
	if p.marks = r.Byte(); !r.Bad() && (version != partialVersion || p.marks&^byte(partialMarks) != 0) {
		return p, fmt.Errorf("%w: partial checkpoint of version %d with marks %#x, this build reads %d with %#x", ErrCheckpoint, version, p.marks, partialVersion, partialMarks)
	}
	small := r.Bytes(int(r.Uvarint(uint64(r.Left()))))
	if r.Bad() {
		return p, errPartial(b)
	}
	if p.small, err = DecodeCheckpoint(small); err != nil {
		return p, err
	}
	if p.small.Counted || p.small.StreamTimes != (streamTimes{}) || p.small.hasClaims() || p.small.Senders != nil || p.small.Tenants != nil || p.small.Sources != nil {
		return p, errPartial(b)
	}
	if p.marks&markClaims != 0 {
		p.small.ClaimedAt, p.small.ProgressAt, p.small.SteppedAt = r.Varint(), r.Varint(), r.Varint()
	}
	if p.marks&markProgress != 0 {
		progress := dedup.NewCursor(r.Bytes(int(r.Uvarint(uint64(r.Left())))))
		p.small.Progress = decodeProgress(&progress)
		if !progress.Done() {
			r.Fail()
		}
	}
	p.senders = p.changes(&r, markSenders)
	if p.marks&markShadows != 0 {
		p.small.Shadows = decodeShadows(&r)
	}
	p.tenants = p.changes(&r, markTenants)
	p.sources = p.changes(&r, markSources)
	if r.Bad() {
		return p, errPartial(b)
	}
	p.rest = r
	return p, nil
}

// changes reads the changes that a mark announces: their length uvarint, which is not 0, and their
// bytes.
func (p *partial) changes(r *dedup.Cursor, mark byte) []byte {
	if p.marks&mark == 0 {
		return nil
	}
	changes := r.Bytes(int(r.Uvarint(uint64(r.Left()))))
	if len(changes) == 0 {
		r.Fail()
	}
	return changes
}

func errPartial(b []byte) error {
	return fmt.Errorf("%w: cut short or out of range in a partial checkpoint of %d bytes", ErrCheckpoint, len(b))
}
