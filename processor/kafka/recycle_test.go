package kafka

import (
	"runtime"
	"testing"

	"github.com/klauspost/compress/s2"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// TestRecycledSizes: memory is at most a quarter longer than asked for, and memory of one
// class has one length.
func TestRecycledSizes(t *testing.T) {
	lengths := map[int]int{}
	for n := range 3 * scratchBytes / 2 {
		size, class := sizeOf(n)
		if size < n || size > max(8, n+n/4) {
			t.Fatalf("%d bytes get %d", n, size)
		}
		if class >= recycleClasses || class < 0 != (n > scratchBytes) {
			t.Fatalf("%d bytes have class %d", n, class)
		}
		if class >= 0 && lengths[class] != 0 && lengths[class] != size {
			t.Fatalf("class %d has lengths %d and %d", class, lengths[class], size)
		}
		if again, same := sizeOf(size); again != size || same != class {
			t.Fatalf("%d bytes get %d, and these get %d", n, size, again)
		}
		if class >= 0 {
			lengths[class] = size
		}
	}
}

// fetchOnce decompresses a batch of snappy as a client with a budget does.
func fetchOnce(t *testing.T, b *Budget) []*kgo.Record {
	t.Helper()
	const count = 500
	batch := kmsg.RecordBatch{}
	if err := batch.ReadFrom(batchOf(recordsOf(count, 20), count)); err != nil {
		t.Fatal(err)
	}
	compressed := s2.EncodeSnappy(nil, batch.Records)
	raw := batchOf(compressed, count)
	const attributes = 8 + 4 + 4 + 1 + 4 + 1 // offset of their lower byte
	raw[attributes] = byte(kgo.CodecSnappy)
	partition := kmsg.FetchResponseTopicPartition{RecordBatches: raw}
	fetched, _ := kgo.ProcessFetchPartition(kgo.ProcessFetchPartitionOpts{Pools: []kgo.Pool{pool{b}}, DisableCRCValidation: true}, &partition, &decompressor{budget: b, batchMax: 1 << 20}, nil)
	if fetched.Err != nil || len(fetched.Records) != count {
		t.Fatalf("%d records, error %v", len(fetched.Records), fetched.Err)
	}
	return fetched.Records
}

// TestRecycledRecordsFreeTheBudget: the budget has the memory of a batch back when its last
// record is recycled, without a collection, and once. Memory that is used again and then
// dropped comes back by a collection.
func TestRecycledRecordsFreeTheBudget(t *testing.T) {
	b := NewBudget(4 << 20)
	for range 100 {
		records := fetchOnce(t, b)
		used := b.Used()
		if used < int64(len(records))*recordBytes {
			t.Fatalf("%d records use %d bytes", len(records), used)
		}
		for i, r := range records {
			if b.Used() != used {
				t.Fatalf("%d bytes are in use after %d records were recycled, %d before", b.Used(), i, used)
			}
			r.Recycle()
		}
		if b.Used() != 0 {
			t.Fatalf("%d bytes are in use after all records were recycled", b.Used())
		}
	}
	func() {
		for range 3 { // of memory that was recycled
			records := fetchOnce(t, b)
			records[0].Recycle()
			runtime.KeepAlive(records)
		}
	}()
	for b.Used() > 0 { // the test's timeout limits it
		runtime.GC()
		runtime.Gosched()
	}
	for range 10 { // what was released is not released again
		runtime.GC()
	}
	if used := b.Used(); used != 0 {
		t.Errorf("%d bytes are in use", used)
	}
}

// TestRecycledMemoryNeedsFewCollections: collections are for memory that is dropped. Forced
// ones took a fifth of the CPU of the routing stages. Here each batch takes more than half of
// the budget.
func TestRecycledMemoryNeedsFewCollections(t *testing.T) {
	b := NewBudget(1 << 20)
	collections, collectedAt := 0, b.collectedAt
	for range 500 {
		for _, rec := range fetchOnce(t, b) {
			rec.Recycle()
		}
		if b.collectedAt != collectedAt {
			collections, collectedAt = collections+1, b.collectedAt
		}
	}
	if collections > 1+uselessMax {
		t.Errorf("%d collections, although all memory was recycled", collections)
	}
}
