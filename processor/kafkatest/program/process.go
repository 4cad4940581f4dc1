//go:build unix

package program

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"oncebus/processor/kafkatest"
)

const (
	// StopMax limits a stop. A process that still runs after StopMax is killed. oncebus itself limits its shutdown to
	// 20 s.
	StopMax = 45 * time.Second
	// ListensHTTP is the message with which oncebus logs the address of its HTTP server (/metrics, /readyz and
	// /state).
	ListensHTTP = "http listening"
	// readyInterval is the time between two readiness probes, and so the resolution of the measured time until a
	// process is ready.
	readyInterval = 5 * time.Millisecond
	// getMax limits one HTTP request, because a process that SIGSTOP stopped never responds.
	getMax = 10 * time.Second
)

// Process is a running child process.
type Process struct {
	*kafkatest.Process

	Name    string // names the process in errors
	Started time.Time
	Log     *Log

	mu   sync.Mutex
	addr string // address of the HTTP server; "" until the process logs it
}

// Start starts cmd, which the caller made by [exec.CommandContext]. When the context of cmd ends, the process
// receives SIGTERM, and SIGKILL after [StopMax]. Start appends standard output and standard error to the file
// logPath. If logPath is "", they go to the writers of cmd, and the Log of the process stays empty.
func Start(name string, cmd *exec.Cmd, logPath string) (*Process, error) {
	p := &Process{Name: name, Log: &Log{path: logPath}}
	if logPath != "" {
		file, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return nil, fmt.Errorf("open the log of process %s: %w", name, err)
		}
		defer func() { _ = file.Close() }() // the child has its own descriptor
		if p.Log, err = openLog(logPath); err != nil {
			return nil, err
		}
		cmd.Stdout, cmd.Stderr = file, file
	}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = StopMax
	p.Started = time.Now()
	var err error
	p.Process, err = kafkatest.StartProcess(cmd)
	return p, err
}

// Ended returns an error if the process has ended too early, and nil while the process runs.
func (p *Process) Ended() error {
	if p.Running() {
		return nil
	}
	how := "exit code 0"
	if err := p.Err(); err != nil {
		how = err.Error()
	}
	return fmt.Errorf("process %s ended: %s: %s; end of its log:\n%s", p.Name, how, p.Log.Failure(), p.Log.Tail())
}

// AwaitLog waits until the process has logged msg, and returns the first entry with msg. It returns an error if the
// process ends first.
func (p *Process) AwaitLog(ctx context.Context, msg string) (Entry, error) {
	var entry Entry
	err := p.await(ctx, kafkatest.AwaitInterval, fmt.Sprintf("logs %q", msg), func(context.Context) error {
		if entry = p.Log.First(msg); entry == nil {
			return errors.New("the log does not contain it")
		}
		return nil
	})
	return entry, err
}

// AwaitReady waits until /readyz says that every assigned task runs. It returns the time since the start of the
// process, or an error if the process ends first.
func (p *Process) AwaitReady(ctx context.Context) (time.Duration, error) {
	err := p.await(ctx, readyInterval, "is ready", func(ctx context.Context) error {
		_, err := p.Page(ctx, "/readyz")
		return err
	})
	return time.Since(p.Started), err
}

func (p *Process) await(ctx context.Context, interval time.Duration, what string, ask func(context.Context) error) error {
	return kafkatest.AwaitEvery(ctx, interval, "process "+p.Name+" "+what, func(ctx context.Context) error {
		ended := p.Ended() // called before the log is read, so that the last lines of an ended process count
		err := ask(ctx)
		if err != nil && ended != nil {
			return kafkatest.Fatal(ended)
		}
		return err
	})
}

// Address returns the address that the process logged with msg, such as [ListensHTTP]; "" if it has not logged msg.
func (p *Process) Address(msg string) string {
	addr, _ := p.Log.First(msg)["addr"].(string)
	return addr
}

// httpAddress returns Address(ListensHTTP). It remembers the address, because otherwise a benchmark would measure the
// time that each reading of the log takes.
func (p *Process) httpAddress() (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.addr == "" {
		p.addr = p.Address(ListensHTTP)
	}
	if p.addr == "" {
		return "", fmt.Errorf("process %s has not logged the address of its HTTP server", p.Name)
	}
	return p.addr, nil
}

// Get requests a path of the process's HTTP server.
func (p *Process) Get(ctx context.Context, path string) (status int, body string, err error) {
	addr, err := p.httpAddress()
	if err != nil {
		return 0, "", err
	}
	ctx, cancel := context.WithTimeout(ctx, getMax)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+path, http.NoBody)
	if err != nil {
		return 0, "", err
	}
	req.Close = true // goleak would report an idle connection
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), errors.Join(err, resp.Body.Close())
}

// Page requests a path like [Process.Get], and returns an error for every status but 200.
func (p *Process) Page(ctx context.Context, path string) (string, error) {
	status, body, err := p.Get(ctx, path)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("%s of process %s: status %d: %s", path, p.Name, status, strings.TrimSpace(body))
	}
	return body, err
}

// Metrics reads /metrics.
func (p *Process) Metrics(ctx context.Context) (Metrics, error) {
	body, err := p.Page(ctx, "/metrics")
	if err != nil {
		return nil, err
	}
	m, err := ParseMetrics(body)
	if err != nil {
		return nil, fmt.Errorf("process %s: %w", p.Name, err)
	}
	return m, nil
}

// Usage returns the resources that the process has used. The process must be running.
func (p *Process) Usage() (Usage, error) { return UsageOf(p.PID()) }

// Stop ends the process with SIGTERM. It returns an error if the exit code is not 0. After [StopMax] it kills the
// process and returns an error.
func (p *Process) Stop() error {
	err := p.Process.Stop(StopMax)
	if err == nil {
		err = p.Err()
	}
	if err != nil {
		return fmt.Errorf("stop process %s, which must end with exit code 0: %w; end of its log:\n%s", p.Name, err, p.Log.Tail())
	}
	return nil
}

// ExitCode waits for the end of the process and returns its exit code, or -1 if a signal ended the process.
func (p *Process) ExitCode(ctx context.Context) (int, error) {
	select {
	case <-p.Exited():
	case <-ctx.Done():
		return 0, fmt.Errorf("process %s still runs: %w", p.Name, context.Cause(ctx))
	}
	var exit *exec.ExitError
	if err := p.Err(); errors.As(err, &exit) {
		return exit.ExitCode(), nil
	} else if err != nil {
		return 0, err
	}
	return 0, nil
}
