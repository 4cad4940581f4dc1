package kafka

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// compressed is a batch's records as a producer compresses them.
type compressed struct {
	name  string
	codec kgo.CompressionCodecType
	data  []byte
}

// compressAll compresses data in every way in which producers do.
func compressAll(t *testing.T, data []byte) (all []compressed) {
	t.Helper()
	for _, codec := range []kgo.CompressionCodec{kgo.GzipCompression(), kgo.SnappyCompression(), kgo.Lz4Compression(), kgo.ZstdCompression()} {
		compressor, err := kgo.DefaultCompressor(codec)
		if err != nil {
			t.Fatal(err)
		}
		packed, kind := compressor.Compress(new(bytes.Buffer), data)
		if kind != kgo.CodecNone {
			all = append(all, compressed{fmt.Sprint("codec ", kind), kind, bytes.Clone(packed)})
		}
	}
	xerial := append(append([]byte{}, xerialMagic...), 0, 0, 0, 1, 0, 0, 0, 1)
	for rest := data; len(rest) > 0; {
		n := min(32<<10, len(rest))
		block := s2.EncodeSnappy(nil, rest[:n])
		xerial = append(binary.BigEndian.AppendUint32(xerial, uint32(len(block))), block...)
		rest = rest[n:]
	}
	// A stream has no content size, as Java producers write it.
	var stream bytes.Buffer
	w, err := zstd.NewWriter(&stream, zstd.WithEncoderConcurrency(1))
	if err != nil {
		t.Fatal(err)
	}
	_, _ = w.Write(data)
	_ = w.Close()
	frames := append([]byte{0x50, 0x2a, 0x4d, 0x18, 2, 0, 0, 0, 7, 7}, stream.Bytes()...) // a frame to skip
	if len(data) > 0 {
		all = append(all, compressed{"java snappy", kgo.CodecSnappy, xerial}, compressed{"zstd stream", kgo.CodecZstd, stream.Bytes()},
			compressed{"zstd frames", kgo.CodecZstd, frames})
	}
	return all
}

// testData is compressible and not all zero.
func testData(n int) []byte {
	draw := rand.New(rand.NewPCG(1, uint64(n)))
	data := make([]byte, n)
	for i := 0; i < n; i += 1 + draw.IntN(40) {
		data[i] = byte(draw.IntN(4))
	}
	return data
}

func TestDecompressesAllCodecs(t *testing.T) {
	t.Parallel()
	for _, size := range []int{1, 17, 1000, 128 << 10, 128<<10 + 1, scratchBytes - 1, scratchBytes, scratchBytes + 1, 2<<20 + 5} {
		data := testData(size)
		for _, c := range compressAll(t, data) {
			for _, limit := range []int{size, size + 1, math.MaxInt32} {
				d := &decompressor{budget: NewBudget(1 << 30), batchMax: limit}
				got, err := d.Decompress(c.data, c.codec)
				if err != nil || !bytes.Equal(got, data) {
					t.Errorf("%s of %d bytes, limit %d: got %d bytes, error %v", c.name, size, limit, len(got), err)
				}
				if used := d.budget.Used(); used < int64(size) || used > int64(size)+int64(size)/4+(256<<10)+headersOf(data) {
					t.Errorf("%s of %d bytes uses %d of the budget", c.name, size, used)
				}
				runtime.KeepAlive(got) // else the collector may have freed it before Used
			}
			d := &decompressor{budget: NewBudget(1 << 30), batchMax: size - 1}
			if got, err := d.Decompress(c.data, c.codec); !errors.Is(err, kgo.ErrMaxDecompress) {
				t.Errorf("%s of %d bytes, limit %d: got %d bytes, error %v", c.name, size, size-1, len(got), err)
			}
			if used := d.budget.Used(); used != 0 {
				t.Errorf("%s of %d bytes: a refused batch uses %d of the budget", c.name, size, used)
			}
		}
	}
	if _, err := new(decompressor).Decompress(nil, 7); err == nil {
		t.Error("codec 7 was decompressed")
	}
}

// TestDamagedBatchesReturnAnError changes bytes of compressed batches. franz-go's
// decompressor is the reference: it is not bounded, and has the same libraries.
func TestDamagedBatchesReturnAnError(t *testing.T) {
	t.Parallel()
	draw := rand.New(rand.NewPCG(2, 2))
	reference := kgo.DefaultDecompressor()
	for _, c := range compressAll(t, testData(200<<10)) {
		for range 300 {
			damaged := bytes.Clone(c.data[:1+draw.IntN(len(c.data))])
			for range draw.IntN(3) {
				damaged[draw.IntN(min(len(damaged), 1+draw.IntN(200_000)))] = byte(draw.Uint32())
			}
			d := &decompressor{budget: NewBudget(1 << 30), batchMax: 8 << 20}
			got, err := d.Decompress(damaged, c.codec)
			if err == nil {
				if want, err := reference.Decompress(damaged, c.codec); err != nil || !bytes.Equal(got, want) {
					t.Fatalf("%s: got %d bytes; franz-go has %d, error %v", c.name, len(got), len(want), err)
				}
			} else if used := d.budget.Used(); used != 0 {
				t.Fatalf("%s: a damaged batch uses %d bytes: %v", c.name, used, err)
			}
		}
	}
}

