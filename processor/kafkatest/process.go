//go:build unix

package kafkatest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// Process is a child process that ends no later than the test process. On Linux the child ends even if the test
// process is killed. The harness runs brokers and programs under test as Processes.
type Process struct {
	cmd    *exec.Cmd
	exited chan struct{} // closed once the process has ended and err is set
	err    error         // the error of Wait; read it only after exited is closed
}

// StartProcess starts cmd and watches it. It sets SysProcAttr so that Linux kills the child when the test process
// dies. Linux sends this parent-death signal when the *thread* that forked the child ends, not when the process ends
// (prctl(2), PR_SET_PDEATHSIG). The watching goroutine therefore forks the child itself and stays locked to its
// thread until the child has ended.
func StartProcess(cmd *exec.Cmd) (*Process, error) {
	p := &Process{cmd: cmd, exited: make(chan struct{})}
	cmd.SysProcAttr = sysProcAttr()
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		p.err = cmd.Wait()
		close(p.exited)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	return p, nil
}

// Signal sends sig to the process; it has no effect on a process that has ended. After SIGSTOP, Signal waits until no
// thread of the process runs: on a busy machine, the other threads keep running until the thread that the kernel
// chose to receive the signal is scheduled.
func (p *Process) Signal(sig syscall.Signal) error {
	err := p.cmd.Process.Signal(sig)
	if err == nil && sig == syscall.SIGSTOP {
		err = awaitStopped(p.cmd.Process.Pid)
	}
	if err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("send %v to process %d: %w", sig, p.cmd.Process.Pid, err)
	}
	return nil
}

// PID returns the process id. It stays valid as a name for the process after its end.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Running reports whether the process exists. A process that SIGSTOP stopped exists.
func (p *Process) Running() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// Stop sends SIGTERM and then SIGCONT, so that a stopped process can handle the first signal, and waits for the end.
// Err returns the exit status. If the process still runs after limit, Stop kills it and returns an error.
func (p *Process) Stop(limit time.Duration) error {
	if err := errors.Join(p.Signal(syscall.SIGTERM), p.Signal(syscall.SIGCONT)); err != nil {
		return err
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-p.exited:
		return nil
	case <-timer.C:
		return errors.Join(fmt.Errorf("process %d did not end within %v of SIGTERM and was killed", p.PID(), limit), p.Kill())
	}
}

// Kill sends SIGKILL and waits for the end of the process. It may be called again.
func (p *Process) Kill() error {
	if err := p.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-p.exited
	return nil
}

// Exited returns a channel that is closed when the process has ended and its output has been copied to the writers of
// cmd.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Err returns the result of [exec.Cmd.Wait], once Exited is closed.
func (p *Process) Err() error {
	<-p.exited
	return p.err
}
