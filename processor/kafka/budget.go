package kafka

import (
	"cmp"
	"encoding/binary"
	"errors"
	"runtime"
	"runtime/metrics"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/twmb/franz-go/pkg/kgo"
)

// ErrBudgetExhausted is wrapped by the error of a partition whose next batch was not decompressed, because the
// process's memory budget is exhausted. The client fetches the batch again by itself, so callers ignore the
// error.
var ErrBudgetExhausted = errors.New("the decompression budget is exhausted")

const (
	// BudgetDefault is the default of ONCEBUS_MAX_DECOMPRESSED_BYTES, in bytes.
	BudgetDefault = 64 << 20
	// FetchMaxBytes bounds a fetch response. The memory of responses comes in addition to the budget: one
	// response for each client and broker. The bound is small for two reasons. Batches that the budget refuses
	// are fetched again. And the records of a response without compression take up to twenty times its bytes,
	// which the budget cannot refuse.
	FetchMaxBytes = 2 << 20
	// budgetWait is how long a decompression waits for the budget before it fails. The wait limits how often a
	// client that gets no memory fetches again. It is short, because franz-go cannot reassign partitions
	// meanwhile. budgetPoll is the pause between two attempts.
	budgetWait, budgetPoll = 100 * time.Millisecond, 2 * time.Millisecond
	// After the budget has refused a batch, the client refuses further batches without waiting for the time
	// sameResponse, because these batches belong to other partitions of the same response.
	sameResponse = 5 * time.Millisecond
	// collectPause is the least time between two garbage collections because of refused batches. If a collection
	// frees less than an eighth of the budget, the memory is in use, and will be recycled at the end of a
	// transaction. The pause then doubles, at most vainMax times. Without the doubling a routed backlog of two
	// workers had 25 collections in 5 s; now it has 6, with 3 % less CPU.
	collectPause, vainMax = 100 * time.Millisecond, 3
	// uselessMax is how often a useless collection doubles the amount of lent memory from which on the next
	// collection runs. A collection is useless if it frees less than an eighth of the budget from the lent
	// memory, which should be recycled: that memory is in use, and will indeed be recycled.
	uselessMax = 4
	// priorityMax is how long a refused batch keeps smaller batches out if its client does not try
	// it again meanwhile.
	priorityMax = time.Second
	// stalledAfter is how long the budget may refuse every batch while no transaction is open. After
	// that it accepts one batch beyond its limit.
	stalledAfter = 10 * time.Second
	// overdrawnPause, overdrawnMax and overdrawnGrowth set how often the garbage collector runs while a batch
	// larger than the budget is in memory: the process would otherwise also have as much garbage.
	overdrawnPause, overdrawnMax = 20 * time.Millisecond, 200 * time.Millisecond
	overdrawnGrowth              = 16 << 20
)

// Budget bounds the memory of the decompressed batches of a process: the bytes of the batches and of
// their records, for all clients, from decompression until somebody recycles them or the garbage
// collector has freed them. It also counts the records of batches without compression.
//
// A worker recycles the records of a transaction after the transaction's end. But a record may also be reachable
// from a buffered fetch or a producer. These drop the record at some later time, which only the garbage
// collector notices. So memory that the collector has not freed yet counts as used.
//
// A batch gets memory if it fits, or if at most a quarter of the budget is in use. So even a batch larger than
// the whole budget is decompressed, with few others at the same time. A refused batch keeps no memory, and its
// client fetches it again. So clients that each hold a part of the budget cannot deadlock.
type Budget struct {
	limit int64
	used  atomic.Int64
	// since is the memory taken since the last collection that will not be recycled, so that only the collector
	// frees it. lent is the memory taken since the last collection that will be recycled and has not been yet.
	since, lent atomic.Int64
	// freed is what the collector has freed since then of the memory that should have been recycled;
	// dropped is what it has freed of the other memory.
	freed, dropped atomic.Int64
	collecting     atomic.Bool
	overdrawn      atomic.Bool // a goroutine of boundGarbage is running
	refusals       atomic.Int64
	// users is the number of transactions in progress, each of which may hold records. uses is the
	// number of transactions that ever began.
	users, uses atomic.Int64

	batches recycler[byte]
	records recycler[kgo.Record]

	mu          sync.Mutex
	collectedAt time.Time
	useless     int       // successive collections that freed little of the memory that should be recycled, at most uselessMax
	vain        int       // successive collections that freed little, at most vainMax
	grantedAt   time.Time // when a batch last got memory or a transaction was in progress, or when the first batch after that was refused
	grantedUses int64     // uses at grantedAt
	refusing    bool      // a batch was refused since grantedAt
	// priority is the size of the largest refused batch, until priorityUntil. Until then smaller
	// batches get only a quarter of the budget; otherwise the large batch might never fit.
	priority      int64
	priorityUntil time.Time
}

