package dedup

import "encoding/binary"

// A Cursor reads the fields of an encoding, one after the other. The first read past the end or out of range
// makes the cursor bad, and every read of a bad cursor returns zero. So a decoder checks Bad or Done only
// once, after its last read.
type Cursor struct {
	b   []byte
	at  int
	bad bool
}

// NewCursor returns a cursor at the start of b. Byte slices read from it alias b.
func NewCursor(b []byte) Cursor { return Cursor{b: b} }

// Bad reports whether a read failed.
func (c *Cursor) Bad() bool { return c.bad }

// Fail makes the cursor bad. A decoder calls it for a value that it refuses.
func (c *Cursor) Fail() { c.bad = true }

// Done reports whether all reads succeeded and no byte is left.
func (c *Cursor) Done() bool { return !c.bad && c.at == len(c.b) }

// Left returns the number of unread bytes.
func (c *Cursor) Left() int { return len(c.b) - c.at }

// Rest reads all unread bytes.
func (c *Cursor) Rest() []byte { return c.Bytes(c.Left()) }

// Byte reads one byte.
func (c *Cursor) Byte() byte {
	if c.bad || c.at >= len(c.b) {
		c.bad = true
		return 0
	}
	c.at++
	return c.b[c.at-1]
}

// Bytes reads n bytes. The capacity of the result ends with them, so that an append does not overwrite b.
func (c *Cursor) Bytes(n int) []byte {
	if c.bad || n < 0 || n > len(c.b)-c.at {
		c.bad = true
		return nil
	}
	c.at += n
	return c.b[c.at-n : c.at : c.at]
}

// Uint64 reads 8 bytes, little-endian.
func (c *Cursor) Uint64() uint64 {
	if b := c.Bytes(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// BigUint64 reads 8 bytes, big-endian.
func (c *Cursor) BigUint64() uint64 {
	if b := c.Bytes(8); b != nil {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

// Uvarint reads an unsigned varint of at most limit.
func (c *Cursor) Uvarint(limit uint64) uint64 {
	if c.bad {
		return 0
	}
	v, n := binary.Uvarint(c.b[c.at:])
	if n <= 0 || v > limit {
		c.bad = true
		return 0
	}
	c.at += n
	return v
}

// Varint reads a signed varint.
func (c *Cursor) Varint() int64 {
	if c.bad {
		return 0
	}
	v, n := binary.Varint(c.b[c.at:])
	if n <= 0 {
		c.bad = true
		return 0
	}
	c.at += n
	return v
}

// Flag reads a byte that must be 0 or 1.
func (c *Cursor) Flag() bool {
	b := c.Byte()
	c.bad = c.bad || b > 1
	return b == 1
}

// text reads what appendText wrote. An empty text is empty, not nil.
func (c *Cursor) text() []byte {
	n := c.Uvarint(MaxResultBytes + 1)
	if n == 0 {
		return nil
	}
	return c.Bytes(int(n - 1))
}

// Position reads topic, partition and offset, each a uvarint.
func (c *Cursor) Position() Position {
	topic, partition, offset := c.Uvarint(1<<16-1), c.Uvarint(1<<31-1), c.Uvarint(1<<63-1)
	return Position{Topic: uint16(topic), Partition: int32(partition), Offset: int64(offset)}
}

// Address reads what Address.Append wrote. The zero address makes the cursor bad.
func (c *Cursor) Address() Address {
	a := Address{Partition: int32(c.Uvarint(1<<31 - 1)), Ingress: c.Uint64(), Request: c.Uint64()}
	c.bad = c.bad || !a.IsSet()
	return a
}
