package portable

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"iter"

	"github.com/klauspost/compress/zstd"

	"oncebus/dedup"
)

// Is reports whether a file begins as an OBX1 file does.
func Is(start []byte) bool { return len(start) >= len(magic) && string(start[:len(magic)]) == magic }

// MagicBytes is how many bytes of the file Is needs.
const MagicBytes = len(magic)

// Reader reads a file from its start to its end.
type Reader struct {
	Header Header

	from    *bufio.Reader
	sum     hash.Hash
	offset  int64
	decoder *zstd.Decoder
	counted Trailer
	trailer *Trailer
	digest  string
	block   []byte
	bodies  []byte
}

// NewReader reads the header of a file. Errors about the content of the file wrap ErrFile.
func NewReader(from io.Reader) (*Reader, error) {
	decoder, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(bodiesMax))
	if err != nil {
		return nil, err
	}
	r := &Reader{from: bufio.NewReaderSize(from, 1<<20), sum: sha256.New(), decoder: decoder}
	start, err := r.take(len(magic) + 1)
	switch {
	case err != nil:
		return nil, err
	case !Is(start):
		return nil, fmt.Errorf("%w: it begins with %q", ErrFile, start)
	case start[len(magic)] < version || start[len(magic)] > versionLeaving:
		return nil, fmt.Errorf("%w: version %d, this build reads %d to %d", ErrFile, start[len(magic)], version, versionLeaving)
	}
	written := start[len(magic)] // take uses the buffer of start again
	if err := r.readJSON("header", &r.Header); err != nil {
		return nil, err
	}
	if written != r.Header.version() {
		return nil, fmt.Errorf("%w: version %d with the header of version %d", ErrFile, written, r.Header.version())
	}
	if len(r.Header.Namespaces) > 256 {
		return nil, fmt.Errorf("%w: %d namespaces in the header, at most 256", ErrFile, len(r.Header.Namespaces))
	}
	r.counted.ByNamespace = make([]int64, len(r.Header.Namespaces))
	return r, nil
}

// take reads n bytes in steps, so that it allocates memory only for bytes that the file really has, and not for
// a length that a damaged file claims.
func (r *Reader) take(n int) ([]byte, error) {
	const step = 1 << 20
	r.block = r.block[:0]
	for len(r.block) < n {
		more := min(step, n-len(r.block))
		at := len(r.block)
		r.block = append(r.block, make([]byte, more)...)
		got, err := io.ReadFull(r.from, r.block[at:])
		r.offset += int64(got)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, fmt.Errorf("%w: it ends at offset %d, within %d bytes", ErrFile, r.offset, n)
		}
		if err != nil {
			return nil, err
		}
	}
	r.sum.Write(r.block)
	return r.block, nil
}

func (r *Reader) readJSON(what string, to any) error {
	b, err := r.take(4)
	if err != nil {
		return err
	}
	n := binary.BigEndian.Uint32(b)
	if n > headerMax {
		return fmt.Errorf("%w: a %s of %d bytes at offset %d", ErrFile, what, n, r.offset)
	}
	if b, err = r.take(int(n) + 4); err != nil {
		return err
	}
	if crc32.Checksum(b[:n], castagnoli) != binary.BigEndian.Uint32(b[n:]) {
		return fmt.Errorf("%w: the checksum of the %s before offset %d is wrong", ErrFile, what, r.offset)
	}
	if err := json.Unmarshal(b[:n], to); err != nil {
		return fmt.Errorf("%w: decode the %s: %w", ErrFile, what, err)
	}
	return nil
}

// Rows yields all rows, and at the end an error if the file is not complete. A row is valid until the next one
// is yielded. Rows may be called only once.
func (r *Reader) Rows() iter.Seq2[*Row, error] {
	return func(yield func(*Row, error) bool) {
		for {
			going, err := r.readPart(yield)
			if err != nil {
				yield(nil, err)
				return
			}
			if !going {
				return
			}
		}
	}
}

