//go:build unix && race

package program

// racing is whether the tests are built with the race detector.
const racing = true
