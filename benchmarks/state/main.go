package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"oncebus/state"
)

// settings are those of a phase.
type settings struct {
	Engine string
	Keys   int
	Tasks  int
	Txn    int // rows of a transaction
	Gets   int // look-ups of each kind to time
	Flush  int // rows of a run
	Look   bool
	Dir    string
}

func main() {
	var set settings
	var out, phase string
	flag.IntVar(&set.Keys, "keys", 10_000_000, "distinct keys to load")
	flag.IntVar(&set.Tasks, "tasks", 8, "tasks, each with its own store")
	flag.IntVar(&set.Txn, "txn", 4000, "rows of a transaction")
	flag.IntVar(&set.Gets, "gets", 400_000, "look-ups to time, of each kind")
	flag.IntVar(&set.Flush, "flush-rows", state.DefaultConfig().FlushRows, "rows of a run at most")
	flag.StringVar(&set.Dir, "dir", "", "directory for the files (default: a temporary one)")
	flag.StringVar(&out, "out", "benchmarks/results", "directory for the result; empty writes none")
	flag.StringVar(&phase, "phase", "", "internal: run one phase in this process")
	flag.StringVar(&set.Engine, "engine", "", "internal: engine of the phase")
	flag.BoolVar(&set.Look, "look", true, "internal: look every key up before it is put")
	flag.Parse()

	var err error
	if phase != "" {
		err = runPhase(phase, set, os.Stdout)
	} else {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		err = run(ctx, set, out, os.Stdout)
		stop()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "state benchmark:", err)
		os.Exit(1)
	}
}

// run measures both engines and reports: a table to w, files to the directory
// out.
func run(ctx context.Context, set settings, out string, w io.Writer) (err error) {
	if set.Dir == "" {
		dir, err := os.MkdirTemp("", "oncebus-state-")
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
		set.Dir = dir
	}
	rep := report{When: time.Now().UTC(), Keys: set.Keys, Tasks: set.Tasks, Txn: set.Txn, Machine: machine()}
	for _, engine := range []string{"runs", "rows"} {
		res, err := measure(ctx, engine, set, w)
		if err != nil {
			return fmt.Errorf("engine %s: %w", engine, err)
		}
		rep.Results = append(rep.Results, res)
	}
	fmt.Fprint(w, rep.markdown())
	if out == "" {
		return nil
	}
	return rep.write(out)
}

// measure runs all phases of one engine: a load with writes only, a load with
// look-ups that is killed at its end, and the open after the kill.
func measure(ctx context.Context, engine string, set settings, w io.Writer) (result, error) {
	set.Engine = engine
	res := result{Engine: engine}
	base := set.Dir
	for _, look := range []bool{false, true} {
		set.Look = look
		set.Dir = filepath.Join(base, engine+"-"+strconv.FormatBool(look))
		fmt.Fprintf(w, "%s: load %d keys, look-ups %v\n", engine, set.Keys, look)
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
	fmt.Fprintf(w, "%s: open after kill -9\n", engine)
	if err := child(ctx, "open", set, &res.Open); err != nil {
		return res, err
	}
	return res, os.RemoveAll(set.Dir)
}

// child runs a phase in a separate process, reads its one line of output into v, and
// kills it with SIGKILL, so that it cannot close its files.
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

// phaseEnv makes a test binary a child of the benchmark.
const phaseEnv = "ONCEBUS_STATE_BENCHMARK_PHASE"
