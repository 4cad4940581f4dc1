//go:build unix

package main

import (
	"context"
	"fmt"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"oncebus/processor/kafkatest"
	"oncebus/processor/kafkatest/program"
)

// unit is a program of which one process runs at a time. The unit restarts the process like a supervisor.
type unit struct {
	name, log string
	command   func(ctx context.Context) *exec.Cmd
	// mayEnd says that the program may end by itself while Kafka is away, and that the supervisor then starts
	// it again. If another program ends by itself, that is a defect.
	mayEnd bool

	mu     sync.Mutex
	proc   *program.Process
	wanted bool // a process should be running
	paused bool
	starts int
	err    error
}

// restartAfter is how long the supervisor waits before it starts a process again.
const restartAfter = time.Second

// startLocked starts a process, which runs until the unit ends it. The caller holds mu.
func (u *unit) startLocked(ctx context.Context) error {
	proc, err := program.Start(u.name, u.command(context.WithoutCancel(ctx)), u.log)
	if err != nil {
		return err
	}
	u.proc, u.wanted, u.paused = proc, true, false
	u.starts++
	go u.supervise(ctx, proc)
	return nil
}

func (u *unit) supervise(ctx context.Context, proc *program.Process) {
	<-proc.Exited()
	u.mu.Lock()
	wanted := u.wanted && u.proc == proc
	if wanted && !u.mayEnd {
		u.err = fmt.Errorf("%s ended by itself: %w: %s", u.name, proc.Err(), proc.Log.Failure())
	}
	u.mu.Unlock()
	if !wanted || kafkatest.Pause(ctx, restartAfter) != nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.wanted && u.proc == proc {
		if err := u.startLocked(ctx); err != nil {
			u.err = err
		}
	}
}

// take records that no process should run any more. It returns the running process, and if that process was
// stopped by SIGSTOP, take resumes it.
func (u *unit) take() *program.Process {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.wanted = false
	if u.proc == nil || !u.proc.Running() {
		return nil
	}
	if u.paused {
		_ = u.proc.Signal(syscall.SIGCONT) // it may have ended
		u.paused = false
	}
	return u.proc
}

// kill ends the process with SIGKILL.
func (u *unit) kill() error {
	if proc := u.take(); proc != nil {
		return proc.Kill()
	}
	return nil
}

// stop ends the process with SIGTERM.
func (u *unit) stop() error {
	proc := u.take()
	switch {
	case proc == nil:
		return nil
	case u.mayEnd:
		_ = proc.Stop() // the exit code is ignored, because oncebus makes no promise about it here
		return nil
	}
	return proc.Stop()
}

// freeze stops the process with SIGSTOP for d.
func (u *unit) freeze(ctx context.Context, d time.Duration) error {
	if err := u.signal(syscall.SIGSTOP, true); err != nil {
		return err
	}
	if err := kafkatest.Pause(ctx, d); err != nil {
		return err
	}
	return u.signal(syscall.SIGCONT, false)
}

func (u *unit) signal(sig syscall.Signal, paused bool) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.proc == nil || !u.proc.Running() {
		return nil // the process has ended, and the supervisor starts it
	}
	u.paused = paused
	return u.proc.Signal(sig)
}

// running makes sure that the process runs: it starts the process, or resumes it if it was stopped.
func (u *unit) running(ctx context.Context) error {
	if err := u.signal(syscall.SIGCONT, false); err != nil {
		return err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.wanted {
		return nil
	}
	return u.startLocked(ctx)
}

// awaitReady waits until the process of oncebus in the unit is ready.
func (u *unit) awaitReady(ctx context.Context) error {
	u.mu.Lock()
	proc := u.proc
	u.mu.Unlock()
	if _, err := proc.AwaitLog(ctx, program.ListensHTTP); err != nil {
		return err
	}
	_, err := proc.AwaitReady(ctx)
	return err
}

func (u *unit) failure() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.err
}