// NewBudget returns a budget of limit bytes; 0 means BudgetDefault.
func NewBudget(limit int64) *Budget {
	b := &Budget{limit: cmp.Or(limit, BudgetDefault)}
	b.batches.budget, b.records.budget = b, b
	return b
}

// Used returns the bytes in use.
func (b *Budget) Used() int64 { return b.used.Load() }

// Limit returns the bytes of the budget.
func (b *Budget) Limit() int64 { return b.limit }

// Refusals returns how often a batch got no memory, so that its client had to fetch it again.
func (b *Budget) Refusals() int64 { return b.refusals.Load() }

// Use declares that a transaction processes records, until the caller calls end. Batches that are refused
// meanwhile wait for the memory of these records, so the budget does not count the time as a stall
// (stalledAfter). A restore does not call Use, because it may wait for disk space while it holds records. That
// would keep the budget from detecting a stall, and the routing stage must continue.
func (b *Budget) Use() (end func()) {
	b.uses.Add(1)
	b.users.Add(1)
	return func() { b.users.Add(-1) }
}

// ClientOptions returns the options of a client that decompresses within the budget. A batch must not
// decompress to more than batchMax bytes.
func (b *Budget) ClientOptions(batchMax int) []kgo.Opt {
	return []kgo.Opt{
		kgo.WithDecompressor(&decompressor{budget: b, batchMax: batchMax}),
		kgo.WithPools(pool{b}),
		kgo.MaxDecompressBatchBytes(batchMax), // of the batches that the client produces
		kgo.FetchMaxBytes(FetchMaxBytes),
	}
}

// recordsMax is the most memory that the records of one batch may take, in bytes: the largest of the
// budget, batchMax and BudgetDefault.
func (d *decompressor) recordsMax() int64 {
	return max(d.budget.limit, int64(d.batchMax), BudgetDefault)
}

// take takes n bytes of the budget, and reports whether it did.
func (b *Budget) take(n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	used, now := b.used.Load(), time.Now()
	if now.After(b.priorityUntil) {
		b.priority = 0
	}
	fits := used+n <= b.limit && (n >= b.priority || used+n <= b.limit/4) || used <= b.limit/4
	if !fits && !b.stalled(now) {
		if n >= b.priority && n > b.limit/4 {
			b.priority, b.priorityUntil = n, now.Add(priorityMax)
		}
		b.collect(now.Sub(b.collectedAt) >= collectPause<<b.vain, now)
		return false
	}
	b.refusing, b.grantedAt = false, now
	if n >= b.priority {
		b.priority = 0
	}
	b.add(n)
	return true
}

// collectTaken runs the garbage collector if much memory was taken since the last collection.
func (b *Budget) collectTaken() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.collect(b.since.Load() >= b.limit/2 || b.lent.Load() >= b.limit/2<<b.useless, time.Now())
}

// stalled reports whether the budget has refused every batch for stalledAfter while no transaction was
// in progress. Then something idle still refers to a record, and waiting does not help.
func (b *Budget) stalled(now time.Time) bool {
	if uses := b.uses.Load(); !b.refusing || b.users.Load() > 0 || uses != b.grantedUses {
		b.refusing, b.grantedAt, b.grantedUses = true, now, uses
	}
	return now.Sub(b.grantedAt) > stalledAfter
}

// add counts n bytes that are allocated in any case, whether they fit or not.
func (b *Budget) add(n int64) {
	b.since.Add(n)
	b.used.Add(n)
}

// collect runs the garbage collector in a goroutine, if it is due and not already running. So memory is freed
// before the budget is exhausted.
func (b *Budget) collect(due bool, now time.Time) {
	if !due || !b.collecting.CompareAndSwap(false, true) {
		return
	}
	freed := b.freed.Swap(0)
	all := freed + b.dropped.Swap(0)
	inARow := func(count, most int, freed int64) int {
		if freed >= b.limit/8 || b.collectedAt.IsZero() {
			return 0
		}
		return min(count+1, most)
	}
	b.useless, b.vain = inARow(b.useless, uselessMax, freed), inARow(b.vain, vainMax, all)
	b.since.Store(0)
	b.lent.Store(0)
	b.collectedAt = now
	go b.collectNow()
}

