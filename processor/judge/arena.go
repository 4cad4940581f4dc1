package judge

// arena hands out pieces of T from chunks that it keeps and reuses, so that a
// worker that has seen its largest transaction allocates no more. A piece is
// valid until reset, which a worker calls when the promise of every record of a
// transaction has been called.
type arena[T any] struct {
	chunks [][]T
	chunk  int // the one in use
	used   int // of that chunk
}

// arenaChunk is the length of a chunk; a larger piece gets a chunk of its own.
const arenaChunk = 4096

// take returns n zero values in a row.
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

// reset takes all pieces back and drops what they point to.
func (a *arena[T]) reset() {
	for i := range min(a.chunk, len(a.chunks)) {
		clear(a.chunks[i])
	}
	if a.chunk < len(a.chunks) {
		clear(a.chunks[a.chunk][:a.used])
	}
	a.chunk, a.used = 0, 0
}
