//go:build unix

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
	"time"

	"oncebus/benchmarks/internal/bench"
)

// settings are the flags.
type settings struct {
	what    []string
	rounds  int
	results string

	// Settings of all parts.
	duplicates, old int // percent of the events, percent of the duplicates
	commitInterval  time.Duration
	flushAge        time.Duration
	sessionTimeout  time.Duration

	// Settings of live-keys.
	keys       []int
	partitions int
	workers    int
	backlog    int // events
	kills      int
	flushWait  time.Duration
	steady     time.Duration
	memory     int64 // limit in bytes; 0: no limit

	// Settings of workers.
	shapes []shape
	events int

	// Settings of rebalance.
	rebalance shape
	known     int // keys that are stored before
	rate      int // events a second
	cycles    int

	// Settings of restart.
	restartKeys    []int
	seedKeys       []int // numbers of keys that are seeded, exported and compared
	restartRate    int   // new keys a second
	restartTraffic time.Duration

	// Settings of standby.
	standbyKeys  []int
	standbyShape shape
	standbyPause time.Duration

	// Settings of changes.
	changesKeys    []int
	changesShape   shape
	changesTraffic time.Duration

	// Settings of idle.
	idle      time.Duration
	idleShape shape
	idleKeys  int
}

// parts has the names of the parts in the order of a run.
var parts = []string{"live-keys", "workers", "rebalance", "idle", "restart", "seed", "standby", "changes"}

// largeKeys is the number of keys above which a size is measured once, independent of
// -rounds: a round with 50 million takes some ten minutes.
const largeKeys = 10_000_000

func main() {
	var s settings
	bench.Main("scale", func() (err error) {
		s, err = parseFlags()
		return err
	}, func(ctx context.Context) error { return run(ctx, s) })
}

// changeFlags defines the flags of the parts standby, seed and changes.
func (s *settings) changeFlags(standbys, standbyShape, seeds, changes, changesShape *string) {
	flag.StringVar(changes, "changes-keys", "1000000", "changes: numbers of keys that are seeded, comma separated")
	flag.StringVar(changesShape, "changes-shape", "2x1x12", "changes: the shape before the move; the last process is killed")
	flag.DurationVar(&s.changesTraffic, "changes-traffic", 10*time.Second, "changes: traffic at -rate before and after each step, to compare with")
	flag.StringVar(standbys, "standby-keys", "1000000,10000000", "standby: numbers of keys, comma separated")
	flag.StringVar(standbyShape, "standby-shape", "2x2x24", "standby: the shape; the last process is killed")
	flag.DurationVar(&s.standbyPause, "standby-traffic", 15*time.Second, "standby: traffic at -rate before the kill, in which the costs are measured")
	flag.StringVar(seeds, "seed-keys", "1000000,2000000", "seed: numbers of keys to seed, export and compare, comma separated")
}

// restartFlags defines the flags of the part restart.
func (s *settings) restartFlags(restarts *string) {
	flag.StringVar(restarts, "restart-keys", "1000000,10000000", "restart: numbers of keys, comma separated")
	flag.IntVar(&s.restartRate, "restart-rate", 2000, "restart: new keys a second between fill and kill")
	flag.DurationVar(&s.restartTraffic, "restart-traffic", 90*time.Second, "restart: how long that goes on; more than the flush age, so that the fill is flushed")
}

