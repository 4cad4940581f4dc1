//go:build race

package explore

// Narrow asks a test for narrow bounds: with the race detector an exploration takes ten
// times as long, and an exploration has one goroutine.
const Narrow = true
