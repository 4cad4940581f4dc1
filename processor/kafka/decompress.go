package kafka

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
	"github.com/twmb/franz-go/pkg/kgo"
)

// scratchBytes is the size up to which a batch is decompressed in one step, into memory that is used again. For
// a larger batch the decompressor first finds the decompressed size, and then allocates exactly the memory that
// the batch needs. franz-go's own decompressor doubles a buffer and copies it again and again, which takes four
// times the bytes of a large batch.
const scratchBytes = 1 << 20

// batchBytesMin is the least memory of a batch, in bytes: Go's runtime allocates several tiny objects
// as one, and may then never report that one of them is free.
const batchBytesMin = 64

// decompressor decompresses the batches of one client. It refuses with kgo.ErrMaxDecompress a batch
// that decompresses to more than batchMax bytes or whose records take more than recordsMax, and with
// ErrBudgetExhausted a batch for which the budget has no memory.
type decompressor struct {
	budget   *Budget
	batchMax int
	// refusedAt is when the budget last refused a batch of the client, in Unix ns. Because of it, only the first
	// refused batch of a response waits for the budget, and not each partition of the response in turn.
	refusedAt atomic.Int64
}

// damaged is the error about a batch that no client can decompress. errors.Is takes it for kgo.ErrMaxDecompress, so
// the client treats the batch like one that is too large: it stops before the batch and names its offsets.
type damaged struct{ cause error }

func (e damaged) Error() string        { return "the batch cannot be decompressed: " + e.cause.Error() }
func (e damaged) Unwrap() error        { return e.cause }
func (e damaged) Is(target error) bool { return target == kgo.ErrMaxDecompress }

// Decompress returns the decompressed bytes of a batch.
func (d *decompressor) Decompress(src []byte, codec kgo.CompressionCodecType) ([]byte, error) {
	batch, err := d.decompress(src, codec)
	if err == nil || errors.Is(err, kgo.ErrMaxDecompress) || errors.Is(err, ErrBudgetExhausted) || d.batchMax == readerBatchMax {
		return batch, err
	}
	return nil, damaged{err}
}

func (d *decompressor) decompress(src []byte, codec kgo.CompressionCodecType) ([]byte, error) {
	switch codec {
	case kgo.CodecNone:
		return src, nil
	case kgo.CodecGzip:
		return d.stream(src, gzipReaders)
	case kgo.CodecLz4:
		return d.stream(src, lz4Readers)
	case kgo.CodecSnappy:
		return d.snappy(src)
	case kgo.CodecZstd:
		return d.zstd(src)
	}
	return nil, fmt.Errorf("unknown compression codec %d", codec)
}

// scratches has the memory into which batches of at most scratchBytes are decompressed.
var scratches = sync.Pool{New: func() any { return new([scratchBytes]byte) }}

// allocate takes the memory of a batch of n bytes and of its records and headers from the budget, and
// returns memory for the bytes.
func (d *decompressor) allocate(n int, records, headers int64) ([]byte, error) {
	size := max(n, batchBytesMin)
	memory := int64(capacityOf(size)) + headers
	if !d.take(memory + records) {
		return nil, ErrBudgetExhausted
	}
	d.budget.giveBack(records) // pool takes the memory of the records at once
	batch := d.budget.batches.get(size, memory)[:n]
	d.budget.collectTaken()
	return batch, nil
}

// take takes memory from the budget. It waits until there is memory, unless a batch of the same client was
// refused just before.
func (d *decompressor) take(n int64) bool {
	if d.budget.take(n) {
		return true
	}
	if refused := d.refusedAt.Load(); time.Now().UnixNano()-refused < int64(sameResponse) {
		return false
	}
	for began := time.Now(); time.Since(began) < budgetWait; {
		<-time.After(budgetPoll)
		if d.budget.take(n) {
			return true
		}
	}
	d.refusedAt.Store(time.Now().UnixNano())
	d.budget.refusals.Add(1)
	return false
}

