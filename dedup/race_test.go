//go:build race

package dedup

// raceDetector tells whether the race detector is compiled in.
const raceDetector = true
