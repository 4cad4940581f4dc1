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

// Process is a child process that ends, at the latest, with the test process (on Linux also when that is killed). The broker is
// one; black-box tests start the program they test as another.
type Process struct {
	cmd    *exec.Cmd
	exited chan struct{} // closed once the process is gone and err is set
	err    error         // what Wait said; read only after exited
}

// StartProcess runs cmd, whose SysProcAttr it sets, and watches it. The parent-death signal of Linux is sent when the *thread*
// that forked ends, not the process (prctl(2), PR_SET_PDEATHSIG), so the watching goroutine forks itself and keeps its thread
// until the child is gone.
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

// Signal sends sig to the process; one that is gone already is no error.
func (p *Process) Signal(sig syscall.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("send %v to process %d: %w", sig, p.cmd.Process.Pid, err)
	}
	return nil
}

// PID returns the process's number in the system, also after its end.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Running reports whether the process exists. One that SIGSTOP stopped does.
func (p *Process) Running() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// Stop sends SIGTERM, continues the process if SIGSTOP had stopped it, and waits until it is gone; Err says how it ended. After
// limit it kills the process, which is an error.
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

// Kill sends SIGKILL and waits until the process is gone. It may be called again.
func (p *Process) Kill() error {
	if err := p.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-p.exited
	return nil
}

// Exited is closed when the process is gone and all it wrote has been copied to cmd's writers.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Err returns how the process ended, as [exec.Cmd.Wait] says it, once Exited is closed.
func (p *Process) Err() error {
	<-p.exited
	return p.err
}
