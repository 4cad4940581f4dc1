//go:build unix

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"oncebus/benchmarks/internal/bench"
	"oncebus/processor/kafkatest/program"
)

// benchmark has the parts that all measurements share.
type benchmark struct {
	settings

	broker *bench.Broker
	binary string
	input  bench.Input
}

// measurement has the figures of one run.
type measurement struct {
	Rate      float64 // events a second
	CPUMicros float64 // user and system time of the process per event
	RSSMaxMiB float64 // highest resident memory of the process
	DiskMiB   float64 // what an audit wrote to disk
	Keys      float64 // number of keys that the audit has counted
	KeysError float64 // its standard error
}

func (b benchmark) measure(ctx context.Context, c contender, round int) (measurement, error) {
	if c.args == nil {
		return b.passthrough(ctx, round)
	}
	return b.audit(ctx, c)
}

// estimate is a number in the output of the audit, with its standard error.
type estimate struct {
	N     float64
	Error float64 `json:"standard_error"`
}

// audit runs oncebus audit to its end, and compares its counts with the input.
func (b benchmark) audit(ctx context.Context, c contender) (m measurement, err error) {
	args := append([]string{"audit", "--brokers", b.broker.Seeds()[0], "--topic", b.input.Topic, "--key", "field:traceId", "-o", "json"}, c.args...)
	if c.disk {
		dir := filepath.Join(b.broker.Dir, "exact")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return m, err
		}
		args = append(args, "--exact", dir)
	}
	cmd := exec.CommandContext(ctx, b.binary, args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, os.Stderr
	began := time.Now()
	if err := cmd.Run(); err != nil {
		return m, err
	}
	took := time.Since(began)
	var shown struct {
		Records int
		Rules   []struct {
			Keys, Copies estimate
			DiskBytes    int64 `json:"disk_bytes"`
		}
	}
	if err := json.Unmarshal(out.Bytes(), &shown); err != nil {
		return m, err
	}
	r := shown.Rules[0]
	m = measurement{
		Rate: float64(b.events) / took.Seconds(), DiskMiB: float64(r.DiskBytes) / (1 << 20), Keys: r.Keys.N, KeysError: r.Keys.Error,
		CPUMicros: float64((cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Microseconds()) / float64(b.events),
	}
	if usage, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
		kib := float64(usage.Maxrss)
		if runtime.GOOS == "darwin" { // on this system the value is in bytes
			kib /= 1024
		}
		m.RSSMaxMiB = kib / 1024
	}
	distinct := float64(b.input.Distinct())
	if shown.Records != b.events || math.Abs(r.Keys.N-distinct) > 5*r.Keys.Error || math.Abs(r.Copies.N-(float64(b.events)-distinct)) > 5*r.Copies.Error {
		return m, fmt.Errorf("the audit counts %d records, %+v keys and %+v copies; the input has %d, %.0f and %.0f", shown.Records, r.Keys, r.Copies, b.events, distinct, float64(b.events)-distinct)
	}
	return m, nil
}

// lookEvery is the resolution of the clock of the passthrough.
const lookEvery = 20 * time.Millisecond

// passthrough measures the passthrough, which does the least that a transactional stream processor can do, from
// its first output to its last output.
func (b benchmark) passthrough(ctx context.Context, round int) (m measurement, err error) {
	task := bench.Task{App: fmt.Sprintf("r%d-passthrough", round), Brokers: b.broker.Seeds(), Input: b.input.Topic, Partitions: b.partitions, Workers: 1, Commit: 100 * time.Millisecond}
	if err := b.broker.CreateTopics(ctx, b.partitions, task.Topics()...); err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, b.broker.DeleteApp(context.WithoutCancel(ctx), task.App)) }()
	cmd, err := task.Command(ctx)
	if err != nil {
		return m, err
	}
	process, err := program.Start(passthrough, cmd, "")
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, process.Stop()) }()
	var first time.Time
	var before int64
	var began program.Usage
	for {
		select {
		case <-time.After(lookEvery):
		case <-process.Exited():
			return m, fmt.Errorf("the process ended: %w", process.Err())
		case <-ctx.Done():
			return m, ctx.Err()
		}
		// The input has no transactions, so the sum of the committed offsets is the number of processed events.
		done, err := b.broker.Committed(ctx, task.Group(), task.Input)
		if err != nil {
			return m, err
		}
		usage, err := process.Usage()
		if err != nil {
			return m, err
		}
		switch events := float64(done - before); {
		case done == 0:
		case first.IsZero():
			first, before, began = time.Now(), done, usage
		case done == int64(b.events):
			return measurement{
				Rate: events / time.Since(first).Seconds(), CPUMicros: float64((usage.CPU - began.CPU).Microseconds()) / events,
				RSSMaxMiB: float64(usage.RSSMax) / (1 << 20),
			}, nil
		}
	}
}
