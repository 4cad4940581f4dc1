//go:build unix

package main

import (
	"math/rand/v2"
	"time"

	"oncebus/benchmarks/internal/bench"
)

// kind is a kind of fault.
type kind string

const (
	kill    kind = "kill -9"
	pause   kind = "pause"
	restart kind = "broker"
)

// kinds are in the order of the report.
var kinds = []kind{kill, pause, restart}

const (
	// pauseFor is how long a paused process does not run: past the session timeout, so
	// that another takes its partitions.
	pauseFor = bench.SessionTimeout + 5*time.Second
	// leadIn is the load before the first slot, and calm that after the last.
	leadIn = 3 * time.Second
	calm   = 5 * time.Second
)

// slots are the lengths of the parts of the load that belong to one fault: time for
// the fault itself, and for the slowest contender to recover.
var slots = map[kind]time.Duration{kill: 18 * time.Second, pause: pauseFor + 15*time.Second, restart: 25 * time.Second}

// strike is one fault of a plan.
type strike struct {
	Kind kind
	At   time.Duration // from the start of the load
	// Process is the process that it strikes, modulo their number.
	Process int
}

// plan draws the order of the faults, the process of each, and its moment in the first
// two seconds of its slot. It returns the length of the load, too.
func plan(seed uint64, counts map[kind]int) (strikes []strike, load time.Duration) {
	draw := rand.New(rand.NewPCG(seed, 0))
	for _, k := range kinds {
		for range counts[k] {
			strikes = append(strikes, strike{Kind: k})
		}
	}
	draw.Shuffle(len(strikes), func(i, j int) { strikes[i], strikes[j] = strikes[j], strikes[i] })
	load = leadIn
	for i := range strikes {
		s := &strikes[i]
		s.At = load + time.Duration(draw.Int64N(int64(2*time.Second)))
		s.Process = draw.IntN(1000)
		load += slots[s.Kind]
	}
	return strikes, load + calm
}
