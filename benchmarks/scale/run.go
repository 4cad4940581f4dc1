//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"oncebus/benchmarks/internal/bench"
	"oncebus/processor/kafkatest/program"
)

// result is written as JSON.
type result struct {
	Machine    bench.Machine
	Command    string
	Complete   bool // every requested part is complete, and every output was correct
	LiveKeys   []liveRun
	Shapes     []shapeRun
	Rebalances []move
	Idle       []idleRun
	Goals      []bench.Goal

	s settings
}

// progress prints a line on the terminal.
func progress(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

// run measures the requested parts and reports them; if one fails, it reports the
// complete ones.
func run(ctx context.Context, s settings) (err error) {
	r := result{Machine: bench.ThisMachine(), Command: bench.Command("scale"), s: s}
	broker, err := bench.StartBroker(ctx, "scale")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, broker.Close()) }()
	b := &bed{s: s, broker: broker}
	if b.binary, err = program.Build(ctx, broker.Dir); err != nil {
		return err
	}
	err = r.measure(ctx, b)
	r.Complete = err == nil
	r.Goals = r.goals()
	return errors.Join(err, r.report())
}

func (r *result) measure(ctx context.Context, b *bed) (err error) {
	for _, part := range r.s.what {
		switch part {
		case "live-keys":
			r.LiveKeys, err = measureLive(ctx, b)
		case "workers":
			r.Shapes, err = measureShapes(ctx, b)
		case "rebalance":
			r.Rebalances, err = measureRebalances(ctx, b)
		case "idle":
			r.Idle, err = measureIdle(ctx, b)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", part, err)
		}
	}
	return nil
}
