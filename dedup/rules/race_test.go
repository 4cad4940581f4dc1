//go:build race

package rules

// raceDetector reports whether the race detector is compiled in.
const raceDetector = true
