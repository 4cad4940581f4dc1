//go:build unix

package bench

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"oncebus/processor/kafkatest"
)

// stopMax is how long a contender may take to stop before it is killed; those
// measured here give themselves 20 s for it.
const stopMax = 30 * time.Second

// Process is a contender's process. It ends with the benchmark at the latest.
type Process struct {
	*kafkatest.Process

	pid int
}

// Start starts a contender. When the command's context is done, it is told to
// stop, and killed if it does not.
func Start(cmd *exec.Cmd) (*Process, error) {
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = stopMax
	p, err := kafkatest.StartProcess(cmd)
	if err != nil {
		return nil, err
	}
	return &Process{Process: p, pid: cmd.Process.Pid}, nil
}

// PID is its number in the system.
func (p *Process) PID() int { return p.pid }

// Usage is what the process has cost so far; it must be running.
func (p *Process) Usage() (Usage, error) { return usageOf(p.pid) }

// Stop ends the process with SIGTERM and returns how it ended.
func (p *Process) Stop() error {
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-p.Exited():
		return p.Err()
	case <-time.After(stopMax):
		return errors.Join(fmt.Errorf("process %d did not stop within %v and was killed", p.pid, stopMax), p.Kill())
	}
}

// Usage is what a process has cost since it started.
type Usage struct {
	CPU    time.Duration // user and system time, in steps of 10 ms
	RSSMax int64         // highest resident memory, bytes
}

// userHz is the unit of times in /proc, on every architecture Linux runs on
// (proc(5), USER_HZ).
const userHz = 100

// usageOf reads /proc. The rusage of a child would not do: its highest memory
// begins with that of the process that forked it.
func usageOf(pid int) (u Usage, err error) {
	dir := fmt.Sprintf("/proc/%d", pid)
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return u, fmt.Errorf("read what a process costs (this needs Linux): %w", err)
	}
	// Behind the command's name, which may hold anything: utime and stime are fields 14 and 15 of all, proc(5).
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 13 {
		return u, fmt.Errorf("read what a process costs: %s/stat has %d fields", dir, len(fields)+2)
	}
	for _, ticks := range fields[11:13] {
		n, err := strconv.ParseInt(ticks, 10, 64)
		if err != nil {
			return u, fmt.Errorf("read what a process costs: %w", err)
		}
		u.CPU += time.Duration(n) * time.Second / userHz
	}
	status, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		return u, fmt.Errorf("read what a process costs: %w", err)
	}
	kib, err := strconv.ParseInt(strings.TrimSuffix(field(status, "VmHWM"), " kB"), 10, 64)
	if err != nil {
		return u, fmt.Errorf("read what a process costs: %w", err)
	}
	u.RSSMax = kib << 10
	return u, nil
}

// field returns a value of one of the files of /proc that hold "name: value"
// lines; empty if it is not there.
func field(file []byte, name string) string {
	for line := range strings.Lines(string(file)) {
		if key, value, _ := strings.Cut(line, ":"); strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// findProcess returns the process with arg in its command line.
func findProcess(arg string) (pid int, err error) {
	names, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return 0, err
	}
	for _, name := range names {
		line, err := os.ReadFile(name)
		if err == nil && bytes.Contains(line, []byte("\x00"+arg+"\x00")) { // an error: it ended meanwhile
			return strconv.Atoi(filepath.Base(filepath.Dir(name)))
		}
	}
	return 0, errors.New("find the broker's process in /proc (this needs Linux): it is not there")
}
