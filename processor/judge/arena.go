package judge

// arena allocates pieces of T in chunks and reuses the chunks, so that a worker
// allocates nothing after its largest transaction. A piece is valid until reset. A
// worker calls reset after the promise of every record of a transaction.
type arena[T any] struct {
	chunks [][]T
	chunk  int // index of the chunk in use
	used   int // of that chunk, in pieces
}

// arenaChunk is the length of a chunk; a larger piece gets a chunk of its own.
const arenaChunk = 4096

// take returns n adjacent zero values.
func (a *arena[T]) take(n int) []T {
	for {
		if a.chunk == len(a.chunks) {
			a.chunks = append(a.chunks, make([]T, max(n, arenaChunk)))
		}
		if c := a.chunks[a.chunk]; a.used+n <= len(c) {
			piece := c[a.used : a.used+n : a.used+n]
			a.used += n
			return piece
		}
		a.chunk++
		a.used = 0
	}
}

// reset invalidates all pieces and clears them, so that what they point to can be
// freed.
func (a *arena[T]) reset() {
	for i := range min(a.chunk, len(a.chunks)) {
		clear(a.chunks[i])
	}
	if a.chunk < len(a.chunks) {
		clear(a.chunks[a.chunk][:a.used])
	}
	a.chunk, a.used = 0, 0
}
