//go:build unix

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"oncebus/benchmarks/internal/bench"
	"oncebus/state"
)

type settings struct {
	keys       []int
	partitions int
	rate       int           // new keys a second, after the load
	traffic    time.Duration // how long, before the kill
	results    string
}

func main() {
	var s settings
	bench.Main("restart", s.parse, func(ctx context.Context) error { return run(ctx, s) })
}

func (s *settings) parse() (err error) {
	var keys string
	flag.StringVar(&keys, "keys", "1000000,10000000", "numbers of keys to measure at, comma separated, rising")
	flag.IntVar(&s.partitions, "partitions", 4, "partitions of the input, and tasks")
	flag.IntVar(&s.rate, "rate", 2000, "new keys a second between load and kill")
	flag.DurationVar(&s.traffic, "traffic", 90*time.Second, "how long that goes on; more than the flush age, so that the load is flushed")
	flag.StringVar(&s.results, "results", "", "directory for the report; none is written if empty")
	flag.Parse()
	s.keys, err = bench.Ints("keys", keys)
	return err
}

// perKey is about what a key takes to be stored.
const perKey = 6 * time.Microsecond

func run(ctx context.Context, s settings) (err error) {
	machine := bench.ThisMachine()
	var guesses []time.Duration
	for _, n := range s.keys {
		guesses = append(guesses, s.traffic+20*time.Second+time.Duration(n)*perKey)
	}
	progress, err := bench.StartRuns(guesses)
	if err != nil {
		return err
	}
	broker, err := bench.StartBroker(ctx, "restart")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, broker.Close()) }()
	program, err := newOncebus(ctx, broker.Dir, broker.Seeds())
	if err != nil {
		return err
	}
	input, err := newInput(ctx, broker, s.partitions)
	if err != nil {
		return err
	}
	defer input.close()
	var measured []measurement
	for _, n := range s.keys {
		m, err := measure(ctx, program, input, s, n)
		if err != nil {
			return fmt.Errorf("at %d keys: %w", n, err)
		}
		progress.Done("%v", m)
		measured = append(measured, m)
	}
	return errors.Join(report(s, machine, measured), judge(measured))
}

// measurement has the figures of one kill -9.
type measurement struct {
	Keys      int           // committed before the kill
	Unflushed int           // rows in memory only, by the last metrics of the process
	Since     int           // rows since a flush was due, by the clock
	Read      int           // rows read from the changelog at the restart
	Ready     time.Duration // from the start of the process to all tasks running, ns
}

func (m measurement) String() string {
	return fmt.Sprintf("%d keys: %d rows in memory at the kill, %d rows read from the changelog at the restart, ready after %v", m.Keys, m.Unflushed, m.Read, m.Ready.Round(time.Millisecond))
}

// measure fills up to n keys, kills the process and restarts it. The process
// continues with the state of the previous measurement.
func measure(ctx context.Context, program oncebus, in *input, s settings, n int) (measurement, error) {
	c, err := program.start(ctx)
	if err != nil {
		return measurement{}, err
	}
	defer func() { _ = c.Kill() }()
	began := time.Now()
	if err := in.produce(ctx, n-in.sent, 0); err != nil {
		return measurement{}, err
	}
	if err := awaitCommitted(ctx, c, in.sent); err != nil {
		return measurement{}, err
	}
	fmt.Fprintf(os.Stderr, "%d keys stored after %v\n", in.sent, time.Since(began).Round(time.Second))
	if err := in.produce(ctx, int(s.traffic.Seconds()*float64(s.rate)), s.rate); err != nil {
		return measurement{}, err
	}
	if err := awaitCommitted(ctx, c, in.sent); err != nil {
		return measurement{}, err
	}
	m := measurement{Keys: in.sent, Since: in.since(state.DefaultConfig().FlushAge)}
	before, err := c.Metrics(ctx)
	if err != nil {
		return measurement{}, err
	}
	m.Unflushed = int(before.Sum(metricRecent))
	if err := c.Kill(); err != nil {
		return measurement{}, err
	}
	again, err := program.start(ctx)
	if err != nil {
		return measurement{}, err
	}
	defer func() { _ = again.Kill() }()
	if m.Ready, err = again.AwaitReady(ctx); err != nil {
		return measurement{}, err
	}
	after, err := again.Metrics(ctx)
	if err != nil {
		return measurement{}, err
	}
	m.Read = int(after.Sum(metricRestored))
	if n := after.Sum(metricQuarantined); n != 0 {
		return m, fmt.Errorf("%v stores were quarantined after a kill", n)
	}
	return m, nil
}

// judge compares the measurements with the promise: the number of rows read
// follows from the rows in memory, not from the number of keys.
func judge(measured []measurement) error {
	var errs []error
	for _, m := range measured {
		if m.Read > m.Unflushed {
			errs = append(errs, fmt.Errorf("%d keys: %d rows read, but only %d rows were not flushed", m.Keys, m.Read, m.Unflushed))
		}
		if m.Unflushed == 0 {
			errs = append(errs, fmt.Errorf("%d keys: no row was in memory at the kill, so the run shows nothing", m.Keys))
		}
	}
	return errors.Join(errs...)
}

func report(s settings, machine bench.Machine, measured []measurement) error {
	var b strings.Builder
	fmt.Fprintf(&b, "One process, %d tasks; %d new keys a second for %v between load and kill; flush age %v, at most %d rows a flush.\n\n",
		s.partitions, s.rate, s.traffic, state.DefaultConfig().FlushAge, state.DefaultConfig().FlushRows)
	b.WriteString("| keys | rows in memory at the kill | keys of the last flush age | rows read from the changelog at the restart | start to ready |\n| ---: | ---: | ---: | ---: | ---: |\n")
	for _, m := range measured {
		fmt.Fprintf(&b, "| %d | %d | %d | %d | %v |\n", m.Keys, m.Unflushed, m.Since, m.Read, m.Ready.Round(time.Millisecond))
	}
	return machine.Publish(s.results, bench.Report{Title: "Restart after kill -9", Name: "restart", Text: b.String(), Result: measured})
}
