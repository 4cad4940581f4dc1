package state

import (
	"encoding/binary"
	"fmt"
	"math/bits"

	"oncebus/dedup"
)

// prefix returns the first half of a digest. The prefix alone decides the order of almost all rows, and it
// selects the page of a row.
func prefix(d *dedup.Digest) uint64 { return binary.BigEndian.Uint64(d[:8]) }

// pageOf returns which of n pages has the rows with a prefix. Digests are uniformly distributed, so the pages
// have about equal sizes and need no index.
func pageOf(prefix uint64, n uint32) uint32 {
	hi, _ := bits.Mul64(prefix, uint64(n))
	return uint32(hi)
}

// A page contains the rows of one range of digests, in order of digest, as columns:
//
//	prefix 8 | skip 1 | widths 1 x 4 | least first 8 | least offset 8 | kinds 4 |
//	kind 9 x kinds | digest (16 - skip) x rows | first | offset | kind | end | details
//
// All digests of a page start with the same skip bytes, the first bytes of prefix, so digests are stored
// without these bytes. The columns first, offset, kind (the number of a kind) and end (where the details of the
// row end) have their width in bytes for each row; first and offset are differences to the least value.
// Integers are little endian, prefix is big endian. A page without rows is empty.
//
// The digests are next to each other, so that a search touches little memory.
const (
	pageHeaderBytes = 8 + 1 + 4 + 8 + 8 + 4
	kindBytes       = 9
	// maxSkip leaves a byte of the prefix in each digest, so that a stored digest has at least nine bytes: one
	// byte of the prefix and the second half.
	maxSkip = 7
	// rowBytes is the estimated size of a row without details.
	rowBytes = 22
)

// rowKind has the fields whose values are the same in most rows of a page.
type rowKind struct {
	flags       byte
	namespaceID uint8
	status      dedup.Status
	topic       uint16
	partition   int32
}

// column contains an unsigned integer of width bytes for each row.
type column struct {
	data  []byte // at least the column
	width int
}

func (c *column) at(i int) uint64 {
	b := c.data[i*c.width:]
	if len(b) >= 8 {
		return binary.LittleEndian.Uint64(b) & (1<<(8*c.width) - 1)
	}
	var last [8]byte
	copy(last[:c.width], b)
	return binary.LittleEndian.Uint64(last[:])
}

// page is the decoded payload of a page block; it aliases the payload.
type page struct {
	rows          int
	prefix        uint64 // the first skip bytes of every digest
	skip          int
	digests       []byte
	first, offset int64 // the least value of each column
	firsts        column
	offsets       column
	kinds         []byte
	kindOf        column
	ends          column
	details       []byte
}

// decodePage decodes the payload of a page block with that many rows. The page aliases payload.
func decodePage(rows uint32, payload []byte) (page, error) {
	n := int(rows)
	if n == 0 && len(payload) == 0 {
		return page{}, nil
	}
	if n == 0 || len(payload) < pageHeaderBytes {
		return page{}, fmt.Errorf("%w: page of %d rows has %d bytes", ErrCorrupt, rows, len(payload))
	}
	skip := int(payload[8])
	p := page{
		rows: n, skip: skip,
		first:  int64(binary.LittleEndian.Uint64(payload[13:])),
		offset: int64(binary.LittleEndian.Uint64(payload[21:])),
	}
	if skip > maxSkip {
		return page{}, fmt.Errorf("%w: digests of a page lack %d bytes", ErrCorrupt, skip)
	}
	p.prefix = binary.BigEndian.Uint64(payload) &^ (1<<(64-8*skip) - 1)
	rest := payload[pageHeaderBytes:]
	take := func(size int) (part []byte) {
		if size > len(rest) {
			rest, n = nil, -1
			return nil
		}
		part, rest = rest, rest[size:]
		return part
	}
	kinds := int(binary.LittleEndian.Uint32(payload[29:]))
	p.kinds = take(kindBytes * kinds)
	p.digests = take((16 - skip) * p.rows)
	for i, c := range [...]*column{&p.firsts, &p.offsets, &p.kindOf, &p.ends} {
		c.width = int(payload[9+i])
		if c.width > 8 {
			return page{}, fmt.Errorf("%w: column of a page has a width of %d bytes", ErrCorrupt, c.width)
		}
		c.data = take(c.width * p.rows)
	}
	if n < 0 {
		return page{}, fmt.Errorf("%w: page of %d bytes is too short for %d rows", ErrCorrupt, len(payload), rows)
	}
	p.kinds, p.details = p.kinds[:kindBytes*kinds], rest
	if p.end(p.rows-1) != uint64(len(rest)) {
		return page{}, fmt.Errorf("%w: lengths of the details of a page of %d rows and %d bytes are inconsistent", ErrCorrupt, rows, len(payload))
	}
	return p, nil
}

