//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"oncebus/processor/kafkatest"
	"oncebus/processor/kafkatest/program"
)

// restartAfter is how long after the end of a process the supervisor starts the process again.
const restartAfter = time.Second

// member is one process of a system. Its supervisor starts it again whenever it ends.
type member struct {
	start func() (*program.Process, error)

	mu      sync.Mutex
	process *program.Process
	killed  int // how often the plan ended the process
	ends    int // how often the process ended in all
}

// launch starts the process.
func (m *member) launch() error {
	process, err := m.start()
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.process = process
	return nil
}

func (m *member) current() *program.Process {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.process
}

// supervise starts the process again whenever it ends. When ctx ends, it stops the process.
func (m *member) supervise(ctx context.Context) error {
	for {
		process := m.current()
		select {
		case <-ctx.Done():
			if err := process.Stop(); err != nil {
				fmt.Fprintln(os.Stderr, err) // only printed, because the output is complete by now
			}
			return nil
		case <-process.Exited():
		}
		m.mu.Lock()
		m.ends++
		m.mu.Unlock()
		if err := kafkatest.Pause(ctx, restartAfter); err != nil {
			return nil //nolint:nilerr // the run is over, and the process with it.
		}
		if err := m.launch(); err != nil {
			return err
		}
	}
}

// kill ends the process with SIGKILL.
func (m *member) kill() error {
	m.mu.Lock()
	m.killed++
	m.mu.Unlock()
	return m.current().Signal(syscall.SIGKILL)
}

// pause stops the process with SIGSTOP for the given time.
func (m *member) pause(ctx context.Context, d time.Duration) error {
	process := m.current()
	if err := process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	return errors.Join(kafkatest.Pause(ctx, d), process.Signal(syscall.SIGCONT))
}

// unplanned returns how often the process ended although the plan did not end it.
func (m *member) unplanned() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ends - m.killed
}
