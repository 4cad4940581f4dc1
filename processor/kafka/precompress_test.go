package kafka

import (
	"bytes"
	"crypto/rand"
	"strings"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
)

// meeting compresses nothing before two goroutines are in it.
type meeting struct {
	kgo.Compressor
	both *sync.WaitGroup
}

func (m meeting) Compress(dst *bytes.Buffer, records []byte, flags ...kgo.CompressFlag) ([]byte, kgo.CompressionCodecType) {
	m.both.Done()
	m.both.Wait()
	return m.Compressor.Compress(dst, records, flags...)
}

// TestLargeRecordsAreCompressedAtTheSameTime: no large record waits for that of another worker or request.
func TestLargeRecordsAreCompressedAtTheSameTime(t *testing.T) {
	codecs := largeCodecs
	defer func() { largeCodecs = codecs }()
	var both, done sync.WaitGroup
	both.Add(2)
	largeCodecs = []kgo.Compressor{meeting{codecs[0], &both}}
	for range 2 {
		done.Go(func() {
			if !Precompress(&kgo.Record{Value: make([]byte, 2<<20)}, 1<<20, 0) {
				t.Error("the record does not fit")
			}
		})
	}
	done.Wait()
}

// TestLargeRecordFitsCompressed: a broker takes a record by the size of its compressed batch, and a reader
// gets it whole, among small records of the same partition.
func TestLargeRecordFitsCompressed(t *testing.T) {
	t.Parallel()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "t"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	client, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.DefaultProduceTopic("t"), kgo.ConsumeTopics("t"),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), WithPrecompressed())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	want := []*kgo.Record{
		{Key: []byte("small"), Value: []byte("1")},
		{Key: []byte("large"), Value: []byte(strings.Repeat("0123456789", 300_000)), Headers: []kgo.RecordHeader{{Key: "h", Value: []byte("v")}, {Key: "none"}}},
		{Value: []byte(strings.Repeat("no key", 500_000))},
		{Key: []byte("behind"), Value: nil},
	}
	for _, r := range want {
		sent := *r
		if len(r.Value) > 1<<20 {
			if !Precompress(&sent, 1<<20, 0) || !IsPrecompressed(&sent) {
				t.Fatalf("%s does not fit", r.Key)
			}
			if n := len(sent.Value); n > 10_000 {
				t.Errorf("%s takes %d bytes", r.Key, n)
			}
		}
		if err := client.ProduceSync(t.Context(), &sent).FirstErr(); err != nil {
			t.Fatalf("%s: %v", r.Key, err)
		}
	}
	var got []*kgo.Record
	for len(got) < len(want) {
		fetches := client.PollFetches(t.Context())
		if err := fetches.Err(); err != nil {
			t.Fatal(err)
		}
		got = append(got, fetches.Records()...)
	}
	for n, r := range want {
		if g := got[n]; !bytes.Equal(g.Key, r.Key) || !bytes.Equal(g.Value, r.Value) || len(g.Headers) != len(r.Headers) || g.Timestamp.IsZero() {
			t.Errorf("record %d: key %q, %d bytes, %d headers", n, g.Key, len(g.Value), len(g.Headers))
		}
	}
}

// TestRecordThatNoCodecShortensDoesNotFit, and stays as it was.
func TestRecordThatNoCodecShortensDoesNotFit(t *testing.T) {
	t.Parallel()
	value := make([]byte, 2<<20)
	_, _ = rand.Read(value) // never fails
	r := &kgo.Record{Value: value}
	if Precompress(r, 1<<20, 0) || IsPrecompressed(r) || !bytes.Equal(r.Value, value) {
		t.Error("it was made to fit")
	}
}

// TestRecordThatItsReadersSkipDoesNotFit: compressed it fits, and who reads the topic decompresses less.
func TestRecordThatItsReadersSkipDoesNotFit(t *testing.T) {
	t.Parallel()
	for _, readMax := range []int{1 << 20, 2 << 20} { // the second one has no room for the rest of the batch
		r := &kgo.Record{Value: make([]byte, 2<<20)}
		if Precompress(r, 1<<20, readMax) || IsPrecompressed(r) {
			t.Errorf("it fits for readers of %d bytes", readMax)
		}
	}
	if r := (&kgo.Record{Value: make([]byte, 2<<20)}); !Precompress(r, 1<<20, 3<<20) {
		t.Error("it does not fit for readers of more")
	}
}

// TestPrecompressedRecordIsAlone: with others in its batch it would replace them.
func TestPrecompressedRecordIsAlone(t *testing.T) {
	t.Parallel()
	r := &kgo.Record{Value: make([]byte, 100_000)}
	if !Precompress(r, 10_000, 0) {
		t.Fatal("it does not fit")
	}
	defer func() {
		if recover() == nil {
			t.Error("the batch lost a record")
		}
	}()
	compressor := precompressor{codec(kgo.SnappyCompression(), kgo.NoCompression())}
	compressor.Compress(new(bytes.Buffer), append(encodeAlone(r), encodeAlone(&kgo.Record{Value: []byte("other")})...))
}

// FuzzFirstValue reads the value of the first record as the client writes it, and survives anything else.
func FuzzFirstValue(f *testing.F) {
	f.Add([]byte("key"), []byte("value"))
	f.Add([]byte(nil), []byte(nil))
	f.Fuzz(func(t *testing.T, key, value []byte) {
		if got, rest := firstValue(encodeAlone(&kgo.Record{Key: key, Value: value})); !bytes.Equal(got, value) || value != nil && !bytes.Equal(rest, []byte{0}) {
			t.Errorf("got %q before %q, want %q before the number of its headers", got, rest, value)
		}
		firstValue(value)
	})
}