// end returns where the details of row i end.
func (p *page) end(i int) uint64 { return p.ends.at(i) }

// digestAt returns both halves of digest i.
func (p *page) digestAt(i int) (hi, lo uint64) {
	b := p.digests[(16-p.skip)*i:]
	return p.prefix | binary.BigEndian.Uint64(b)>>(8*p.skip), binary.BigEndian.Uint64(b[8-p.skip:])
}

func (p *page) digest(i int) (d dedup.Digest) {
	hi, lo := p.digestAt(i)
	binary.BigEndian.PutUint64(d[:], hi)
	binary.BigEndian.PutUint64(d[8:], lo)
	return d
}

// kind returns the kind of row i.
func (p *page) kind(i int) (rowKind, error) {
	n := p.kindOf.at(i)
	if n >= uint64(len(p.kinds)/kindBytes) {
		return rowKind{}, fmt.Errorf("%w: row %d of a page has kind %d of %d", ErrCorrupt, i, n, len(p.kinds)/kindBytes)
	}
	b := p.kinds[kindBytes*n:]
	k := rowKind{
		flags: b[0], namespaceID: b[1], status: dedup.Status(b[2]),
		topic: binary.LittleEndian.Uint16(b[3:]), partition: int32(binary.LittleEndian.Uint32(b[5:])),
	}
	if k.status > dedup.Freed || k.partition < 0 {
		return rowKind{}, fmt.Errorf("%w: row %d of a page has status %d, partition %d", ErrCorrupt, i, k.status, k.partition)
	}
	return k, nil
}

// row decodes row i. Its Result aliases the page.
func (p *page) row(i int) (dedup.Row, error) {
	k, err := p.kind(i)
	if err != nil {
		return dedup.Row{}, err
	}
	r := dedup.Row{
		Digest: p.digest(i),
		First:  p.first + int64(p.firsts.at(i)),
		At: dedup.Position{
			Topic: k.topic, Partition: k.partition, Offset: p.offset + int64(p.offsets.at(i)),
		},
		NamespaceID: k.namespaceID,
		Status:      k.status,
	}
	if r.At.Offset < 0 {
		return dedup.Row{}, fmt.Errorf("%w: row %v has offset %d", ErrCorrupt, r.Digest, r.At.Offset)
	}
	if k.flags == 0 {
		return r, nil
	}
	if err := p.decodeDetails(i, k.flags, &r); err != nil {
		return dedup.Row{}, err
	}
	return r, nil
}

func (p *page) decodeDetails(i int, flags byte, r *dedup.Row) error {
	from := uint64(0)
	if i > 0 {
		from = p.end(i - 1)
	}
	to := p.end(i)
	if from > to || to > uint64(len(p.details)) {
		return fmt.Errorf("%w: details of row %d of a page end at byte %d and begin at byte %d", ErrCorrupt, i, to, from)
	}
	b := p.details[from:to]
	n, err := r.DecodeDetails(flags, b)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if n != len(b) {
		return fmt.Errorf("%w: %d bytes after row %v", ErrCorrupt, len(b)-n, r.Digest)
	}
	return nil
}

// find returns the index of d in the page.
func (p *page) find(d *dedup.Digest) (int, bool) {
	hi, lo := binary.BigEndian.Uint64(d[:8]), binary.BigEndian.Uint64(d[8:])
	from, to := 0, p.rows
	for from < to {
		mid := int(uint(from+to) >> 1)
		if h, l := p.digestAt(mid); h < hi || h == hi && l < lo {
			from = mid + 1
		} else {
			to = mid
		}
	}
	return from, from < p.rows && p.digest(from) == *d
}

// pageBuilder collects the rows of one page, added in order of digest.
type pageBuilder struct {
	digests []byte // whole
	firsts  []uint64
	offsets []uint64
	kindOf  []uint64
	ends    []uint64
	details []byte

	kinds    map[rowKind]uint64
	kindList []byte
	last     rowKind // of the last row
	payload  []byte
}

