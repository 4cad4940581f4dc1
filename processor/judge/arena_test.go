package judge

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

// TestArenaPiecesAreApart protects that every piece is zeroed, has the requested length, and shares no memory with
// another piece, across chunks and beyond its length.
func TestArenaPiecesAreApart(t *testing.T) {
	var a arena[int]
	for round := range 3 {
		var pieces [][]int
		for n := range 300 {
			size := []int{1, 0, 17, arenaChunk - 1, 3, arenaChunk, 2 * arenaChunk, 100}[n%8]
			piece := a.take(size)
			if len(piece) != size || cap(piece) != size {
				t.Fatalf("round %d: asked for %d, got %d of %d", round, size, len(piece), cap(piece))
			}
			for i, v := range piece {
				if v != 0 {
					t.Fatalf("round %d, piece %d: element %d is %d before anybody wrote it", round, n, i, v)
				}
				piece[i] = n + 1
			}
			pieces = append(pieces, piece)
		}
		for n, piece := range pieces {
			for i, v := range piece {
				if v != n+1 {
					t.Fatalf("round %d: element %d of piece %d was written by piece %d", round, i, n, v-1)
				}
			}
		}
		a.reset()
	}
}

// TestArenaLetsGoOnReset protects that after a reset the garbage collector can free everything that pieces pointed
// to, although the arena keeps its chunks.
func TestArenaLetsGoOnReset(t *testing.T) {
	var a arena[*int]
	for range 3 * arenaChunk {
		a.take(1)[0] = new(int)
	}
	a.take(2 * arenaChunk)[0] = new(int)
	a.reset()
	for c, chunk := range slices.Concat(a.chunks, a.large) {
		for i, p := range chunk {
			if p != nil {
				t.Fatalf("chunk %d still points to something at %d", c, i)
			}
		}
	}
}

// TestArenaStopsGrowing protects that long pieces which come in another order and with other lengths in each
// transaction need no more memory after some transactions.
func TestArenaStopsGrowing(t *testing.T) {
	var a arena[byte]
	rng := rand.New(rand.NewPCG(1, 1))
	size := func() (n int) {
		for _, c := range slices.Concat(a.chunks, a.large) {
			n += cap(c)
		}
		return n
	}
	after := 0
	for transaction := range 2000 {
		taken := 0
		for taken < 20*arenaChunk {
			n := 1 + rng.IntN(200)
			if rng.IntN(100) == 0 {
				n = arenaChunk + rng.IntN(arenaChunk)
			}
			a.take(n)
			taken += n
		}
		a.reset()
		if transaction == 200 {
			after = size()
		}
	}
	if n := size(); n > after*5/4 || n > 60*arenaChunk {
		t.Errorf("%d bytes, %d after 200 transactions of %d", n, after, 20*arenaChunk)
	}
}

// TestWarmArenaAllocatesNothing protects that a worker builds records without the allocator after its largest
// transaction.
func TestWarmArenaAllocatesNothing(t *testing.T) {
	var a arena[kgo.RecordHeader]
	transaction := func() {
		for n := range 2000 {
			a.take(1 + n%13)
		}
		a.take(arenaChunk + 1)
		a.reset()
	}
	transaction()
	if n := testing.AllocsPerRun(20, transaction); n != 0 {
		t.Errorf("%v allocations in a transaction that is no larger than the one before", n)
	}
}