func parseFlags() (s settings, err error) {
	var what, keys, shapes, rebalance, idle, restarts, seeds, standbys, standbyShape, changes, changesShape string
	flag.StringVar(&what, "what", strings.Join(parts, ","), "parts to run, comma separated")
	flag.IntVar(&s.rounds, "rounds", 3, "rounds, interleaved; medians are reported; sizes above 10 million keys, rebalances and idle processes have one")
	flag.StringVar(&s.results, "results", "", "directory for the report; none is written if empty")
	flag.IntVar(&s.duplicates, "duplicates", 10, "duplicates among the events, in percent")
	flag.IntVar(&s.old, "old", 10, "duplicates of keys from anywhere in the window, in percent of the duplicates; the others follow their original closely")
	flag.DurationVar(&s.commitInterval, "commit-interval", 100*time.Millisecond, "ONCEBUS_COMMIT_INTERVAL")
	flag.DurationVar(&s.flushAge, "flush-age", time.Minute, "ONCEBUS_STATE_FLUSH_AGE")
	flag.DurationVar(&s.sessionTimeout, "session-timeout", 10*time.Second, "ONCEBUS_SESSION_TIMEOUT")
	flag.StringVar(&keys, "keys", "1000000,10000000,50000000", "live-keys: numbers of keys, comma separated, rising")
	flag.IntVar(&s.partitions, "partitions", 8, "live-keys: partitions of the input, and so tasks")
	flag.IntVar(&s.workers, "workers", 0, "live-keys: ONCEBUS_WORKERS")
	flag.IntVar(&s.backlog, "backlog", 10_000_000, "live-keys: events of each backlog that is measured; never more than there are keys")
	flag.IntVar(&s.kills, "kills", 3, "live-keys: restarts after kill -9, under load")
	flag.DurationVar(&s.flushWait, "flush-wait", 70*time.Second, "live-keys: light traffic after the fill; more than the flush age, so that all rows are on disk")
	flag.DurationVar(&s.steady, "steady", 20*time.Second, "live-keys: traffic below the most that goes, in which stalls are looked for")
	flag.Int64Var(&s.memory, "memory-limit", 0, "live-keys: run the processes in a memory cgroup with this limit in bytes, 1.25 GiB is 1342177280; 0: no limit")
	flag.StringVar(&shapes, "shapes", "1x1x24,1x2x24,1x4x24,1x8x24,2x1x24,4x1x24,1x2x4,1x2x96,4x2x96", "workers: combinations, each processes x workers of each x partitions")
	flag.IntVar(&s.events, "events", 2_000_000, "workers: events for each combination")
	flag.StringVar(&rebalance, "rebalance", "2x2x24", "rebalance: the shape when all processes run")
	flag.IntVar(&s.known, "known", 2_000_000, "rebalance: keys known before")
	flag.IntVar(&s.rate, "rate", 10_000, "rebalance, standby, changes: events a second meanwhile")
	flag.IntVar(&s.cycles, "cycles", 3, "rebalance: how often a process starts, stops, starts and is killed")
	flag.StringVar(&idle, "idle-shape", "4x2x96", "idle: the shape")
	flag.DurationVar(&s.idle, "idle", 30*time.Second, "idle: how long the processes are watched")
	flag.IntVar(&s.idleKeys, "idle-keys", 500_000, "idle: keys known to the processes that were not always idle")
	s.restartFlags(&restarts)
	s.changeFlags(&standbys, &standbyShape, &seeds, &changes, &changesShape)
	flag.Parse()
	s.what = strings.Split(what, ",")
	for _, part := range s.what {
		if !slices.Contains(parts, part) {
			err = errors.Join(err, fmt.Errorf("-what: %q is not one of %v", part, parts))
		}
	}
	var keysErr, restartsErr, standbysErr, seedsErr, changesErr error
	s.keys, keysErr = bench.Ints("keys", keys)
	s.restartKeys, restartsErr = bench.Ints("restart-keys", restarts)
	s.standbyKeys, standbysErr = bench.Ints("standby-keys", standbys)
	s.seedKeys, seedsErr = bench.Ints("seed-keys", seeds)
	s.changesKeys, changesErr = bench.Ints("changes-keys", changes)
	err = errors.Join(err, keysErr, restartsErr, standbysErr, seedsErr, changesErr)
	s.shapes, err = parseShapes("-shapes", shapes, err)
	one, err := parseShapes("-rebalance", rebalance, err)
	four, err := parseShapes("-idle-shape", idle, err)
	taken, err := parseShapes("-standby-shape", standbyShape, err)
	changed, err := parseShapes("-changes-shape", changesShape, err)
	if err != nil {
		return s, err
	}
	s.rebalance, s.idleShape, s.standbyShape, s.changesShape = one[0], four[0], taken[0], changed[0]
	return s, s.validate()
}

func (s settings) validate() error {
	var errs []error
	atLeast := func(name string, v, low int) {
		if v < low {
			errs = append(errs, fmt.Errorf("%s: %d is too little, want at least %d", name, v, low))
		}
	}
	atLeast("-rounds", s.rounds, 1)
	atLeast("-partitions", s.partitions, 1)
	atLeast("-backlog", s.backlog, 10_000)
	atLeast("-events", s.events, 10_000)
	atLeast("-rate", s.rate, 100)
	atLeast("-rebalance: processes", s.rebalance.Processes, 2)
	atLeast("-standby-shape: processes", s.standbyShape.Processes, 2)
	atLeast("-changes-shape: processes", s.changesShape.Processes, 2)
	for _, n := range s.keys {
		atLeast("-keys", n, 50_000)
	}
	atLeast("-restart-rate", s.restartRate, 1)
	if s.duplicates < 0 || s.duplicates > 90 || s.old < 0 || s.old > 100 {
		errs = append(errs, fmt.Errorf("-duplicates %d -old %d: want 0 to 90 percent and 0 to 100 percent", s.duplicates, s.old))
	}
	if s.memory < 0 {
		errs = append(errs, fmt.Errorf("-memory-limit: %d is negative", s.memory))
	}
	if !slices.IsSorted(s.keys) {
		errs = append(errs, fmt.Errorf("-keys: %v do not rise", s.keys))
	}
	return errors.Join(errs...)
}

// shape has the numbers of processes, workers and partitions of an app.
type shape struct {
	Processes  int
	Workers    int // of each process
	Partitions int
}

func (s shape) String() string { return fmt.Sprintf("%dx%dx%d", s.Processes, s.Workers, s.Partitions) }

// parseShapes parses a list of shapes. It joins its errors to err, so that the caller can chain several calls.
func parseShapes(name, list string, err error) ([]shape, error) {
	var shapes []shape
	for _, text := range strings.Split(list, ",") {
		var s shape
		if _, e := fmt.Sscanf(text, "%dx%dx%d", &s.Processes, &s.Workers, &s.Partitions); e != nil || min(s.Processes, s.Workers, s.Partitions) < 1 {
			err = errors.Join(err, fmt.Errorf("%s: %q is malformed, want processes x workers x partitions, such as 2x1x24", name, text))
		}
		shapes = append(shapes, s)
	}
	return shapes, err
}
