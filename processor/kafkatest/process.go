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

// Process is a child process that ends no later than the test process; on Linux also
// if that is killed. Brokers are such processes, and so are programs under test.
type Process struct {
	cmd    *exec.Cmd
	exited chan struct{} // closed once the process has ended and err is set
	err    error         // the error of Wait; read only after exited
}

// StartProcess runs cmd, whose SysProcAttr it sets, and watches it. Linux sends the
// parent-death signal when the *thread* that forked ends, not the process (prctl(2),
// PR_SET_PDEATHSIG). So the watching goroutine forks, and keeps its thread until the
// child has ended.
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

// Signal sends sig to the process; after its end it has no effect. Of SIGSTOP it returns when no thread of the process runs any
// more: on a busy machine the threads work on until the one that the kernel chose to take the signal gets its turn.
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

// PID returns the process id, also after the end of the process.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Running reports whether the process exists. One stopped by SIGSTOP does.
func (p *Process) Running() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// Stop sends SIGTERM, resumes a process that SIGSTOP stopped, and waits for its end;
// Err has the exit status. After limit it kills the process and returns an error.
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

// Exited is closed when the process has ended and its output is copied to cmd's
// writers.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Err returns the result of [exec.Cmd.Wait], once Exited is closed.
func (p *Process) Err() error {
	<-p.exited
	return p.err
}
