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

// ErrBudgetExhausted is wrapped by the error of a partition whose next batch is not
// decompressed, because the process's budget is exhausted. The client fetches the
// batch again. The error changes nothing, so callers skip it.
var ErrBudgetExhausted = errors.New("the decompression budget is exhausted")

const (
	// BudgetDefault is the default of ONCEBUS_MAX_DECOMPRESSED_BYTES.
	BudgetDefault = 64 << 20
	// FetchMaxBytes bounds a fetch response, which is in memory in addition to the
	// budget: one for each client and broker. Batches that the budget refuses are fetched
	// again. The records of a response without compression take up to twenty times its
	// bytes, and no budget can refuse them. So it is small.
	FetchMaxBytes = 2 << 20
	// budgetWait is how long a decompression waits for the budget before it fails.
	// It paces the fetches of a client that gets nothing, and it is short, because
	// franz-go cannot reassign partitions meanwhile.
	budgetWait, budgetPoll = 100 * time.Millisecond, 2 * time.Millisecond
	// sameResponse is the time in which a client refuses further batches without a wait:
	// they are those of other partitions in the same response.
	sameResponse = 5 * time.Millisecond
	// collectPause is the least time between two collections for refused batches. It doubles
	// with each one that frees less than an eighth of the budget, vainMax times: then the
	// memory is in use, and is recycled at the end of a transaction. Without that a routed
	// backlog of two workers had 25 collections in 5 s, now it has 6, at 3 % less CPU.
	collectPause, vainMax = 100 * time.Millisecond, 3
	// uselessMax is how often a useless collection doubles what must be lent before the next
	// one. One is useless that frees less than an eighth of the budget of what should be
	// recycled: it is in use, and is recycled indeed.
	uselessMax = 4
	// priorityMax is how long a refused batch keeps smaller ones out without
	// another attempt.
	priorityMax = time.Second
	// stalledAfter is how long the budget may refuse every batch while no transaction is
	// open. Then it accepts one.
	stalledAfter = 10 * time.Second
	// overdrawnPause and overdrawnGrowth pace the collections while a batch larger than
	// the budget is in memory: garbage would come in addition to it.
	overdrawnPause, overdrawnMax = 20 * time.Millisecond, 200 * time.Millisecond
	overdrawnGrowth              = 16 << 20
)

// A Budget bounds the memory of decompressed batches of a process: their bytes and their
// records, of all clients, from decompression until they are recycled or the garbage
// collector has freed them. It counts the records of batches without compression too.
// A worker recycles the records of a transaction after its end. A record may also be
// reachable from a buffered fetch or a producer, each of which may drop it, so only the
// collector knows when that one is free. What it has not freed yet is memory too.
//
// A batch gets memory if it fits, or if a quarter of the budget at most is in use. So a
// batch larger than the whole budget is decompressed too, almost alone. A refused batch
// holds nothing and blocks nothing: the client fetches it again. So clients that each
// hold a part of the budget cannot deadlock.
type Budget struct {
	limit int64
	used  atomic.Int64
	// since is what was taken since the last collection and only the collector frees, lent
	// what was taken since then to be recycled, and is not.
	since, lent atomic.Int64
	// freed is what the collector has freed since then of what should be recycled, dropped
	// what it has freed of the rest.
	freed, dropped atomic.Int64
	collecting     atomic.Bool
	overdrawn      atomic.Bool // boundGarbage runs
	refusals       atomic.Int64
	// users are the transactions in progress, each of which may have records. uses
	// counts those that began.
	users, uses atomic.Int64

	batches recycler[byte]
	records recycler[kgo.Record]

	mu          sync.Mutex
	collectedAt time.Time
	useless     int       // collections in a row that freed little of what should be recycled, at most uselessMax
	vain        int       // collections in a row that freed little, at most vainMax
	grantedAt   time.Time // when a batch last got memory or had a user, or the first was refused after that
	grantedUses int64     // uses at that time
	refusing    bool      // since grantedAt
	// priority is the size of the largest refused batch, until priorityUntil: smaller
	// batches then get a quarter of the budget only. Else it might never fit.
	priority      int64
	priorityUntil time.Time
}

// NewBudget returns a budget of limit bytes; 0 is BudgetDefault.
func NewBudget(limit int64) *Budget {
	b := &Budget{limit: cmp.Or(limit, BudgetDefault)}
	b.batches.budget, b.records.budget = b, b
	return b
}