// readPart reads a block or the trailer. It returns false after the trailer, and if yield has returned false.
func (r *Reader) readPart(yield func(*Row, error) bool) (going bool, err error) {
	kind, err := r.take(1)
	if err != nil {
		return false, err
	}
	switch kind[0] {
	case 'B':
		return r.readBlock(yield)
	case 'T':
		return false, r.readTrailer()
	}
	return false, fmt.Errorf("%w: neither a block nor the trailer at offset %d", ErrFile, r.offset-1)
}

// readBlock yields the rows of a block. It returns false if yield has returned false.
func (r *Reader) readBlock(yield func(*Row, error) bool) (going bool, err error) {
	at := r.offset - 1
	damaged := func(format string, args ...any) error {
		return fmt.Errorf("%w: block %d at offset %d: %s", ErrFile, r.counted.Blocks+1, at, fmt.Sprintf(format, args...))
	}
	lengths, err := r.take(12)
	if err != nil {
		return false, damaged("%v", err)
	}
	crc := crc32.Update(crc32.Checksum([]byte{'B'}, castagnoli), castagnoli, lengths)
	rows, raw, packed := binary.BigEndian.Uint32(lengths), binary.BigEndian.Uint32(lengths[4:]), binary.BigEndian.Uint32(lengths[8:])
	if rows == 0 || rows > RowsPerBlock || raw > bodiesMax || packed > bodiesMax {
		return false, damaged("%d rows, %d bytes of bodies, %d compressed", rows, raw, packed)
	}
	digests := int(rows) * len(dedup.Digest{})
	b, err := r.take(digests + int(packed) + 4)
	if err != nil {
		return false, damaged("%v", err)
	}
	if end := len(b) - 4; crc32.Update(crc, castagnoli, b[:end]) != binary.BigEndian.Uint32(b[end:]) {
		return false, damaged("its checksum is wrong")
	}
	if r.bodies, err = r.decoder.DecodeAll(b[digests:digests+int(packed)], r.bodies[:0]); err != nil || len(r.bodies) != int(raw) {
		return false, damaged("its bodies decompress to %d bytes, want %d: %v", len(r.bodies), raw, err)
	}
	r.counted.Blocks++
	var row Row
	bodies := r.bodies
	for i := range int(rows) {
		if bodies, err = row.readBody(bodies, i == 0); err != nil {
			return false, damaged("row %d: %v", i+1, err)
		}
		copy(row.Digest[:], b[i*len(row.Digest):])
		if int(row.NamespaceID) >= len(r.Header.Namespaces) || row.Task >= len(r.Header.Tasks) {
			return false, damaged("row %d has namespace id %d and task %d, which the header lacks", i+1, row.NamespaceID, row.Task)
		}
		r.counted.count(&row)
		if !yield(&row, nil) {
			return false, nil
		}
	}
	if len(bodies) > 0 {
		return false, damaged("%d bytes after its last row", len(bodies))
	}
	return true, nil
}

func (r *Reader) readTrailer() error {
	var t Trailer
	if err := r.readJSON("trailer", &t); err != nil {
		return err
	}
	want := r.sum.Sum(nil)
	got, err := r.take(sha256.Size)
	if err != nil {
		return err
	}
	if !bytes.Equal(got, want) {
		return fmt.Errorf("%w: its SHA-256 is %x, the trailer says %x", ErrFile, want, got)
	}
	if _, err := r.from.ReadByte(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: bytes after the trailer at offset %d", ErrFile, r.offset)
	}
	if t.Rows != r.counted.Rows || t.Blocks != r.counted.Blocks || t.Open != r.counted.Open || fmt.Sprint(t.ByNamespace) != fmt.Sprint(r.counted.ByNamespace) {
		return fmt.Errorf("%w: the trailer counts %d rows in %d blocks, the file has %d in %d", ErrFile, t.Rows, t.Blocks, r.counted.Rows, r.counted.Blocks)
	}
	r.trailer, r.digest = &t, hex.EncodeToString(want)
	return nil
}

// Trailer returns the trailer once Rows has read all rows; nil before.
func (r *Reader) Trailer() *Trailer { return r.trailer }

// Digest returns the SHA-256 of the file's content in hexadecimal digits, once Rows has read all rows.
func (r *Reader) Digest() string { return r.digest }
