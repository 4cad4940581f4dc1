package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"syscall"

	"oncebus/cmd/oncebus/cli"
)

// executorProcess is the executor that a conformance run starts and kills: by a command, or by
// the person at the terminal.
type executorProcess struct {
	run, kill string
	environ   []string
	p         cli.Process
	stdin     *bufio.Reader

	command *exec.Cmd
	exited  chan struct{} // closed when the command has ended, with err
	err     error
	started bool // once, by the person
}

// shell returns a command in a process group of its own.
func (e *executorProcess) shell(ctx context.Context, line string) *exec.Cmd {
	//nolint:gosec // the operator wants this command to be run
	command := exec.CommandContext(ctx, "sh", "-c", line)
	command.Env, command.Stdout, command.Stderr = slices.Concat(e.p.Environ, e.environ), e.p.Stderr, e.p.Stderr
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return command
}

// start starts the executor.
func (e *executorProcess) start(ctx context.Context) error {
	switch {
	case e.run != "":
		e.command, e.exited = e.shell(context.WithoutCancel(ctx), e.run), make(chan struct{})
		if err := e.command.Start(); err != nil {
			return fmt.Errorf("run %s: %w", e.run, err)
		}
		go func(command *exec.Cmd, exited chan struct{}) {
			e.err = command.Wait()
			close(exited)
		}(e.command, e.exited)
		return nil
	case e.kill != "":
		return nil // what started it starts it again
	case !e.started:
		e.started = true
		return e.ask(ctx, "start the executor, and press Enter")
	}
	return e.ask(ctx, "start the executor again, and press Enter")
}

// end kills the executor.
func (e *executorProcess) end(ctx context.Context) error {
	switch {
	case e.command != nil:
		if err := syscall.Kill(-e.command.Process.Pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			return err
		}
		<-e.exited
		e.command = nil
		return nil
	case e.run != "":
		return nil
	case e.kill != "":
		if err := e.shell(ctx, e.kill).Run(); err != nil {
			return fmt.Errorf("%s: %w", e.kill, err)
		}
		return nil
	}
	return e.ask(ctx, "kill the executor (kill -9), and press Enter")
}

// stop kills the executor if the kit started it.
func (e *executorProcess) stop(ctx context.Context) error {
	if e.command == nil {
		return nil
	}
	return e.end(ctx)
}

// ended returns why the command has ended; nil while it runs, or if the person started it.
func (e *executorProcess) ended() error {
	if e.command == nil {
		return nil
	}
	select {
	case <-e.exited:
		if e.err == nil {
			return errors.New("exit code 0")
		}
		return e.err
	default:
		return nil
	}
}

// ask waits until the person has done something.
func (e *executorProcess) ask(ctx context.Context, what string) error {
	if e.stdin == nil {
		e.stdin = bufio.NewReader(e.p.Stdin)
	}
	cli.Printf(e.p.Stderr, "%s: ", what)
	line, err := e.stdin.ReadString('\n')
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("%s: no answer (%q): %w; use --run or --kill", what, strings.TrimSpace(line), err)
	}
	return nil
}
