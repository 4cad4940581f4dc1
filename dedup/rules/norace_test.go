//go:build !race

package rules

// raceDetector tells whether the race detector is compiled in.
const raceDetector = false
