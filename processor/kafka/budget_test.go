package kafka

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// TestBudgetRefusesWhileRecordsAreInUse: after stalledAfter a budget accepts a batch that
// does not fit, but not while a transaction has records, however long it takes. Else a slow broker would have one more batch in memory every ten seconds.
func TestBudgetRefusesWhileRecordsAreInUse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := NewBudget(100)
		if !b.take(100) {
			t.Fatal("no memory for the first batch")
		}
		refusedFor := func(d time.Duration) bool {
			for end := time.Now().Add(d); time.Now().Before(end); {
				if b.take(50) {
					return false
				}
				time.Sleep(stalledAfter / 5) //nolint:forbidigo // the fake clock of the synctest bubble
			}
			return true
		}
		end := b.Use()
		if !refusedFor(10 * stalledAfter) {
			t.Error("a second batch got memory during a long transaction")
		}
		end()
		for range 6 { // short transactions, between the refusals
			b.Use()()
			if !refusedFor(stalledAfter / 2) {
				t.Error("a second batch got memory between transactions")
			}
		}
		if refusedFor(2 * stalledAfter) {
			t.Error("a budget without a user refuses all batches for good")
		}
	})
}

// TestRefusalsOfMemoryInUseNeedFewCollections: while all memory is in use, collections for
// refused batches free nothing, so they become rare. After one that frees memory they are
// frequent again.
func TestRefusalsOfMemoryInUseNeedFewCollections(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := NewBudget(1 << 20)
		if !b.take(b.limit) {
			t.Fatal("an empty budget refuses a batch")
		}
		defer b.Use()() // else it accepts one after stalledAfter
		collections := func(refusing time.Duration) (n int) {
			at := b.collectedAt
			for began := time.Now(); time.Since(began) < refusing; time.Sleep(budgetPoll) { //nolint:forbidigo // the fake clock of the synctest bubble
				if b.take(1 << 10) {
					t.Fatal("a full budget accepts a batch")
				}
				if b.collectedAt != at {
					n, at = n+1, b.collectedAt
				}
			}
			return n
		}
		const longest = collectPause << vainMax
		collections(4 * longest)
		if n := collections(10 * longest); n < 8 || n > 10 {
			t.Errorf("%d collections in %v, want one every %v", n, 10*longest, longest)
		}
		b.dropped.Add(b.limit)
		if n := collections(longest + 4*collectPause); n < 3 {
			t.Errorf("%d collections after one that freed memory, want 3 or more", n)
		}
	})
}

// TestClientsThatHoldPartsOfTheBudgetGoOn: each client has a batch in memory while it
// fetches the next one. Whatever their sizes are, all get memory at last, within the bound.
func TestClientsThatHoldPartsOfTheBudgetGoOn(t *testing.T) {
	t.Parallel()
	for seed := range uint64(5) {
		synctest.Test(t, func(t *testing.T) {
			const limit = 1000
			b := NewBudget(limit)
			var clients sync.WaitGroup
			var taking sync.Mutex // no client takes between another's take and its check
			for client := range uint64(6) {
				draw := rand.New(rand.NewPCG(seed, client))
				clients.Go(func() {
					for range 10 {
						size := 1 + draw.Int64N(limit/2)
						if draw.IntN(5) == 0 {
							size = 1 + draw.Int64N(2*limit) // larger than the budget
						}
						take := func() bool {
							taking.Lock()
							defer taking.Unlock()
							taken := b.take(size)
							if used := b.Used(); taken && used > limit+limit/4 && used-size > limit/4 {
								t.Errorf("run %d: %d bytes in use after a batch of %d", seed, used, size)
							}
							return taken
						}
						for !take() {
							time.Sleep(time.Duration(1+draw.IntN(5)) * time.Millisecond) //nolint:forbidigo // fake clock
						}
						end := b.Use()
						time.Sleep(time.Duration(draw.IntN(200)) * time.Millisecond) //nolint:forbidigo // fake clock
						end()
						b.release(size)
					}
				})
			}
			clients.Wait()
			if used := b.Used(); used != 0 {
				t.Errorf("run %d: %d bytes in use at the end", seed, used)
			}
		})
	}
}

