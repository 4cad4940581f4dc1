package kafka

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/pierrec/lz4/v4"
	"github.com/twmb/franz-go/pkg/kgo"
)

func gzipped(t *testing.T, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := w.Write(data)
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func framed(t *testing.T, data []byte, options ...lz4.Option) []byte {
	t.Helper()
	var b bytes.Buffer
	w := lz4.NewWriter(&b)
	if err := w.Apply(options...); err != nil {
		t.Fatal(err)
	}
	_, err := w.Write(data)
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestReadsWhatJavaReads: streams that Kafka's own clients read, with a wrong checksum of the content
// or bytes behind the end, give the same bytes here. Small ones are read in one step, large ones are
// measured first.
func TestReadsWhatJavaReads(t *testing.T) {
	t.Parallel()
	for _, size := range []int{0, 3, 200, 70_000, scratchBytes + 5, 3 * scratchBytes} {
		data := testData(size)
		member := gzipped(t, data)
		frame := framed(t, data, lz4.ChecksumOption(true))
		wrongSum := bytes.Clone(frame)
		wrongSum[len(wrongSum)-1] ^= 1
		cat := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
		garbage := bytes.Repeat([]byte("x"), 40)
		for _, c := range []struct {
			name  string
			codec kgo.CompressionCodecType
			src   []byte
			want  []byte
		}{
			{"LZ4", kgo.CodecLz4, frame, data},
			{"LZ4 with a wrong checksum", kgo.CodecLz4, wrongSum, data},
			{"LZ4 with a byte behind it", kgo.CodecLz4, cat(frame, []byte{0}), data},
			{"LZ4 with garbage behind it", kgo.CodecLz4, cat(frame, garbage), data},
			{"LZ4 with a wrong checksum and garbage behind it", kgo.CodecLz4, cat(wrongSum, garbage), data},
			{"two LZ4 frames", kgo.CodecLz4, cat(frame, framed(t, []byte("other"))), data},
			{"LZ4 without a checksum and garbage behind it", kgo.CodecLz4, cat(framed(t, data, lz4.ChecksumOption(false)), garbage), data},
			{"LZ4 with checksums of blocks and garbage behind it", kgo.CodecLz4, cat(framed(t, data, lz4.BlockChecksumOption(true)), garbage), data},
			{"LZ4 with a size and garbage behind it", kgo.CodecLz4, cat(framed(t, data, lz4.SizeOption(uint64(size))), garbage), data},
			{"gzip", kgo.CodecGzip, member, data},
			{"gzip with a byte behind it", kgo.CodecGzip, cat(member, []byte{0}), data},
			{"gzip with garbage behind it", kgo.CodecGzip, cat(member, garbage), data},
			{"two gzip members", kgo.CodecGzip, cat(member, gzipped(t, []byte("other"))), cat(data, []byte("other"))},
			{"two gzip members with garbage behind them", kgo.CodecGzip, cat(member, gzipped(t, []byte("other")), garbage), cat(data, []byte("other"))},
		} {
			d := &decompressor{budget: NewBudget(1 << 30), batchMax: 8 << 20}
			got, err := d.Decompress(c.src, c.codec)
			if err != nil || !bytes.Equal(got, c.want) {
				t.Errorf("%s of %d bytes: got %d bytes, error %v", c.name, size, len(got), err)
			}
		}
	}
}

// TestDamageStopsTheClient: a batch that no client can decompress is announced with its offsets, as
// one that is too large. A reader of our own topics gets the error itself.
func TestDamageStopsTheClient(t *testing.T) {
	t.Parallel()
	member, frame := gzipped(t, testData(5000)), framed(t, testData(5000), lz4.BlockChecksumOption(true))
	member[len(member)-6] ^= 1 // its CRC, which Java compares
	frame[4+2+1+4+9] ^= 1      // a byte of its first block
	cut := framed(t, testData(5000))
	binary.LittleEndian.PutUint32(cut, 1) // no magic
	for name, c := range map[string]struct {
		codec kgo.CompressionCodecType
		src   []byte
	}{
		"gzip": {kgo.CodecGzip, member}, "LZ4": {kgo.CodecLz4, frame}, "no LZ4": {kgo.CodecLz4, cut}, "snappy": {kgo.CodecSnappy, []byte("garbage")},
		"zstd": {kgo.CodecZstd, []byte("garbage")}, "unknown codec": {7, []byte("garbage")},
	} {
		d := &decompressor{budget: NewBudget(1 << 30), batchMax: 8 << 20}
		if _, err := d.Decompress(c.src, c.codec); !errors.Is(err, kgo.ErrMaxDecompress) {
			t.Errorf("%s: %v", name, err)
		}
		d = &decompressor{budget: NewBudget(1 << 30), batchMax: readerBatchMax}
		if _, err := d.Decompress(c.src, c.codec); err == nil || errors.Is(err, kgo.ErrMaxDecompress) {
			t.Errorf("%s: a reader gets %v", name, err)
		}
	}
}
