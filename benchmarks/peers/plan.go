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

// kinds has the kinds of fault in the order of the report.
var kinds = []kind{kill, pause, restart}

const (
	// pauseFor is how long a paused process stands still. It is longer than the session timeout, so that another
	// process takes over its partitions.
	pauseFor = bench.SessionTimeout + 5*time.Second
	// leadIn is how long the load runs before the first slot. After the last slot the load runs without faults,
	// too, for the time calm.
	leadIn = 3 * time.Second
	calm   = 5 * time.Second
)

// slots has, for each kind of fault, the length of its part of the load. A slot has time for the fault itself and for
// the slowest contender to recover.
var slots = map[kind]time.Duration{kill: 18 * time.Second, pause: pauseFor + 15*time.Second, restart: 25 * time.Second}

// strike is one fault of a plan.
type strike struct {
	Kind kind
	At   time.Duration // counted from the start of the load
	// Process chooses the process that the fault strikes: this number modulo the number of processes.
	Process int
}

// plan draws the order of the faults, the process that each strikes, and the moment of each within the first two
// seconds of its slot. It also returns the length of the load.
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