// records returns the records of a batch, each with headers of one byte.
func recordsOf(count, headers int) (batch []byte) {
	for n := range count {
		r := kmsg.Record{OffsetDelta: int32(n), Value: []byte("v")}
		for range headers {
			r.Headers = append(r.Headers, kmsg.Header{Key: "k"})
		}
		r.Length = int32(len(r.AppendTo(nil)) - 1)
		sized := r.AppendTo(nil)
		r.Length += int32(len(sized) - int(r.Length) - 1 - (len(binary.AppendVarint(nil, int64(r.Length))) - 1))
		batch = r.AppendTo(batch)
	}
	return batch
}

// TestRecordsCountAsMemory: a batch of tiny records takes twenty times its bytes.
func TestRecordsCountAsMemory(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ count, headers int }{{1, 0}, {1000, 0}, {1000, 3}, {3, 100}} {
		batch := recordsOf(c.count, c.headers)
		want, wantHeaders := int64(c.count)*recordBytes, int64(c.count*c.headers)*(headerBytes+1)
		if got, headers := recordsMemory(batch); got != want || headers != wantHeaders {
			t.Errorf("%d records with %d headers: %d and %d bytes, want %d and %d", c.count, c.headers, got, headers, want, wantHeaders)
		}
		for n := 0; n < len(batch); n += 1 + n/7 {
			if got, headers := recordsMemory(batch[:n]); got > want || headers > wantHeaders {
				t.Errorf("the first %d bytes take %d and %d, more than all", n, got, headers)
			}
		}
	}
}

// headersOf returns the memory of the headers of a batch.
func headersOf(batch []byte) int64 {
	_, headers := recordsMemory(batch)
	return headers
}

// TestBudget decides which batches get memory.
func TestBudget(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testBudget) // its clock moves only in Sleep
}

func testBudget(t *testing.T) {
	b := NewBudget(100)
	for _, step := range []struct {
		name string
		size int64 // released if negative
		want bool
	}{
		{"fits", 60, true},
		{"fits exactly", 40, true},
		{"does not fit", 1, false},
		{"release", -60, true},
		{"larger than the rest", 61, false},
		{"smaller than a refused one", 10, false},
		{"release", -30, true}, // 10 in use
		{"smaller than a refused one, below a quarter", 15, true},
		{"the refused one", 61, true},
		{"fits after it", 14, true},
		{"release", -75, true}, // 25 in use
		{"larger than the budget, a quarter in use", 1000, true},
		{"after it", 1, false},
		{"release", -1000, true},
		{"larger than the budget, more in use", 1000, true},
	} {
		if step.size < 0 {
			b.release(-step.size)
			continue
		}
		if got := b.take(step.size); got != step.want {
			t.Fatalf("%s: took %d = %v, in use %d", step.name, step.size, got, b.Used())
		}
	}
	if b.take(1) {
		t.Fatal("took 1 byte of an exhausted budget")
	}
	time.Sleep(stalledAfter + time.Millisecond) //nolint:forbidigo // the fake clock of the synctest bubble
	if !b.take(1) || b.take(1) {
		t.Error("a budget that refuses all batches for long accepts one")
	}
}

// TestBudgetGetsUnreachableBatchesBack: no caller returns memory.
func TestBudgetGetsUnreachableBatchesBack(t *testing.T) {
	t.Parallel()
	data := compressAll(t, testData(3<<20))
	d := &decompressor{budget: NewBudget(4 << 20), batchMax: math.MaxInt32}
	for n := range 8 {
		c := data[n%len(data)]
		for {
			batch, err := d.Decompress(c.data, c.codec)
			if err == nil {
				runtime.KeepAlive(batch)
				break
			}
			if !errors.Is(err, ErrBudgetExhausted) {
				t.Fatal(err)
			}
		}
	}
}

// TestReadersShareTheBudgetOfTheirClient: restores read with the client of the process.
func TestReadersShareTheBudgetOfTheirClient(t *testing.T) {
	t.Parallel()
	budget := NewBudget(1 << 20)
	client, err := kgo.NewClient(append(budget.ClientOptions(1<<20), kgo.SeedBrokers("127.0.0.1:1"))...)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	d, ok := NewReader(client, "changelog", [16]byte{}, 0).decompressor.(*decompressor)
	if !ok || d.budget != budget || d.batchMax != readerBatchMax {
		t.Errorf("the reader decompresses with %+v", d)
	}
}