// TestBatchOfTooManyRecordsIsRefused: a batch of 64 MiB may have six million records, which
// take a gigabyte.
func TestBatchOfTooManyRecordsIsRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		records int
		refused bool
	}{
		{"fits", BudgetDefault / int(recordBytes), false},
		{"too many", BudgetDefault/int(recordBytes) + 1, true},
	} {
		data := recordsOf(c.records, 0)
		encoder, err := zstd.NewWriter(nil)
		if err != nil {
			t.Fatal(err)
		}
		d := &decompressor{budget: NewBudget(1 << 20), batchMax: BudgetDefault}
		batch, err := d.Decompress(encoder.EncodeAll(data, nil), kgo.CodecZstd)
		if refused := errors.Is(err, kgo.ErrMaxDecompress); refused != c.refused || !refused && len(batch) != len(data) {
			t.Errorf("%s: %d bytes, error %v", c.name, len(batch), err)
		}
		reader := &decompressor{budget: NewBudget(1 << 20), batchMax: readerBatchMax}
		if batch, err = reader.Decompress(encoder.EncodeAll(data, nil), kgo.CodecZstd); err != nil || len(batch) != len(data) {
			t.Errorf("%s in an internal topic: %d bytes, error %v", c.name, len(batch), err)
		}
	}
}

// batchOf returns a batch without compression.
func batchOf(records []byte, count int) []byte {
	batch := kmsg.RecordBatch{Magic: 2, LastOffsetDelta: int32(count - 1), NumRecords: int32(count), Records: records}
	batch.Length = int32(len(batch.AppendTo(nil)) - 12)
	raw := batch.AppendTo(nil)
	binary.BigEndian.PutUint32(raw[17:], crc32.Checksum(raw[21:], crc32.MakeTable(crc32.Castagnoli)))
	return raw
}

// TestRecordsWithoutCompressionCount: such a response is in memory before the budget sees
// it, but its records keep other batches out until they are free.
func TestRecordsWithoutCompressionCount(t *testing.T) {
	t.Parallel()
	b := NewBudget(1 << 20)
	const count = 10_000
	func() {
		partition := kmsg.FetchResponseTopicPartition{RecordBatches: batchOf(recordsOf(count, 0), count)}
		fetched, next := kgo.ProcessFetchPartition(kgo.ProcessFetchPartitionOpts{Pools: []kgo.Pool{pool{b}}}, &partition, &decompressor{budget: b}, nil)
		if fetched.Err != nil || len(fetched.Records) != count || next != count {
			t.Fatalf("%d records up to %d, error %v", len(fetched.Records), next, fetched.Err)
		}
		if used := b.Used(); used < count*recordBytes || used > count*recordBytes*5/4 {
			t.Fatalf("%d records use %d bytes of the budget", count, used)
		}
		if b.take(1) {
			t.Fatal("a batch got memory that the records have")
		}
		runtime.KeepAlive(fetched)
	}()
	for b.Used() > 0 { // the test's timeout limits it
		runtime.GC()
		runtime.Gosched()
	}
}

// TestRestoresFetchLessWhileTheBudgetIsInUse: all tasks of a process may restore at once.
func TestRestoresFetchLessWhileTheBudgetIsInUse(t *testing.T) {
	t.Parallel()
	r := &Reader{budget: NewBudget(3 * fetchMemory)}
	var releases []func()
	for n := range 5 {
		bytes, release := r.fetchSize()
		if want := map[bool]int32{true: fetchBytes, false: fetchBytesMin}[n < 3]; bytes != want {
			t.Errorf("fetch %d has %d bytes, want %d", n, bytes, want)
		}
		releases = append(releases, release)
	}
	for _, release := range releases {
		release()
	}
	if used := r.budget.Used(); used != 0 {
		t.Errorf("%d bytes in use after the fetches", used)
	}
	if bytes, _ := new(Reader).fetchSize(); bytes != fetchBytes {
		t.Errorf("a fetch without a budget has %d bytes", bytes)
	}
}
