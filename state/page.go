package state

import (
	"encoding/binary"
	"fmt"
	"math/bits"

	"oncebus/dedup"
)

// A page contains the rows of one range of digests, in order of digest:
//
//	digest 16 x rows | end of body 4 x rows | body x rows
//
// An end is relative to the first body. Digests are adjacent, so that a search
// touches little memory.
const rowOverhead = 16 + 4

// prefix returns the part of a digest that orders almost all rows and selects
// their page.
func prefix(d *dedup.Digest) uint64 { return binary.BigEndian.Uint64(d[:8]) }

// pageOf returns the page of a prefix among n pages. Digests are uniformly
// distributed, so the pages have about equal sizes and need no index.
func pageOf(prefix uint64, n uint32) uint32 {
	hi, _ := bits.Mul64(prefix, uint64(n))
	return uint32(hi)
}

// page is the decoded payload of a page block; it aliases the payload.
type page struct {
	rows    int
	digests []byte
	ends    []byte
	bodies  []byte
}

func decodePage(rows uint32, payload []byte) (page, error) {
	if uint64(rows)*rowOverhead > uint64(len(payload)) {
		return page{}, fmt.Errorf("%w: page of %d bytes is too short for %d rows", ErrCorrupt, len(payload), rows)
	}
	n := int(rows)
	p := page{rows: n, digests: payload[:16*n], ends: payload[16*n : rowOverhead*n], bodies: payload[rowOverhead*n:]}
	if n > 0 && p.end(n-1) != len(p.bodies) || n == 0 && len(p.bodies) != 0 {
		return page{}, fmt.Errorf("%w: lengths of the bodies of a page of %d rows and %d bytes are inconsistent", ErrCorrupt, rows, len(payload))
	}
	return p, nil
}

func (p *page) end(i int) int { return int(binary.LittleEndian.Uint32(p.ends[4*i:])) }

func (p *page) digest(i int) dedup.Digest { return dedup.Digest(p.digests[16*i : 16*i+16]) }

// body returns the encoded row i.
func (p *page) body(i int) ([]byte, error) {
	from := 0
	if i > 0 {
		from = p.end(i - 1)
	}
	to := p.end(i)
	if from > to || to > len(p.bodies) {
		return nil, fmt.Errorf("%w: row %d of a page ends at byte %d and begins at byte %d", ErrCorrupt, i, to, from)
	}
	return p.bodies[from:to], nil
}

// row decodes row i. Its Result aliases the page.
func (p *page) row(i int) (dedup.Row, error) {
	b, err := p.body(i)
	if err != nil {
		return dedup.Row{}, err
	}
	r := dedup.Row{Digest: p.digest(i)}
	n, err := r.DecodeBody(b)
	if err != nil {
		return dedup.Row{}, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if n != len(b) {
		return dedup.Row{}, fmt.Errorf("%w: %d bytes after row %v", ErrCorrupt, len(b)-n, r.Digest)
	}
	return r, nil
}

// find returns the index of d in the page.
func (p *page) find(d *dedup.Digest) (int, bool) {
	hi, lo := binary.BigEndian.Uint64(d[:8]), binary.BigEndian.Uint64(d[8:])
	from, to := 0, p.rows
	for from < to {
		mid := int(uint(from+to) >> 1)
		h := binary.BigEndian.Uint64(p.digests[16*mid:])
		if h < hi || h == hi && binary.BigEndian.Uint64(p.digests[16*mid+8:]) < lo {
			from = mid + 1
		} else {
			to = mid
		}
	}
	return from, from < p.rows && p.digest(from) == *d
}

// pageBuilder collects the rows of one page, added in order of digest.
type pageBuilder struct {
	rows    uint32
	digests []byte
	ends    []byte
	bodies  []byte
	payload []byte
}

func (b *pageBuilder) add(d *dedup.Digest, body []byte) {
	b.rows++
	b.digests = append(b.digests, d[:]...)
	b.bodies = append(b.bodies, body...)
	b.ends = binary.LittleEndian.AppendUint32(b.ends, uint32(len(b.bodies)))
}

// bytes returns the page's payload, valid until the next call of a method.
func (b *pageBuilder) bytes() []byte {
	b.payload = append(append(append(b.payload[:0], b.digests...), b.ends...), b.bodies...)
	return b.payload
}

func (b *pageBuilder) reset() {
	b.rows, b.digests, b.ends, b.bodies = 0, b.digests[:0], b.ends[:0], b.bodies[:0]
}
