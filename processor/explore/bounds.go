//go:build !race

package explore

// Narrow says that tests should use narrow bounds. Here the bounds are wide; bounds_race.go narrows them.
const Narrow = false