// finish copies a decompressed batch from the scratch memory into memory of its own.
func (d *decompressor) finish(scratch []byte) ([]byte, error) {
	records, headers := recordsMemory(scratch)
	if records+headers > d.recordsMax() {
		return nil, kgo.ErrMaxDecompress
	}
	batch, err := d.allocate(len(scratch), records, headers)
	if err != nil {
		return nil, err
	}
	copy(batch, scratch)
	return batch, nil
}

// fill makes memory for a batch of at most size bytes, into which decode then decompresses.
func (d *decompressor) fill(size int, decode func(batch []byte) ([]byte, error)) ([]byte, error) {
	batch, err := d.allocate(size, 0, 0)
	if err != nil {
		return nil, err
	}
	defer d.budget.boundGarbage()
	decoded, err := decode(batch)
	if err != nil {
		d.budget.batches.put(batch)
		return nil, err
	}
	records, headers := recordsMemory(decoded)
	if records+headers > d.recordsMax() {
		d.budget.batches.put(batch)
		return nil, kgo.ErrMaxDecompress
	}
	// The memory of headers and records counts even if it does not fit: otherwise a batch whose records do not
	// fit would never arrive.
	d.budget.add(headers)
	d.budget.batches.accountOf(batch).taken.Add(headers)
	return decoded, nil
}

// stream decompresses a batch of a codec that does not state the decompressed size.
func (d *decompressor) stream(src []byte, readers *sync.Pool) ([]byte, error) {
	reader := readers.Get().(streamReader)
	defer readers.Put(reader)
	if err := reader.reset(src); err != nil {
		return nil, err
	}
	scratch := scratches.Get().(*[scratchBytes]byte)
	defer scratches.Put(scratch)
	n, err := readAll(reader, scratch[:])
	if n > d.batchMax {
		return nil, kgo.ErrMaxDecompress
	}
	if err == nil {
		return d.finish(scratch[:n])
	}
	if !errors.Is(err, errFull) {
		return nil, err
	}
	more, err := io.Copy(io.Discard, io.LimitReader(reader, int64(d.batchMax-n)+1))
	if err != nil {
		return nil, err
	}
	size := n + int(more)
	if size > d.batchMax {
		return nil, kgo.ErrMaxDecompress
	}
	return d.fill(size, func(batch []byte) ([]byte, error) {
		if err := reader.reset(src); err != nil {
			return nil, err
		}
		_, err := io.ReadFull(reader, batch)
		return batch, err
	})
}

// errFull reports that a stream may be longer than the memory for it.
var errFull = errors.New("the stream fills the memory")

// readAll reads a stream to its end, or until to is full.
func readAll(stream io.Reader, to []byte) (n int, err error) {
	for n < len(to) {
		read, err := stream.Read(to[n:])
		n += read
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
	}
	return n, errFull
}

// xerialMagic begins a batch of several snappy blocks, as Java producers write it. The version and the
// least compatible version follow, 4 bytes each.
var xerialMagic = []byte{0x82, 'S', 'N', 'A', 'P', 'P', 'Y', 0}

const xerialHeaderBytes = 16

var errXerial = errors.New("malformed snappy framing")

// snappyBlocks returns the snappy blocks of a batch.
func snappyBlocks(src []byte) (blocks [][]byte, err error) {
	if len(src) <= xerialHeaderBytes || !bytes.HasPrefix(src, xerialMagic) {
		return [][]byte{src}, nil
	}
	for rest := src[xerialHeaderBytes:]; len(rest) > 0; {
		if len(rest) < 4 {
			return nil, errXerial
		}
		size := int64(binary.BigEndian.Uint32(rest))
		if rest = rest[4:]; size > int64(len(rest)) {
			return nil, errXerial
		}
		blocks, rest = append(blocks, rest[:size]), rest[size:]
	}
	return blocks, nil
}

// snappy decompresses the snappy blocks of a batch. Each block states its decompressed size.
func (d *decompressor) snappy(src []byte) ([]byte, error) {
	blocks, err := snappyBlocks(src)
	if err != nil {
		return nil, err
	}
	size := 0
	for _, block := range blocks {
		n, err := s2.DecodedLen(block)
		if err != nil {
			return nil, err
		}
		if size += n; size > d.batchMax {
			return nil, kgo.ErrMaxDecompress
		}
	}
	return d.decode(size, func(to []byte) ([]byte, error) {
		out := to[:0]
		for _, block := range blocks {
			// Without a size, the capacity would be the limit, and a block can be larger than the limit.
			decoded, err := s2.Decode(to[len(out):], block)
			if err != nil {
				return nil, err
			}
			out = to[:len(out)+len(decoded)]
		}
		return out, nil
	})
}

