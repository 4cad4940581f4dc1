package judge

import "math/bits"

// arena allocates pieces of T in chunks and reuses the chunks, so that a worker allocates nothing once
// it has had its largest transaction. A piece is valid until reset. A worker calls reset after franz-go
// has called the promise of every record of a transaction.
type arena[T any] struct {
	chunks [][]T
	chunk  int // index of the chunk in use
	used   int // pieces used of that chunk
	// large has the pieces that are longer than a chunk. They are kept apart from the chunks: a long piece that
	// did not fit into the rest of a chunk would leave that rest unused, and at another place in each
	// transaction.
	large     [][]T
	largeUsed int
}

// arenaChunk is the length of a chunk.
const arenaChunk = 4096

// take returns n adjacent zero values.
func (a *arena[T]) take(n int) []T {
	if n > arenaChunk {
		return a.takeLarge(n)
	}
	if a.chunk < len(a.chunks) && a.used+n > arenaChunk {
		a.chunk++
		a.used = 0
	}
	if a.chunk == len(a.chunks) {
		a.chunks = append(a.chunks, make([]T, arenaChunk))
	}
	piece := a.chunks[a.chunk][a.used : a.used+n : a.used+n]
	a.used += n
	return piece
}

// takeLarge returns the next long piece. The nth long piece of each transaction reuses the memory of the nth
// long piece of earlier ones. That memory is as long as the longest of these pieces, rounded up to a power of
// two.
func (a *arena[T]) takeLarge(n int) []T {
	if a.largeUsed == len(a.large) {
		a.large = append(a.large, nil)
	}
	piece := a.large[a.largeUsed]
	if cap(piece) < n {
		piece = make([]T, n, 1<<bits.Len(uint(n-1)))
	}
	a.large[a.largeUsed] = piece[:n]
	a.largeUsed++
	return piece[:n:n]
}

// reset invalidates all pieces and clears them, so that the garbage collector can free what they point
// to.
func (a *arena[T]) reset() {
	for i := range min(a.chunk, len(a.chunks)) {
		clear(a.chunks[i])
	}
	if a.chunk < len(a.chunks) {
		clear(a.chunks[a.chunk][:a.used])
	}
	for _, piece := range a.large[:a.largeUsed] {
		clear(piece)
	}
	a.chunk, a.used, a.largeUsed = 0, 0, 0
}