func (b *pageBuilder) rows() uint32 { return uint32(len(b.firsts)) }

func (b *pageBuilder) add(r *dedup.Row) {
	k := rowKind{r.DetailFlags(), r.NamespaceID, r.Status, r.At.Topic, r.At.Partition}
	b.kindOf = append(b.kindOf, b.numberOf(k))
	b.digests = append(b.digests, r.Digest[:]...)
	b.firsts = append(b.firsts, uint64(r.First))
	b.offsets = append(b.offsets, uint64(r.At.Offset))
	b.details = r.AppendDetails(b.details)
	b.ends = append(b.ends, uint64(len(b.details)))
}

// numberOf returns the number of a kind. A new kind gets the next number.
func (b *pageBuilder) numberOf(k rowKind) uint64 {
	if n := len(b.kindOf); n > 0 && k == b.last {
		return b.kindOf[n-1]
	}
	b.last = k
	if n, found := b.kinds[k]; found {
		return n
	}
	if b.kinds == nil {
		b.kinds = make(map[rowKind]uint64)
	}
	n := uint64(len(b.kinds))
	b.kinds[k] = n
	b.kindList = append(b.kindList, k.flags, k.namespaceID, byte(k.status))
	b.kindList = binary.LittleEndian.AppendUint16(b.kindList, k.topic)
	b.kindList = binary.LittleEndian.AppendUint32(b.kindList, uint32(k.partition))
	return n
}

// bytes ends the page and returns its payload, which is valid until the next call of a method. Only reset may
// follow.
func (b *pageBuilder) bytes() []byte {
	rows := len(b.firsts)
	if rows == 0 {
		return nil
	}
	// The rows are in order of digest, so the leading bytes in which the first and the last digest agree are
	// the same in all digests.
	least := binary.BigEndian.Uint64(b.digests)
	differ := least ^ binary.BigEndian.Uint64(b.digests[16*(rows-1):])
	skip := min(bits.LeadingZeros64(differ)/8, maxSkip)
	first, firstWidth := subtractLeast(b.firsts)
	offset, offsetWidth := subtractLeast(b.offsets)
	kindWidth, endWidth := width(uint64(len(b.kinds)-1)), width(uint64(len(b.details)))

	p := binary.BigEndian.AppendUint64(b.payload[:0], least)
	p = append(p, byte(skip), byte(firstWidth), byte(offsetWidth), byte(kindWidth), byte(endWidth))
	p = binary.LittleEndian.AppendUint64(p, first)
	p = binary.LittleEndian.AppendUint64(p, offset)
	p = binary.LittleEndian.AppendUint32(p, uint32(len(b.kinds)))
	p = append(p, b.kindList...)
	for i := range rows {
		p = append(p, b.digests[16*i+skip:16*i+16]...)
	}
	p = appendColumn(p, b.firsts, firstWidth)
	p = appendColumn(p, b.offsets, offsetWidth)
	p = appendColumn(p, b.kindOf, kindWidth)
	p = appendColumn(p, b.ends, endWidth)
	p = append(p, b.details...)
	b.payload = p
	return p
}

// width returns how many bytes an integer up to most takes.
func width(most uint64) int { return (bits.Len64(most) + 7) / 8 }

// subtractLeast replaces the values by their differences to the least value, compared as signed integers. It
// returns the least value and the width of the differences.
func subtractLeast(values []uint64) (least uint64, bytes int) {
	least = values[0]
	for _, v := range values {
		if int64(v) < int64(least) {
			least = v
		}
	}
	most := uint64(0)
	for i := range values {
		values[i] -= least
		most = max(most, values[i])
	}
	return least, width(most)
}

func appendColumn(dst []byte, values []uint64, width int) []byte {
	var b [8]byte
	for _, v := range values {
		binary.LittleEndian.PutUint64(b[:], v)
		dst = append(dst, b[:width]...)
	}
	return dst
}

func (b *pageBuilder) reset() {
	b.digests, b.firsts, b.offsets, b.kindOf = b.digests[:0], b.firsts[:0], b.offsets[:0], b.kindOf[:0]
	b.ends, b.details, b.kindList = b.ends[:0], b.details[:0], b.kindList[:0]
	clear(b.kinds)
}
