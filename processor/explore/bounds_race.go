//go:build race

package explore

// Narrow says that tests should use narrow bounds: with the race detector an exploration takes ten times as long and
// finds no race, because it runs in one goroutine.
const Narrow = true
