package kafka

import (
	"cmp"
	"encoding/binary"
	"errors"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/twmb/franz-go/pkg/kgo"
)

// ErrBudgetExhausted is wrapped by the error of a partition whose next batch is not
// decompressed, because the process's budget is exhausted. The client fetches the
// batch again. The error changes nothing, so callers skip it.
var ErrBudgetExhausted = errors.New("the decompression budget is exhausted")

const (
	// BudgetDefault is the default of ONCEBUS_MAX_DECOMPRESSED_BYTES.
	BudgetDefault = 64 << 20
	// fetchMaxBytes bounds a fetch response, which is in memory in addition to the
	// budget. Batches that the budget refuses are fetched again, so it is small.
	fetchMaxBytes = 8 << 20
	// budgetWait is how long a decompression waits for the budget before it fails.
	// It paces the fetches of a client that gets nothing, and it is short, because
	// franz-go cannot reassign partitions meanwhile.
	budgetWait, budgetPoll = 100 * time.Millisecond, 2 * time.Millisecond
	// sameResponse is the time in which a client refuses further batches without a wait:
	// they are those of other partitions in the same response.
	sameResponse = 5 * time.Millisecond
	// collectPause is the least time between two collections for refused batches.
	collectPause = 100 * time.Millisecond
	// priorityMax is how long a refused batch keeps smaller ones out without
	// another attempt.
	priorityMax = time.Second
	// stalledAfter is how long the budget may refuse every batch. Then it accepts one.
	stalledAfter = 10 * time.Second
)

// A Budget bounds the memory of decompressed batches of a process: their bytes and their
// records, of all clients, from decompression until the garbage collector has freed
// them. No caller returns memory. A record may be reachable from a buffered fetch, a
// transaction or a producer, each of which may drop it, so only the collector knows when
// it is free. What the collector has not freed yet is memory too.
//
// A batch gets memory if it fits, or if a quarter of the budget at most is in use. So a
// batch larger than the whole budget is decompressed too, almost alone. A refused batch
// holds nothing and blocks nothing: the client fetches it again. So clients that each
// hold a part of the budget cannot deadlock.
type Budget struct {
	limit int64
	used  atomic.Int64
	// since is what was taken since the last collection.
	since      atomic.Int64
	collecting atomic.Bool

	mu          sync.Mutex
	collectedAt time.Time
	grantedAt   time.Time // when a batch last got memory, or the first was refused after that
	refusing    bool      // since grantedAt
	// priority is the size of the largest refused batch, until priorityUntil: smaller
	// batches then get a quarter of the budget only. Else it might never fit.
	priority      int64
	priorityUntil time.Time
}

// NewBudget returns a budget of limit bytes; 0 is BudgetDefault.
func NewBudget(limit int64) *Budget { return &Budget{limit: cmp.Or(limit, BudgetDefault)} }

// Used returns the bytes in use.
func (b *Budget) Used() int64 { return b.used.Load() }

// ClientOptions are the options of a client that decompresses within the budget. No batch
// may decompress to more than batchMax bytes.
func (b *Budget) ClientOptions(batchMax int) []kgo.Opt {
	return []kgo.Opt{
		kgo.WithDecompressor(&decompressor{budget: b, batchMax: batchMax}),
		kgo.MaxDecompressBatchBytes(batchMax), // of the batches that the client produces
		kgo.FetchMaxBytes(fetchMaxBytes),
	}
}

// readerDecompressor returns the decompressor of a Reader: within the budget of its
// client, without a limit for one batch, because oncebus wrote the batches.
func readerDecompressor(client *kgo.Client) kgo.Decompressor {
	if d, ok := client.OptValue(kgo.WithDecompressor).(*decompressor); ok {
		return &decompressor{budget: d.budget, batchMax: math.MaxInt32}
	}
	return kgo.DefaultDecompressor()
}

// take takes n bytes, or reports false.
func (b *Budget) take(n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	used, now := b.used.Load(), time.Now()
	if now.After(b.priorityUntil) {
		b.priority = 0
	}
	fits := used+n <= b.limit && (n >= b.priority || used+n <= b.limit/4) || used <= b.limit/4
	if !fits && !(b.refusing && now.Sub(b.grantedAt) > stalledAfter) {
		if !b.refusing {
			b.refusing, b.grantedAt = true, now
		}
		if n >= b.priority && n > b.limit/4 {
			b.priority, b.priorityUntil = n, now.Add(priorityMax)
		}
		b.collect(now.Sub(b.collectedAt) >= collectPause, now)
		return false
	}
	b.refusing, b.grantedAt = false, now
	if n >= b.priority {
		b.priority = 0
	}
	b.used.Add(n)
	b.collect(b.since.Add(n) >= b.limit/2, now)
	return true
}

// collect runs the garbage collector if it is due and not running. It frees the budget
// before the budget is exhausted.
func (b *Budget) collect(due bool, now time.Time) {
	if !due || !b.collecting.CompareAndSwap(false, true) {
		return
	}
	b.since.Store(0)
	b.collectedAt = now
	go func() {
		runtime.GC()
		b.collecting.Store(false)
	}()
}

// release returns n bytes.
func (b *Budget) release(n int64) { b.used.Add(-n) }

// recordBytes is the memory of a record without its key, value and headers, with the
// pointer to it; headerBytes that of a header without its key and value.
const (
	recordBytes = int64(unsafe.Sizeof(kgo.Record{}) + unsafe.Sizeof((*kgo.Record)(nil)))
	headerBytes = int64(unsafe.Sizeof(kgo.RecordHeader{}))
)

// recordsMemory returns the memory that franz-go allocates for the records of a
// decompressed batch, in addition to its bytes. It counts up to the first malformed one.
func recordsMemory(batch []byte) (memory int64) {
	for len(batch) > 0 {
		length, n := binary.Varint(batch)
		if n <= 0 || length <= 0 || length > int64(len(batch)-n) {
			return memory
		}
		record := batch[n : n+int(length)]
		batch = batch[n+int(length):]
		memory += recordBytes + headerCount(record)*headerBytes
	}
	return memory
}

// headerCount returns the number of headers of a record, 0 for a malformed one.
func headerCount(record []byte) int64 {
	rest := record[1:]     // attributes
	for field := range 4 { // timestamp, offset, key, value
		v, n := binary.Varint(rest)
		if n <= 0 {
			return 0
		}
		rest = rest[n:]
		if field < 2 || v < 0 {
			continue
		}
		if v > int64(len(rest)) {
			return 0
		}
		rest = rest[v:]
	}
	headers, n := binary.Varint(rest)
	if n <= 0 || headers < 0 {
		return 0
	}
	return min(headers, int64(len(rest)))
}
