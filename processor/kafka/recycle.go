package kafka

import (
	"math/bits"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/twmb/franz-go/pkg/kgo"
)

// A recycler allocates the memory of batches, or that of their records, and allocates the
// memory that it gets back. Memory has one of four lengths between two powers of two. It
// counts in the budget from get until put or, without a put, until it is unreachable.
type recycler[T any] struct {
	budget *Budget
	// free has memory that was put, by class of its length. The garbage collector empties
	// it.
	free [recycleClasses]sync.Pool
	// accounts are those of all memory that is reachable, by address.
	accounts sync.Map
}

// recycleClasses is the number of lengths of memory that is kept. The longest one is that
// of scratchBytes.
const recycleClasses = 4*(20-3) + 5

// An account says how much memory the budget has taken for a piece of memory; 0 while it is
// free.
type account struct{ taken atomic.Int64 }

// get returns n elements, with the capacity that capacityOf returns. The caller has taken
// memory bytes from the budget.
func (r *recycler[T]) get(n int, memory int64) []T {
	size, class := sizeOf(n)
	var piece []T
	if class >= 0 {
		if free, ok := r.free[class].Get().(*[]T); ok {
			piece = *free
		}
	}
	if piece == nil {
		piece = make([]T, size)
		r.open(piece, class >= 0)
	}
	r.accountOf(piece).taken.Store(memory)
	if class >= 0 {
		r.budget.lend(memory)
	}
	return piece[:n]
}

// sizeOf returns the length of memory for n elements, at most a quarter more, and its
// class; n and -1 for memory that is not kept.
func sizeOf(n int) (size, class int) {
	n = max(n, 8)
	shift := bits.Len(uint(n-1)) - 3
	quarters := (n + 1<<shift - 1) >> shift // 4 to 8
	if class = 4*shift + quarters - 4; class >= recycleClasses {
		return n, -1
	}
	return quarters << shift, class
}

// capacityOf returns the capacity of memory for n elements.
func capacityOf(n int) int {
	size, _ := sizeOf(n)
	return size
}

// open makes the account of new memory, and lets the budget have back what is taken when
// the memory is unreachable. lent says that it can be recycled.
func (r *recycler[T]) open(piece []T, lent bool) {
	address, a := addressOf(piece), new(account)
	r.accounts.Store(address, a)
	counter := &r.budget.dropped
	if lent {
		counter = &r.budget.freed
	}
	runtime.AddCleanup(&piece[0], func(a *account) {
		r.budget.collected(counter, a.taken.Swap(0))
		r.accounts.CompareAndDelete(address, a) // the address may have new memory by now
	}, a)
}

// accountOf returns the account of memory, or nil if get did not return it.
func (r *recycler[T]) accountOf(piece []T) *account {
	a, _ := r.accounts.Load(addressOf(piece))
	found, _ := a.(*account)
	return found
}

func addressOf[T any](piece []T) uintptr {
	return uintptr(unsafe.Pointer(unsafe.SliceData(piece))) //nolint:gosec // only compared, never dereferenced
}

// put takes memory back. Nothing may refer to it any more.
func (r *recycler[T]) put(piece []T) {
	piece = piece[:cap(piece)]
	a := r.accountOf(piece)
	if a == nil {
		return
	}
	taken := a.taken.Swap(0)
	size, class := sizeOf(len(piece))
	if class < 0 || size != len(piece) {
		r.budget.release(taken) // the collector frees it
		return
	}
	r.budget.recycled(taken)
	clear(piece)
	r.free[class].Put(&piece)
}

// A pool counts the memory of the batches and records of a client, and gets it back if the
// client's user recycles the records. It implements kgo.PoolDecompressBytes, for what
// decompressor returns, and kgo.PoolRecords.
type pool struct{ budget *Budget }

// countedMin is the least number of records that a pool counts. The batches of fewer
// records that a response may have take little more memory than its bytes.
const countedMin = 16

// GetRecords returns memory for n records.
func (p pool) GetRecords(n int) []kgo.Record {
	if n < countedMin {
		return make([]kgo.Record, n)
	}
	memory := recordsBytes(n)
	p.budget.add(memory)
	records := p.budget.records.get(n, memory)
	p.budget.boundGarbage()
	return records
}

// recordsBytes returns the memory of n records with the pointers to them.
func recordsBytes(n int) int64 { return int64(capacityOf(n)) * recordBytes }

// PutRecords takes back records that GetRecords has returned.
func (p pool) PutRecords(records []kgo.Record) { p.budget.records.put(records) }

// GetDecompressBytes is not called: decompressor takes the memory itself.
func (p pool) GetDecompressBytes([]byte, kgo.CompressionCodecType) []byte { return nil }

// PutDecompressBytes takes back a batch that decompressor has returned.
func (p pool) PutDecompressBytes(batch []byte) { p.budget.batches.put(batch) }
