package kafka

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/pierrec/lz4/v4"
)

// The readers in this file accept what Kafka's own clients accept, which is more than the formats allow. Brokers
// do not refuse such batches, so a topic may contain them.

// streamReader decompresses one stream after another; reset begins the next one.
type streamReader interface {
	io.Reader
	reset(src []byte) error
}

// gzipReader reads the members of a gzip stream. Like Java, it ignores bytes after a member that do not
// begin another member.
type gzipReader struct {
	gzip.Reader
	src bytes.Reader
}

func (r *gzipReader) reset(src []byte) error {
	r.src.Reset(src)
	return r.begin()
}

// begin begins the next member.
func (r *gzipReader) begin() error {
	err := r.Reset(&r.src)
	r.Multistream(false)
	return err
}

// gzipRestMax is the most bytes after a member that Java does not take for another member.
const gzipRestMax = 18

// Read implements io.Reader.
func (r *gzipReader) Read(to []byte) (n int, err error) {
	n, err = r.Reader.Read(to)
	if errors.Is(err, io.EOF) && r.src.Len() > gzipRestMax && r.begin() == nil {
		err = nil
	}
	return n, err
}

// lz4Reader reads one LZ4 frame. Like Java, it neither reads beyond the frame nor checks the frame's
// checksum and size. It does check the checksums of blocks, and the CRC of the batch covers everything.
type lz4Reader struct {
	*lz4.Reader
	src bytes.Reader
}

func (r *lz4Reader) reset(src []byte) error { //nolint:unparam // streamReader needs the error of gzip
	r.src.Reset(firstFrame(src))
	r.Reset(&r.src)
	return nil
}

// Read implements io.Reader.
func (r *lz4Reader) Read(to []byte) (n int, err error) {
	n, err = r.Reader.Read(to)
	if errors.Is(err, lz4.ErrInvalidFrameChecksum) || errors.Is(err, lz4.ErrInvalidContentSize) {
		err = io.EOF
	}
	return n, err
}

// The fields of an LZ4 frame, and the header flags that make the frame longer.
const (
	lz4Magic        = 0x184d2204
	lz4HeaderBytes  = 4 + 2 + 1
	lz4BlockSum     = 1 << 4
	lz4ContentSize  = 1 << 3
	lz4ContentSum   = 1 << 2
	lz4DictionaryID = 1 << 0
	lz4Uncompressed = 1 << 31
)

// firstFrame returns the LZ4 frame at the start of src. If src has no whole frame it returns all of
// src, so that the reader reports the error.
func firstFrame(src []byte) []byte {
	if len(src) < lz4HeaderBytes || binary.LittleEndian.Uint32(src) != lz4Magic {
		return src
	}
	flags, end := src[4], uint64(lz4HeaderBytes)
	if flags&lz4ContentSize != 0 {
		end += 8
	}
	if flags&lz4DictionaryID != 0 {
		end += 4
	}
	for end+4 <= uint64(len(src)) {
		size := binary.LittleEndian.Uint32(src[end:])
		end += 4
		if size == 0 {
			if flags&lz4ContentSum != 0 {
				end += 4
			}
			return src[:min(end, uint64(len(src)))]
		}
		end += uint64(size &^ lz4Uncompressed)
		if flags&lz4BlockSum != 0 {
			end += 4
		}
	}
	return src
}

var (
	gzipReaders = &sync.Pool{New: func() any { return new(gzipReader) }}
	lz4Readers  = &sync.Pool{New: func() any { return &lz4Reader{Reader: lz4.NewReader(nil)} }}
)
