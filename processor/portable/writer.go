package portable

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash"
	"hash/crc32"
	"io"

	"github.com/klauspost/compress/zstd"

	"oncebus/dedup"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Writer writes a file. After an error it must not be used any more.
type Writer struct {
	to      io.Writer
	sum     hash.Hash
	encoder *zstd.Encoder
	trailer Trailer

	// The following fields are about the block that is not written yet.
	rows    int
	before  Row
	digests []byte
	bodies  []byte
	block   []byte // buffer
}

// NewWriter writes the header of a file.
func NewWriter(to io.Writer, h *Header) (*Writer, error) {
	// One goroutine compresses the blocks one by one, so that the bytes of the file depend only on the rows.
	encoder, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedBetterCompression))
	if err != nil {
		return nil, err
	}
	w := &Writer{to: to, sum: sha256.New(), encoder: encoder, trailer: Trailer{ByNamespace: make([]int64, len(h.Namespaces))}}
	encoded, err := json.Marshal(h)
	if err != nil {
		return nil, fmt.Errorf("encode the header: %w", err)
	}
	err = w.write(appendJSON(append([]byte(magic), h.version()), encoded))
	return w, err
}

// appendJSON appends the length, the text and the checksum.
func appendJSON(dst, encoded []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(encoded)))
	dst = append(dst, encoded...)
	return binary.BigEndian.AppendUint32(dst, crc32.Checksum(encoded, castagnoli))
}

func (w *Writer) write(b []byte) error {
	w.sum.Write(b)
	_, err := w.to.Write(b)
	return err
}

// Add adds a row, whose namespace and task must be in the header.
func (w *Writer) Add(r *Row) error {
	if w.rows == 0 {
		w.before = Row{}
	}
	w.digests = append(w.digests, r.Digest[:]...)
	w.bodies = appendBody(w.bodies, r, &w.before, w.rows == 0)
	w.before = Row{Row: dedup.Row{NamespaceID: r.NamespaceID, First: r.First}, Task: r.Task}
	w.rows++
	w.trailer.count(r)
	if w.rows == RowsPerBlock || len(w.bodies) >= bodiesSoft {
		return w.endBlock()
	}
	return nil
}

func (w *Writer) endBlock() error {
	if w.rows == 0 {
		return nil
	}
	packed := w.encoder.EncodeAll(w.bodies, nil)
	b := w.block[:0]
	b = append(b, 'B')
	for _, n := range []int{w.rows, len(w.bodies), len(packed)} {
		b = binary.BigEndian.AppendUint32(b, uint32(n))
	}
	b = append(append(b, w.digests...), packed...)
	b = binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
	w.block, w.rows, w.digests, w.bodies = b, 0, w.digests[:0], w.bodies[:0]
	w.trailer.Blocks++
	return w.write(b)
}

// Close writes the trailer and returns it. It does not close the underlying writer.
func (w *Writer) Close() (*Trailer, error) {
	if err := w.endBlock(); err != nil {
		return nil, err
	}
	encoded, err := json.Marshal(&w.trailer)
	if err != nil {
		return nil, fmt.Errorf("encode the trailer: %w", err)
	}
	if err := w.write(appendJSON([]byte{'T'}, encoded)); err != nil {
		return nil, err
	}
	if _, err := w.to.Write(w.sum.Sum(nil)); err != nil {
		return nil, err
	}
	return &w.trailer, nil
}