// decode decompresses a batch that decompresses to at most size bytes.
func (d *decompressor) decode(size int, decode func(to []byte) ([]byte, error)) ([]byte, error) {
	if size > scratchBytes {
		return d.fill(size, decode)
	}
	scratch := scratches.Get().(*[scratchBytes]byte)
	defer scratches.Put(scratch)
	batch, err := decode(scratch[:size:size])
	if err != nil {
		return nil, err
	}
	return d.finish(batch)
}

// zstds has decoders that never write beyond the memory that they are given.
var zstds = sync.Pool{New: func() any {
	decoder, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecodeAllCapLimit(true))
	if err != nil {
		panic(fmt.Errorf("%w: make a zstd decoder: %w", ErrIllegalState, err)) // cannot happen, because the options are constant
	}
	return decoder
}}

// zstd decompresses zstd frames. A frame may state its size; if not, each of its blocks has a largest
// size.
func (d *decompressor) zstd(src []byte) ([]byte, error) {
	size, known, err := zstdSize(src, d.batchMax)
	if err != nil {
		return nil, err
	}
	if known && size > d.batchMax {
		return nil, kgo.ErrMaxDecompress
	}
	decoder := zstds.Get().(*zstd.Decoder)
	defer zstds.Put(decoder)
	// The decoder needs memory for a whole block even if the batch ends at the limit.
	return d.decode(min(size, d.batchMax+zstdBlockMax), func(to []byte) ([]byte, error) {
		out, err := decoder.DecodeAll(src, to[:0])
		if len(out) > d.batchMax || errors.Is(err, zstd.ErrDecoderSizeExceeded) && size > d.batchMax {
			return nil, kgo.ErrMaxDecompress
		}
		return out, err
	})
}

const (
	zstdBlockMax      = 128 << 10
	zstdBlockHeader   = 3
	zstdChecksumBytes = 4
)

var errZstd = errors.New("malformed zstd frame")

// zstdSize returns the most bytes to which the frames decompress; known reports that this is their
// exact size. It stops when size exceeds limit.
func zstdSize(src []byte, limit int) (size int, known bool, err error) {
	known = true
	for len(src) > 0 && size <= limit {
		var frame zstd.Header
		if err := frame.Decode(src); err != nil {
			return 0, false, err
		}
		if src = src[frame.HeaderSize:]; frame.Skippable {
			if uint64(frame.SkippableSize) > uint64(len(src)) {
				return 0, false, errZstd
			}
			src = src[frame.SkippableSize:]
			continue
		}
		blocks, frameBytes, err := zstdBlocks(src)
		if err != nil {
			return 0, false, err
		}
		if frame.HasFCS {
			blocks = int(min(frame.FrameContentSize, uint64(limit)+1))
		} else {
			known = false
		}
		size += blocks
		if frame.HasCheckSum {
			frameBytes += zstdChecksumBytes
		}
		if frameBytes > len(src) {
			return 0, false, errZstd
		}
		src = src[frameBytes:]
	}
	return size, known, nil
}

// zstdBlocks returns the most bytes to which the blocks of a frame decompress, and their length in src.
func zstdBlocks(src []byte) (size, length int, err error) {
	for last := false; !last; {
		if len(src)-length < zstdBlockHeader {
			return 0, 0, errZstd
		}
		block := src[length:]
		header := int(block[0]) | int(block[1])<<8 | int(block[2])<<16
		last = header&1 != 0
		stored, decoded := header>>3, header>>3
		switch header >> 1 & 3 {
		case 1: // one byte, repeated
			stored = 1
		case 2: // compressed
			decoded = zstdBlockMax
		}
		size, length = size+decoded, length+zstdBlockHeader+stored
		if length > len(src) {
			return 0, 0, errZstd
		}
	}
	return size, length, nil
}