// Used returns the bytes in use.
func (b *Budget) Used() int64 { return b.used.Load() }

// Limit returns the bytes of the budget.
func (b *Budget) Limit() int64 { return b.limit }

// Refusals returns how often a batch got no memory and its client had to fetch it again.
func (b *Budget) Refusals() int64 { return b.refusals.Load() }

// Use says that a transaction processes records, until the returned function is called.
// Until then the budget accepts no batch only because it refused all others for long: they
// wait for these records. A restore does not call it: it may wait for the disk with
// records, and the routing stage continues meanwhile.
func (b *Budget) Use() (end func()) {
	b.uses.Add(1)
	b.users.Add(1)
	return func() { b.users.Add(-1) }
}

// ClientOptions are the options of a client that decompresses within the budget. No batch
// may decompress to more than batchMax bytes.
func (b *Budget) ClientOptions(batchMax int) []kgo.Opt {
	return []kgo.Opt{
		kgo.WithDecompressor(&decompressor{budget: b, batchMax: batchMax}),
		kgo.WithPools(pool{b}),
		kgo.MaxDecompressBatchBytes(batchMax), // of the batches that the client produces
		kgo.FetchMaxBytes(FetchMaxBytes),
	}
}

// recordsMax is the most memory that the records of a batch may take: as much as its bytes
// or as the budget, and at least BudgetDefault.
func (d *decompressor) recordsMax() int64 {
	return max(d.budget.limit, int64(d.batchMax), BudgetDefault)
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

// collectTaken collects if much was taken since the last collection.
func (b *Budget) collectTaken() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.collect(b.since.Load() >= b.limit/2 || b.lent.Load() >= b.limit/2<<b.useless, time.Now())
}

// stalled reports whether the budget has refused every batch for stalledAfter, and no
// record has been in use. Then something idle refers to a record.
func (b *Budget) stalled(now time.Time) bool {
	if uses := b.uses.Load(); !b.refusing || b.users.Load() > 0 || uses != b.grantedUses {
		b.refusing, b.grantedAt, b.grantedUses = true, now, uses
	}
	return now.Sub(b.grantedAt) > stalledAfter
}

// add adds n bytes that are in memory in any case.
func (b *Budget) add(n int64) {
	b.since.Add(n)
	b.used.Add(n)
}

// collect runs the garbage collector if it is due and not running. It frees the budget
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

// release returns n bytes.
func (b *Budget) release(n int64) { b.used.Add(-n) }

// giveBack returns n bytes that were only reserved.
func (b *Budget) giveBack(n int64) {
	b.release(n)
	reduce(&b.since, n)
}

// lend says that n of the bytes taken are to be recycled.
func (b *Budget) lend(n int64) {
	reduce(&b.since, n)
	b.lent.Add(n)
}

// recycled returns n bytes that were lent.
func (b *Budget) recycled(n int64) {
	b.release(n)
	reduce(&b.lent, n)
}

// collected returns n bytes that the collector has freed. counter is freed or dropped.
func (b *Budget) collected(counter *atomic.Int64, n int64) {
	counter.Add(n)
	b.release(n)
}

// reduce subtracts n, but the counter was perhaps reset since n was added.
func reduce(counter *atomic.Int64, n int64) {
	for now := counter.Load(); !counter.CompareAndSwap(now, max(0, now-n)); {
		now = counter.Load()
	}
}

// takeFree takes n bytes if they fit and no refused batch has priority, or reports false.
func (b *Budget) takeFree(n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.used.Load()+n > b.limit || b.priority > 0 {
		return false
	}
	b.add(n)
	return true
}

// boundGarbage collects until the memory in use fits the budget, if it does not. By default
// the garbage may be as large as the batch.
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

// recordBytes is the memory of a record without its key, value and headers, with the
// pointer to it; headerBytes that of a header without its key and value.
const (
	recordBytes = int64(unsafe.Sizeof(kgo.Record{}) + unsafe.Sizeof((*kgo.Record)(nil)))
	headerBytes = int64(unsafe.Sizeof(kgo.RecordHeader{}))
)

// recordsMemory returns the memory that franz-go allocates for the records of a
// decompressed batch, in addition to its bytes, and for their headers. It counts up to the
// first malformed record.
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

// headersMemory returns the memory of the headers of a record and of their keys, which
// franz-go copies; 0 for a malformed record.
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
