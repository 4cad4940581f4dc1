package dedup

import (
	"encoding/binary"
	"fmt"
	"iter"
	"math"
)

// A Pack encodes several rows of plain deduplication in one changelog record, each row as its difference to the
// previous row. Packs keep the number of records small, because the work of brokers and of restores grows with
// it.
//
//	version 1 | for each row: digest 16 | flags 1 | [namespace id 1] |
//	[topic uvarint | partition uvarint] | first varint | offset varint | [fingerprint 8] |
//	[first - before uvarint]
//
// First and offset are differences to the previous row; in the first row they are differences to 0. The
// namespace id, and the topic with the partition, are there in the first row and wherever they differ from the
// row before. A row takes some 20 bytes. The decoder refuses an unknown flag, so that a later version can add
// fields.
//
// The zero Pack is empty and ready to use.
type Pack struct {
	bytes  []byte
	rows   int
	before Row
}

// PackVersion is the version of the encoding of packs, and the first byte of a pack.
const PackVersion = 1

// PackedBytesMax is the most bytes that a row takes in a pack, and an upper bound for an empty pack.
const PackedBytesMax = len(Digest{}) + 2 + 3 + 5 + 3*binary.MaxVarintLen64 + 8

// Flags of a row in a pack.
const (
	packedFingerprint = 1 << iota
	packedPlace
	packedNamespace
	packedLinkNone
	packedLinkBefore
	packedEarlier
	packedAgain
	knownPackedFlags = packedAgain<<1 - 1
)

// Packs reports whether the row may be in a pack: it is a row of plain deduplication without a shift.
func (r *Row) Packs() bool {
	return r.Status == Seen && r.Shift == 0 && r.Attempt == 0 && !r.HasResult
}

// Add appends a row for which Row.Packs reports true.
func (p *Pack) Add(r *Row) {
	if p.rows == 0 {
		p.bytes = append(p.bytes[:0], PackVersion)
		p.before = Row{}
	}
	var flags byte
	if r.Fingerprint != 0 {
		flags |= packedFingerprint
	}
	if p.rows == 0 || r.At.Topic != p.before.At.Topic || r.At.Partition != p.before.At.Partition {
		flags |= packedPlace
	}
	if p.rows == 0 || r.NamespaceID != p.before.NamespaceID {
		flags |= packedNamespace
	}
	flags |= (r.DetailFlags() & (flagLinkNone | flagLinkBefore | flagEarlier | flagAgain)) >> 1
	b := append(append(p.bytes, r.Digest[:]...), flags)
	if flags&packedNamespace != 0 {
		b = append(b, r.NamespaceID)
	}
	if flags&packedPlace != 0 {
		b = binary.AppendUvarint(b, uint64(r.At.Topic))
		b = binary.AppendUvarint(b, uint64(uint32(r.At.Partition)))
	}
	// The differences wrap around, and readPacked wraps them back.
	b = binary.AppendVarint(b, r.First-p.before.First)
	b = binary.AppendVarint(b, r.At.Offset-p.before.At.Offset)
	if flags&packedFingerprint != 0 {
		b = binary.LittleEndian.AppendUint64(b, r.Fingerprint)
	}
	if r.Link == LinkBefore {
		b = binary.AppendUvarint(b, uint64(r.First-r.Before))
	}
	p.bytes, p.before = b, *r
	p.rows++
}

// Rows returns the number of rows.
func (p *Pack) Rows() int { return p.rows }

// Bytes returns the encoding, which is valid until the next call of Add or Reset.
func (p *Pack) Bytes() []byte { return p.bytes }

// Reset removes all rows and keeps the memory.
func (p *Pack) Reset() { p.bytes, p.rows = p.bytes[:0], 0 }

// PackedRows yields the rows of a pack, or an error that wraps ErrRow. A row is valid until the iterator
// yields the next one.
func PackedRows(b []byte) iter.Seq2[*Row, error] {
	return func(yield func(*Row, error) bool) {
		if len(b) < 2 || b[0] != PackVersion {
			yield(nil, fmt.Errorf("%w: %d bytes that are no pack of version %d", ErrRow, len(b), PackVersion))
			return
		}
		c, row := NewCursor(b[1:]), Row{Status: Seen}
		for first := true; c.Left() > 0; first = false {
			if row.readPacked(&c, first); c.Bad() {
				yield(nil, fmt.Errorf("%w: cut short or out of range in a pack of %d bytes", ErrRow, len(b)))
				return
			}
			if !yield(&row, nil) {
				return
			}
		}
	}
}

// readPacked reads the next row into r, which has the values of the row before.
func (r *Row) readPacked(c *Cursor, first bool) {
	copy(r.Digest[:], c.Bytes(len(r.Digest)))
	flags := c.Byte()
	if flags&^byte(knownPackedFlags) != 0 || first && flags&(packedPlace|packedNamespace) != packedPlace|packedNamespace {
		c.Fail()
	}
	if flags&packedNamespace != 0 {
		r.NamespaceID = c.Byte()
	}
	if flags&packedPlace != 0 {
		r.At.Topic, r.At.Partition = uint16(c.Uvarint(1<<16-1)), int32(c.Uvarint(1<<31-1))
	}
	r.First += c.Varint()
	if r.At.Offset += c.Varint(); r.At.Offset < 0 {
		c.Fail()
	}
	r.Fingerprint = 0
	if flags&packedFingerprint != 0 {
		if r.Fingerprint = c.Uint64(); r.Fingerprint == 0 {
			c.Fail()
		}
	}
	r.Earlier, r.Again, r.Link, r.Before = flags&packedEarlier != 0, flags&packedAgain != 0, LinkUnknown, 0
	switch flags & (packedLinkNone | packedLinkBefore) {
	case packedLinkNone:
		r.Link = LinkNone
	case packedLinkBefore:
		r.Link, r.Before = LinkBefore, r.First-int64(c.Uvarint(math.MaxUint64))
	case packedLinkNone | packedLinkBefore:
		c.Fail()
	}
}
