package state

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"oncebus/dedup"
)

// ErrCorrupt is wrapped by every error about damaged local files. The caller
// must quarantine the directory and rebuild the store from the changelog.
var ErrCorrupt = errors.New("corrupt state")

// ErrForeign is wrapped if the identity in a directory differs from the identity that the caller of Open gave.
// As for ErrCorrupt, the caller must quarantine the directory and rebuild the store.
var ErrForeign = errors.New("foreign state")

// blockHeader starts every value of a run in Badger: a page, a chunk of a large page, or a chunk of the
// filter. It repeats the block's key, so that decodeBlock and check detect a moved, old or damaged block.
// They also detect an unreadable value, which Badger returns as an empty value without an error.
type blockHeader struct {
	kind   blockKind
	run    uint64 // the run's id
	nonce  uint64 // random number of the run, also in the manifest
	part   uint32 // number of the page; 0 for a filter
	chunk  uint16 // index among the chunks of the part
	chunks uint16
	rows   uint32 // rows of the whole part
}

// blockKind distinguishes pages and filters, in keys and in headers.
type blockKind uint8

const (
	kindPage   blockKind = 'p'
	kindFilter blockKind = 'f'
)

// Layout of a block, little endian:
//
//	version 1 | kind 1 | row version 1 | 0 | CRC-32C 4 of all that follows |
//	run 8 | nonce 8 | part 4 | chunk 2 | chunks 2 | rows 4 | length 4 | payload
const (
	blockVersion     = 3 // version 3: the first half of a digest selects the filter block
	blockHeaderBytes = 40
	blockSumFrom     = 8
	// chunkBytes is the longest payload of a block, so that a block fits into the smallest value-log file.
	chunkBytes = 512 << 10
	maxChunks  = 1<<16 - 1
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// appendBlockHeader appends a header for a payload that the caller appends
// next; sealBlock completes it.
func appendBlockHeader(dst []byte, h blockHeader) []byte {
	dst = append(dst, blockVersion, byte(h.kind), dedup.RowVersion, 0, 0, 0, 0, 0)
	dst = binary.LittleEndian.AppendUint64(dst, h.run)
	dst = binary.LittleEndian.AppendUint64(dst, h.nonce)
	dst = binary.LittleEndian.AppendUint32(dst, h.part)
	dst = binary.LittleEndian.AppendUint16(dst, h.chunk)
	dst = binary.LittleEndian.AppendUint16(dst, h.chunks)
	dst = binary.LittleEndian.AppendUint32(dst, h.rows)
	return binary.LittleEndian.AppendUint32(dst, 0)
}

// sealBlock sets length and checksum of a whole block.
func sealBlock(block []byte) {
	binary.LittleEndian.PutUint32(block[36:], uint32(len(block)-blockHeaderBytes))
	binary.LittleEndian.PutUint32(block[4:], crc32.Checksum(block[blockSumFrom:], castagnoli))
}

// decodeBlock verifies a block and returns its header and payload. The payload
// aliases b.
func decodeBlock(b []byte) (blockHeader, []byte, error) {
	if len(b) < blockHeaderBytes {
		return blockHeader{}, nil, fmt.Errorf("%w: block has %d bytes, fewer than its header", ErrCorrupt, len(b))
	}
	if b[0] != blockVersion || b[2] != dedup.RowVersion || b[3] != 0 {
		return blockHeader{}, nil, fmt.Errorf("%w: block version %d, row version %d; this build reads %d, %d",
			ErrCorrupt, b[0], b[2], blockVersion, dedup.RowVersion)
	}
	if sum := crc32.Checksum(b[blockSumFrom:], castagnoli); sum != binary.LittleEndian.Uint32(b[4:]) {
		return blockHeader{}, nil, fmt.Errorf("%w: block checksum does not match", ErrCorrupt)
	}
	if n := binary.LittleEndian.Uint32(b[36:]); uint64(n) != uint64(len(b)-blockHeaderBytes) {
		return blockHeader{}, nil, fmt.Errorf("%w: block has %d bytes, its header %d", ErrCorrupt, len(b)-blockHeaderBytes, n)
	}
	h := blockHeader{
		kind:   blockKind(b[1]),
		run:    binary.LittleEndian.Uint64(b[8:]),
		nonce:  binary.LittleEndian.Uint64(b[16:]),
		part:   binary.LittleEndian.Uint32(b[24:]),
		chunk:  binary.LittleEndian.Uint16(b[28:]),
		chunks: binary.LittleEndian.Uint16(b[30:]),
		rows:   binary.LittleEndian.Uint32(b[32:]),
	}
	return h, b[blockHeaderBytes:], nil
}

// check returns ErrCorrupt unless the header matches the key of the look-up.
func (h blockHeader) check(r *run, kind blockKind, part uint32, chunk uint16) error {
	if h.kind != kind || h.run != r.id || h.nonce != r.nonce || h.part != part || h.chunk != chunk || h.chunk >= h.chunks {
		return fmt.Errorf("%w: read block %c of run %d part %d chunk %d/%d, expected %c of run %d part %d chunk %d",
			ErrCorrupt, h.kind, h.run, h.part, h.chunk, h.chunks, kind, r.id, part, chunk)
	}
	return nil
}

// Keys in Badger. All blocks of a run share a prefix, so that runIDs needs one
// seek per run.
const (
	runPrefix     = 'r'
	fillerPrefix  = 'z' // keys of values without meaning; see database.fillMemTable
	blockKeyBytes = 16
)

var manifestKey = []byte("m")

func appendRunPrefix(dst []byte, run uint64) []byte {
	return binary.BigEndian.AppendUint64(append(dst, runPrefix), run)
}

func appendBlockKey(dst []byte, run uint64, kind blockKind, part uint32, chunk uint16) []byte {
	dst = append(appendRunPrefix(dst, run), byte(kind))
	dst = binary.BigEndian.AppendUint32(dst, part)
	return binary.BigEndian.AppendUint16(dst, chunk)
}

func runOfKey(key []byte) uint64 { return binary.BigEndian.Uint64(key[1:]) }
