//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"oncebus/processor/kafkatest"
	"oncebus/processor/kafkatest/program"
	"oncebus/state/failpoint"
)

// startMax limits the time until a started process is ready. It is long, because another fault may stop the
// broker for a minute while the process starts.
const startMax = 3 * time.Minute

// slot is an instance id with a state directory, for one process at a time. The id and the directory outlive the
// processes. A slot is not safe for concurrent use.
type slot struct {
	app   *app
	name  string // instance id
	label string // name of the directory and the log: the instance id, except for a second process of an instance
	// binary is the program that the next process runs.
	binary string
	// These fields are for an ingress: its command, the address for requests, and further settings.
	command, address string
	more             []string
	// doomed says that processes that are started from now on may end by themselves.
	doomed bool

	mu      sync.Mutex
	proc    *program.Process
	awaited bool // the harness ends the process or expects that it ends
}

func newSlot(a *app, name string) *slot {
	return &slot{app: a, name: name, label: name, binary: a.h.binary, command: "run"}
}

func (s *slot) stateDir() string { return filepath.Join(s.app.dir, "state-"+s.label) }

// storesDir returns the directory with one directory for each task.
func (s *slot) storesDir() string { return filepath.Join(s.stateDir(), s.app.id) }

func (s *slot) logPath() string {
	return filepath.Join(s.app.h.dir, "logs", s.app.id+"-"+s.label+".log")
}

// environ returns the environment of a process. settings are the settings of a fault, without the prefix; they may
// include variables of the Go runtime.
func (s *slot) environ(settings []string) []string {
	env := append(program.Isolated(s.app.dir), failpoint.WallStepVariable+"="+s.stepFile())
	more := []string{
		"PARTITIONS=" + strconv.Itoa(partitions),
		"REPLICATION_FACTOR=" + strconv.Itoa(s.app.h.set.nodes),
		"WORKERS=" + strconv.Itoa(workers),
		"CREATE_TOPICS=true",
		"COMMIT_INTERVAL=" + commitInterval.String(),
		"SESSION_TIMEOUT=" + sessionTimeout.String(),
		"TRANSACTION_TIMEOUT=" + transactionTimeout.String(),
		// With these settings the stores write and merge runs all the time, so that kills interrupt a write or
		// a merge.
		"STATE_FLUSH_ROWS=" + strconv.Itoa(flushRows),
		"STATE_FLUSH_AGE=" + flushAge.String(),
		// The harness damages state more often than disks do, so the limit on rebuilds is switched off.
		"REBUILDS_PER_HOUR=0",
	}
	for _, setting := range slices.Concat(s.more, settings) {
		if strings.HasPrefix(setting, "GO") {
			env = append(env, setting)
		} else {
			more = append(more, setting)
		}
	}
	return append(env, program.Settings{
		Brokers: s.app.h.cluster.seedsThroughProxy(), AppID: s.app.id, Instance: s.name, Routes: s.app.routesFile(), StateDir: s.stateDir(),
		More: more,
	}.Environ()...)
}

// start runs the program in the slot and returns once its HTTP server listens. settings have the form NAME=value
// without the prefix, and override the harness's own settings.
func (s *slot) start(ctx context.Context, settings ...string) error {
	// The command is not bound to ctx, because the process outlives the fault that starts it.
	cmd := exec.CommandContext(context.WithoutCancel(ctx), s.binary, s.command)
	cmd.Env = s.environ(settings)
	proc, err := program.Start(s.name+" of "+s.app.id, cmd, s.logPath())
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.proc = proc
	s.awaited = s.doomed
	s.mu.Unlock()
	go s.watch(proc)
	_, err = proc.AwaitLog(ctx, program.ListensHTTP)
	return err
}

// watch waits until a process ends. If the harness did not cause the end of the process, watch records a
// violation, because a fault outside of the process may cost time but must not end the process.
func (s *slot) watch(proc *program.Process) {
	<-proc.Exited()
	s.mu.Lock()
	awaited := s.awaited || s.proc != proc
	s.mu.Unlock()
	if !awaited {
		s.app.h.violate("process", "process %s ended by itself: %v: %s", proc.Name, proc.Err(), proc.Log.Failure())
	}
}

// expectEnd makes watch accept that the process ends.
func (s *slot) expectEnd() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.awaited = true
}

// expectNoEnd makes watch report a violation if the process ends.
func (s *slot) expectNoEnd() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.awaited = false
}

// current returns the newest process in the slot; nil before the first start.
func (s *slot) current() *program.Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc
}

// alive reports whether a process runs (or is stopped by SIGSTOP) in the slot.
func (s *slot) alive() bool {
	proc := s.current()
	return proc != nil && proc.Running()
}

// kill ends the process with SIGKILL.
func (s *slot) kill() error {
	s.expectEnd()
	if proc := s.current(); proc != nil {
		return proc.Kill()
	}
	return nil
}

// stop ends the process with SIGTERM. The process must end with exit code 0.
func (s *slot) stop() error {
	if !s.alive() {
		return nil
	}
	s.expectEnd()
	return s.current().Stop()
}

// signal sends a signal to the process.
func (s *slot) signal(sig syscall.Signal) error { return s.current().Signal(sig) }

// freeze stops the process with SIGSTOP for d.
func (s *slot) freeze(ctx context.Context, d time.Duration) error {
	if err := s.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	err := kafkatest.Pause(ctx, d)
	return errors.Join(err, s.signal(syscall.SIGCONT))
}

// awaitReady waits until /readyz says that every assigned task runs.
func (s *slot) awaitReady(ctx context.Context) error {
	proc := s.current()
	if proc == nil {
		return fmt.Errorf("no process was started as %s", s.name)
	}
	_, err := proc.AwaitReady(ctx)
	return err
}
