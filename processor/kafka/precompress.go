package kafka

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"runtime"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// A broker judges the size of a batch as it arrives, compressed. The client judges a record before
// it compresses it, and so refuses one that would fit. Such a record is compressed before the
// client gets it: it becomes a record whose value is its compressed batch. The client sends that
// one alone, and the compressor puts the value in the place of the batch.

// batchOverhead is what a batch has besides its records.
const batchOverhead = 61

// precompressedOverhead bounds what the record around a compressed batch adds to it, besides the key.
const precompressedOverhead = batchOverhead + 64

// precompressedMark begins the value of a precompressed record. No sender knows it.
var precompressedMark = func() []byte {
	mark := make([]byte, 16)
	_, _ = rand.Read(mark) // never fails
	return mark
}()

// precompressing lets as many goroutines compress as there are processors, since a record may have
// ONCEBUS_MAX_DECOMPRESSED_BATCH_BYTES: more would take memory and be no faster.
var precompressing = make(chan struct{}, max(2, runtime.GOMAXPROCS(0)))

// largeCodecs are what a large record is compressed with: gzip, which every client reads, and the
// closer zstd where that is not enough.
var largeCodecs = []kgo.Compressor{codec(kgo.GzipCompression()), codec(kgo.ZstdCompression())}

func codec(c ...kgo.CompressionCodec) kgo.Compressor {
	compressor, err := kgo.DefaultCompressor(c...)
	if err != nil {
		panic(err) // it knows its own codecs
	}
	return compressor
}

// Precompress compresses a record, so that it fits into a batch of most bytes, and reports whether
// it does. It then has to be sent alone, by a client with [WithPrecompressed]. readMax is to how many
// bytes the readers of its topic decompress a batch, 0 for no bound: they would skip a larger one.
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

// IsPrecompressed reports whether a record is one that Precompress made.
func IsPrecompressed(r *kgo.Record) bool { return bytes.HasPrefix(r.Value, precompressedMark) }

// encodeAlone returns the records of a batch of one.
func encodeAlone(r *kgo.Record) []byte {
	rec := kmsg.Record{Key: r.Key, Value: r.Value}
	for i := range r.Headers {
		rec.Headers = append(rec.Headers, kmsg.Header{Key: r.Headers[i].Key, Value: r.Headers[i].Value})
	}
	rest := rec.AppendTo(nil)[1:] // behind a length of 0
	body := binary.AppendVarint(make([]byte, 0, binary.MaxVarintLen32+len(rest)), int64(len(rest)))
	return append(body, rest...)
}

// WithPrecompressed lets a client send precompressed records. All other batches are compressed as
// the client does by default.
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

// firstValue returns the value of the first of the records in a batch, nil for none, and what follows it.
func firstValue(records []byte) (value, rest []byte) {
	// Of a record: its length, attributes, the deltas of its timestamp and offset, and its key.
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
