//go:build unix

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"oncebus/benchmarks/internal/bench"
	"oncebus/state"
)

// settings are the settings of a phase.
type settings struct {
	Engine string
	Keys   int
	Tasks  int
	Txn    int // rows in one transaction
	Gets   int // number of look-ups of each kind to time
	Flush  int // rows in one run
	Look   bool
	Dir    string
}

func main() {
	var set settings
	var out, phase string
	bench.Main("state", func() error {
		flag.IntVar(&set.Keys, "keys", 10_000_000, "distinct keys to load")
		flag.IntVar(&set.Tasks, "tasks", 8, "tasks, each with its own store")
		flag.IntVar(&set.Txn, "txn", 4000, "rows of a transaction")
		flag.IntVar(&set.Gets, "gets", 400_000, "look-ups to time, of each kind")
		flag.IntVar(&set.Flush, "flush-rows", state.DefaultConfig().FlushRows, "rows of a run at most")
		flag.StringVar(&set.Dir, "dir", "", "directory for the files (default: a temporary one)")
		flag.StringVar(&out, "results", "", "directory for the result; none is written if empty")
		flag.StringVar(&phase, "phase", "", "internal: run one phase in this process")
		flag.StringVar(&set.Engine, "engine", "", "internal: engine of the phase")
		flag.BoolVar(&set.Look, "look", true, "internal: look every key up before it is put")
		flag.Parse()
		return nil
	}, func(ctx context.Context) error {
		if phase != "" {
			return runPhase(phase, set, os.Stdout)
		}
		return run(ctx, set, out)
	})
}

// Estimates of what a run takes for each key: two loads and two kinds of look-ups.
var perKey = map[string]time.Duration{engineRuns: 4 * time.Microsecond, engineRows: 20 * time.Microsecond}

// The engines.
const (
	engineRuns = "runs"
	engineRows = "rows"
)

// run measures both engines and reports, with files in the directory out.
func run(ctx context.Context, set settings, out string) (err error) {
	engines := []string{engineRuns, engineRows}
	var guesses []time.Duration
	for _, engine := range engines {
		guesses = append(guesses, time.Duration(set.Keys)*perKey[engine])
	}
	progress, err := bench.StartRuns(guesses)
	if err != nil {
		return err
	}
	if set.Dir == "" {
		dir, err := os.MkdirTemp("", "oncebus-state-")
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
		set.Dir = dir
	}
	machine := bench.ThisMachine()
	var results []result
	for _, engine := range engines {
		res, err := measure(ctx, engine, set)
		if err != nil {
			return fmt.Errorf("engine %s: %w", engine, err)
		}
		progress.Done("engine %s: %.2f us CPU a key", engine, res.Load.CPUMicros)
		results = append(results, res)
	}
	return machine.Publish(out, bench.Report{Title: "State at size", Name: "state", Text: markdown(set, results), Result: results})
}

// measure runs all phases of one engine: a load with writes only; a load with look-ups, which is killed at its end;
// and the open after the kill.
func measure(ctx context.Context, engine string, set settings) (result, error) {
	set.Engine = engine
	res := result{Engine: engine}
	base := set.Dir
	for _, look := range []bool{false, true} {
		set.Look = look
		set.Dir = filepath.Join(base, engine+"-"+strconv.FormatBool(look))
		fmt.Fprintf(os.Stderr, "%s: load %d keys, look-ups %v\n", engine, set.Keys, look)
		var l loaded
		if err := child(ctx, "load", set, &l); err != nil {
			return res, err
		}
		if look {
			res.Load = l
		} else {
			res.WriteCPUMicros = l.CPUMicros
			if err := os.RemoveAll(set.Dir); err != nil {
				return res, err
			}
		}
	}
	fmt.Fprintf(os.Stderr, "%s: open after kill -9\n", engine)
	if err := child(ctx, "open", set, &res.Open); err != nil {
		return res, err
	}
	return res, os.RemoveAll(set.Dir)
}

// child runs a phase in a separate process, decodes the process's one line of output into v, and then kills the
// process with SIGKILL, so that it cannot close its files.
func child(ctx context.Context, phase string, set settings, v any) error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, exe, "-phase", phase, "-engine", set.Engine,
		"-keys", strconv.Itoa(set.Keys), "-tasks", strconv.Itoa(set.Tasks), "-txn", strconv.Itoa(set.Txn),
		"-gets", strconv.Itoa(set.Gets), "-flush-rows", strconv.Itoa(set.Flush), "-look="+strconv.FormatBool(set.Look), "-dir", set.Dir)
	cmd.Env = append(os.Environ(), phaseEnv+"=1")
	cmd.Stderr = os.Stderr
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	line, err := bufio.NewReader(pipe).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, v)
	}
	err = errors.Join(err, cmd.Process.Kill())
	waitErr := cmd.Wait()
	status, _ := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if err == nil && status.Signal() == syscall.SIGKILL && ctx.Err() == nil {
		return nil // the phase is complete, and the kill is intended
	}
	return fmt.Errorf("phase %s: %w", phase, errors.Join(err, waitErr))
}

// phaseEnv tells a test binary that it is a child of the benchmark, and which phase to run.
const phaseEnv = "ONCEBUS_STATE_BENCHMARK_PHASE"
