package state

import (
	"encoding/binary"
	"math/bits"

	"oncebus/dedup"
)

// filter is a split-block Bloom filter as Apache Parquet and Impala define it (Putze, Sanders, Singler:
// "Cache-, Hash- and Space-Efficient Bloom Filters", 2007): a key sets one bit in each of the eight words of
// one block, so a look-up touches one cache line. With 16 bits a key, about one absent key in a thousand is a
// false hit; there are no false misses.
//
// The first half of a digest selects the block of the filter, and it also selects the page. Because the rows of
// a run are written in order of digest, the filter of a run is filled from its first block to its last. If the
// second half selected the block, each key would miss the CPU cache: at 50 million keys that took 5 % of the
// process's CPU. The second half selects the bits.
//
// A binary fuse filter of 8 bits would take 40 % less memory. But building it takes four times as long and
// additional memory, and a look-up misses the CPU cache three times instead of once.
type filter struct{ blocks []filterBlock }

type filterBlock [8]uint32

const (
	filterBlockBytes   = 32
	filterKeysPerBlock = 16
	maxFilterBlocks    = 1 << 28
)

// filterSalts are the odd multipliers of the Parquet specification.
var filterSalts = [8]uint32{
	0x47b6137b, 0x44974d91, 0x8824ad5b, 0xa2b7289d,
	0x705495c7, 0x2df1424b, 0x9efc4947, 0x5c6bfb31,
}

// newFilter returns an empty filter for that many rows.
func newFilter(rows uint64) filter {
	return filter{make([]filterBlock, max(1, (rows+filterKeysPerBlock-1)/filterKeysPerBlock))}
}

func (f filter) block(d *dedup.Digest) (*filterBlock, uint32) {
	block, _ := bits.Mul64(prefix(d), uint64(len(f.blocks)))
	return &f.blocks[block], binary.LittleEndian.Uint32(d[8:])
}

func (f filter) add(d *dedup.Digest) {
	b, k := f.block(d)
	for i, salt := range filterSalts {
		b[i] |= 1 << (k * salt >> 27)
	}
}

// has reports whether d may have been added. The answer false is certain.
func (f filter) has(d *dedup.Digest) bool {
	b, k := f.block(d)
	for i, salt := range filterSalts {
		if b[i]>>(k*salt>>27)&1 == 0 {
			return false
		}
	}
	return true
}

// append appends the encoded blocks, little endian, to dst.
func (f filter) append(dst []byte) []byte {
	for i := range f.blocks {
		for _, w := range f.blocks[i] {
			dst = binary.LittleEndian.AppendUint32(dst, w)
		}
	}
	return dst
}

// load decodes the blocks that append encoded.
func (f filter) load(b []byte) {
	for i := range f.blocks {
		for w := range f.blocks[i] {
			f.blocks[i][w] = binary.LittleEndian.Uint32(b[i*filterBlockBytes+4*w:])
		}
	}
}
