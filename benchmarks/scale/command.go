//go:build unix

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"time"

	"oncebus/processor/kafkatest/program"
)

// commandUse is what a command of oncebus used.
type commandUse struct {
	Seconds float64 // from the start of the command to its end
	CPU     float64 // CPU time in seconds
	RSS     int64   // highest resident memory, bytes
}

// oncebus returns a command of the program with the settings of the app.
func (a *app) oncebus(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, a.binary, args...)
	cmd.Env = spec{binary: a.binary, brokers: a.broker.Seeds(), app: a.name, instance: "command", routes: a.routes, stateDir: a.stateDir(0), partitions: a.shape.Partitions, workers: a.shape.Workers, s: a.s}.environ()
	return cmd
}

// command runs a command of oncebus and decodes what it prints.
func (a *app) command(ctx context.Context, printed any, args ...string) (commandUse, error) {
	cmd := a.oncebus(ctx, append(args, "-o", "json")...)
	var out bytes.Buffer
	use, err := useOf(cmd, func(from io.Reader) error { _, err := out.ReadFrom(from); return err })
	if err != nil {
		return use, err
	}
	return use, json.Unmarshal(out.Bytes(), printed)
}

// rssEvery is the time between two samples of a command's memory. Few samples suffice, because the kernel itself
// keeps the highest value.
const rssEvery = 50 * time.Millisecond

// useOf runs a command. read reads the command's output to its end.
func useOf(cmd *exec.Cmd, read func(io.Reader) error) (use commandUse, err error) {
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	if err != nil {
		return use, err
	}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return use, err
	}
	ended, sampled := make(chan struct{}), make(chan int64)
	go func() { sampled <- highestRSS(cmd.Process.Pid, ended) }()
	readErr := read(out)
	err = cmd.Wait()
	use.Seconds = time.Since(began).Seconds()
	close(ended)
	use.RSS = <-sampled
	use.CPU = (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds()
	if err == nil {
		err = readErr
	}
	if err != nil {
		return use, fmt.Errorf("%s: %w: %s", cmd.Args[0]+" "+cmd.Args[1], err, bytes.TrimSpace(errs.Bytes()))
	}
	return use, nil
}

// highestRSS samples a process until ended is closed.
func highestRSS(pid int, ended <-chan struct{}) (highest int64) {
	tick := time.NewTicker(rssEvery)
	defer tick.Stop()
	for {
		if u, err := program.UsageOf(pid); err == nil { // it fails once the process has ended
			highest = max(highest, u.RSSMax)
		}
		select {
		case <-tick.C:
		case <-ended:
			return highest
		}
	}
}
