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

// executorProcess is the executor under test, which a conformance run starts and kills. It does so with a
// command, or asks the person at the terminal to do it.
type executorProcess struct {
	run, kill string
	environ   []string
	p         cli.Process
	stdin     *bufio.Reader

	command *exec.Cmd
	exited  chan struct{} // closed when the command has ended, with err
	err     error
	started bool // the person has started the executor at least once
}

// shell returns a shell command in a new process group, so that end can kill the command and all its children.
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
		return nil // whatever started the executor before, such as a supervisor, starts it again
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

// stop kills the executor if the kit has started it.
func (e *executorProcess) stop(ctx context.Context) error {
	if e.command == nil {
		return nil
	}
	return e.end(ctx)
}

// ended returns why the command has ended; nil while it runs, or if a person has started the executor.
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

// ask asks the person to do something and waits for the Enter key.
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
