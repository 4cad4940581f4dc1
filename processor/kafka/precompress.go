package kafka

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"runtime"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// A broker checks the size of a batch as it arrives, compressed. The client checks the size of a record before
// it compresses the record, and so rejects a record that would fit. Such a record is therefore compressed before
// the client gets it: Precompress replaces the record's value by the compressed batch that contains the record.
// The client then builds a batch of its own around this value, and precompressor replaces that batch by the
// value.

// batchOverhead is the size of a batch without its records, in bytes.
const batchOverhead = 61

// precompressedOverhead bounds what the record around a compressed batch adds to it, besides the key,
// in bytes.
const precompressedOverhead = batchOverhead + 64

// precompressedMark begins the value of a precompressed record. It is random, so no sender can forge
// it.
var precompressedMark = func() []byte {
	mark := make([]byte, 16)
	_, _ = rand.Read(mark) // never fails
	return mark
}()

// precompressing limits the goroutines that compress to the number of processors (at least 2). A record
// may have ONCEBUS_MAX_DECOMPRESSED_BATCH_BYTES, so more goroutines would take memory without being
// faster.
var precompressing = make(chan struct{}, max(2, runtime.GOMAXPROCS(0)))

// largeCodecs are the codecs tried for a large record: first gzip, which every client reads, then zstd,
// which compresses more.
var largeCodecs = []kgo.Compressor{codec(kgo.GzipCompression()), codec(kgo.ZstdCompression())}

func codec(c ...kgo.CompressionCodec) kgo.Compressor {
	compressor, err := kgo.DefaultCompressor(c...)
	if err != nil {
		panic(err) // franz-go knows its own codecs
	}
	return compressor
}

// Precompress compresses a record so that it fits into a batch of most bytes, and reports whether it
// fits. The record must then be sent alone, by a client with [WithPrecompressed]. readMax is the most
// bytes to which the readers of the topic decompress a batch (they skip a larger batch); 0 means no
// bound.
func Precompress(r *kgo.Record, most, readMax int) bool {
	if readMax > 0 && len(r.Value) > readMax {
		return false
	}
	precompressing <- struct{}{}
	defer func() { <-precompressing }()
	body := encodeAlone(r)
	if readMax > 0 && len(body) > readMax {
		return false
	}
	for _, c := range largeCodecs {
		packed, kind := c.Compress(new(bytes.Buffer), body)
		if kind == kgo.CodecNone || precompressedOverhead+len(r.Key)+len(packed) > most {
			continue
		}
		value := append(make([]byte, 0, len(precompressedMark)+1+len(packed)), precompressedMark...)
		r.Value, r.Headers = append(append(value, byte(kind)), packed...), nil
		return true
	}
	return false
}

// IsPrecompressed reports whether Precompress made the record.
func IsPrecompressed(r *kgo.Record) bool { return bytes.HasPrefix(r.Value, precompressedMark) }

// encodeAlone returns the records part of a batch that contains only r.
func encodeAlone(r *kgo.Record) []byte {
	rec := kmsg.Record{Key: r.Key, Value: r.Value}
	for i := range r.Headers {
		rec.Headers = append(rec.Headers, kmsg.Header{Key: r.Headers[i].Key, Value: r.Headers[i].Value})
	}
	rest := rec.AppendTo(nil)[1:] // after a length of 0
	body := binary.AppendVarint(make([]byte, 0, binary.MaxVarintLen32+len(rest)), int64(len(rest)))
	return append(body, rest...)
}

// WithPrecompressed lets a client send precompressed records. It compresses all other batches as the
// client does by default.
func WithPrecompressed() kgo.Opt {
	return kgo.WithCompressor(precompressor{codec(kgo.SnappyCompression(), kgo.NoCompression())})
}

type precompressor struct{ kgo.Compressor }

// Compress implements kgo.Compressor.
func (c precompressor) Compress(dst *bytes.Buffer, records []byte, flags ...kgo.CompressFlag) ([]byte, kgo.CompressionCodecType) {
	value, rest := firstValue(records)
	packed, marked := bytes.CutPrefix(value, precompressedMark)
	switch {
	case !marked:
		return c.Compressor.Compress(dst, records, flags...)
	case len(rest) > 1: // more than the number of its headers
		panic("a precompressed record is not alone in its batch: it would replace the others")
	}
	return packed[1:], kgo.CompressionCodecType(packed[0])
}

// firstValue returns the value of the first record in a batch, nil for none, and the bytes after it.
func firstValue(records []byte) (value, rest []byte) {
	// A record begins with its length, attributes, the deltas of its timestamp and offset, and its key.
	for field := range 5 {
		if field == 1 {
			records = records[min(1, len(records)):]
			continue
		}
		n, width := binary.Varint(records)
		if width <= 0 {
			return nil, nil
		}
		records = records[width:]
		if field == 4 {
			records = records[min(max(n, 0), int64(len(records))):]
		}
	}
	n, width := binary.Varint(records)
	if width <= 0 || n < 0 || n > int64(len(records)-width) {
		return nil, nil
	}
	return records[width : width+int(n)], records[width+int(n):]
}