// collectNow runs the garbage collector once.
func (b *Budget) collectNow() {
	runtime.GC()
	b.collecting.Store(false)
}

// release returns n bytes to the budget.
func (b *Budget) release(n int64) { b.used.Add(-n) }

// giveBack returns n bytes that were reserved but not used.
func (b *Budget) giveBack(n int64) {
	b.release(n)
	reduce(&b.since, n)
}

// lend declares that n of the bytes taken will be recycled by the users of the records.
func (b *Budget) lend(n int64) {
	reduce(&b.since, n)
	b.lent.Add(n)
}

// recycled returns n bytes that were lent and are recycled now.
func (b *Budget) recycled(n int64) {
	b.release(n)
	reduce(&b.lent, n)
}

// collected returns n bytes that the collector has freed. counter is b.freed or b.dropped.
func (b *Budget) collected(counter *atomic.Int64, n int64) {
	counter.Add(n)
	b.release(n)
}

// reduce subtracts n, but not below 0: the counter may have been reset since n was added.
func reduce(counter *atomic.Int64, n int64) {
	for now := counter.Load(); !counter.CompareAndSwap(now, max(0, now-n)); {
		now = counter.Load()
	}
}

// takeFree takes n bytes if they fit and no refused batch has priority. It reports whether it did.
func (b *Budget) takeFree(n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.used.Load()+n > b.limit || b.priority > 0 {
		return false
	}
	b.add(n)
	return true
}

// boundGarbage runs the garbage collector again and again while more memory is in use than the budget allows.
// With Go's default the garbage could grow as large as the batch before a collection.
func (b *Budget) boundGarbage() {
	if b.used.Load() <= b.limit || !b.overdrawn.CompareAndSwap(false, true) {
		return
	}
	go func() {
		defer b.overdrawn.Store(false)
		heap := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
		metrics.Read(heap)
		collectedAt, collected := time.Now(), heap[0].Value.Uint64()
		for b.used.Load() > b.limit {
			<-time.After(overdrawnPause)
			metrics.Read(heap)
			if heap[0].Value.Uint64() < collected+overdrawnGrowth && time.Since(collectedAt) < overdrawnMax {
				continue
			}
			runtime.GC()
			metrics.Read(heap)
			collectedAt, collected = time.Now(), heap[0].Value.Uint64()
		}
	}()
}

// recordBytes is the memory of a record with the pointer to it, but without its key, value and headers.
// headerBytes is the memory of a header without its key and value.
const (
	recordBytes = int64(unsafe.Sizeof(kgo.Record{}) + unsafe.Sizeof((*kgo.Record)(nil)))
	headerBytes = int64(unsafe.Sizeof(kgo.RecordHeader{}))
)

// recordsMemory returns the memory that franz-go allocates for the records of a decompressed batch and
// for their headers, in addition to the bytes of the batch. It counts up to the first malformed record.
func recordsMemory(batch []byte) (records, headers int64) {
	for len(batch) > 0 {
		length, n := binary.Varint(batch)
		if n <= 0 || length <= 0 || length > int64(len(batch)-n) {
			return records, headers
		}
		record := batch[n : n+int(length)]
		batch = batch[n+int(length):]
		records += recordBytes
		headers += headersMemory(record)
	}
	return records, headers
}

// headersMemory returns the memory of a record's headers and of their keys, which franz-go copies; 0
// for a malformed record.
func headersMemory(record []byte) (memory int64) {
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
	count, n := binary.Varint(rest)
	if n <= 0 || count <= 0 {
		return 0
	}
	rest = rest[n:]
	memory = min(count, int64(len(rest))) * headerBytes // as franz-go allocates it
	for field := 0; len(rest) > 0; field++ {            // keys and values in turn
		v, n := binary.Varint(rest)
		if n <= 0 || v > int64(len(rest)-n) {
			return memory
		}
		v = max(v, 0)
		rest = rest[n+int(v):]
		if field%2 == 0 {
			memory += v
		}
	}
	return memory
}
