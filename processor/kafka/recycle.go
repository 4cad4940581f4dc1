package kafka

import (
	"math/bits"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/twmb/franz-go/pkg/kgo"
)

// recycler allocates the memory of batches or of their records, and reuses the memory that it gets
// back. The lengths of its pieces are rounded up to one of four between two powers of two, so that they
// can be reused. A piece counts in the budget from get until put or, without a put, until it is
// unreachable.
type recycler[T any] struct {
	budget *Budget
	// free has the pieces that were put, by class of their length. The garbage collector may empty it.
	free [recycleClasses]sync.Pool
	// accounts has the account of every piece that is reachable, by address.
	accounts sync.Map
}

// recycleClasses is the number of lengths that are kept. The longest one is that of scratchBytes.
const recycleClasses = 4*(20-3) + 5

// account says how much memory the budget has taken for a piece; 0 while the piece is free.
type account struct{ taken atomic.Int64 }

// get returns n elements, with the capacity that capacityOf returns. The caller has already taken
// memory bytes from the budget for them.
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

// sizeOf returns the length of a piece for n elements, which is at most a quarter more, and the class
// of that length. For a piece too long to be kept it returns n and -1.
func sizeOf(n int) (size, class int) {
	n = max(n, 8)
	shift := bits.Len(uint(n-1)) - 3
	quarters := (n + 1<<shift - 1) >> shift // 4 to 8
	if class = 4*shift + quarters - 4; class >= recycleClasses {
		return n, -1
	}
	return quarters << shift, class
}

// capacityOf returns the capacity of a piece for n elements.
func capacityOf(n int) int {
	size, _ := sizeOf(n)
	return size
}

// open makes the account of a new piece. When the piece becomes unreachable, the budget gets back the memory
// that was taken for the piece. lent reports that the piece can be recycled.
func (r *recycler[T]) open(piece []T, lent bool) {
	address, a := addressOf(piece), new(account)
	r.accounts.Store(address, a)
	counter := &r.budget.dropped
	if lent {
		counter = &r.budget.freed
	}
	runtime.AddCleanup(&piece[0], func(a *account) {
		r.budget.collected(counter, a.taken.Swap(0))
		r.accounts.CompareAndDelete(address, a) // a new piece may have the address by now
	}, a)
}

// accountOf returns the account of a piece; nil if get did not return the piece.
func (r *recycler[T]) accountOf(piece []T) *account {
	a, _ := r.accounts.Load(addressOf(piece))
	found, _ := a.(*account)
	return found
}

func addressOf[T any](piece []T) uintptr {
	return uintptr(unsafe.Pointer(unsafe.SliceData(piece))) //nolint:gosec // only compared, never dereferenced
}

// put takes a piece back for reuse. Nothing may refer to it any more.
func (r *recycler[T]) put(piece []T) {
	piece = piece[:cap(piece)]
	a := r.accountOf(piece)
	if a == nil {
		return
	}
	taken := a.taken.Swap(0)
	size, class := sizeOf(len(piece))
	if class < 0 || size != len(piece) {
		r.budget.release(taken) // the garbage collector frees the piece itself
		return
	}
	r.budget.recycled(taken)
	clear(piece)
	r.free[class].Put(&piece)
}

// pool counts the memory of a client's batches and records in the budget. If the user of the client recycles the
// records, pool gets their memory back. It implements kgo.PoolRecords, and kgo.PoolDecompressBytes for the
// memory that decompressor returns.
type pool struct{ budget *Budget }

// countedMin is the least number of records that pool counts. Smaller batches in a response take little
// more memory than their bytes.
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

// GetDecompressBytes is never called: decompressor takes its memory itself.
func (p pool) GetDecompressBytes([]byte, kgo.CompressionCodecType) []byte { return nil }

// PutDecompressBytes takes back a batch that decompressor has returned.
func (p pool) PutDecompressBytes(batch []byte) { p.budget.batches.put(batch) }
