//go:build unix

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"oncebus/benchmarks/internal/bench"
)

// build builds the program that is measured, as make build does, and returns
// its path.
func build(ctx context.Context, dir string) (string, error) {
	path := filepath.Join(dir, "oncebus")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", path, "oncebus/cmd/oncebus")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build oncebus (this needs go in PATH and the module's directory): %w: %s", err, bytes.TrimSpace(out))
	}
	return path, nil
}

// spec is what a process of an app is told.
type spec struct {
	binary     string
	brokers    []string
	app        string
	instance   string
	routes     string // path
	stateDir   string
	partitions int
	workers    int
	s          settings
}

func (c spec) environ() []string {
	var env []string
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "ONCEBUS_") { // settings of ours only
			env = append(env, variable)
		}
	}
	return append(env,
		"ONCEBUS_BROKERS="+strings.Join(c.brokers, ","), "ONCEBUS_APP_ID="+c.app, "ONCEBUS_INSTANCE_ID="+c.instance,
		"ONCEBUS_ROUTES="+c.routes, "ONCEBUS_STATE_DIR="+c.stateDir, "ONCEBUS_PARTITIONS="+strconv.Itoa(c.partitions),
		"ONCEBUS_WORKERS="+strconv.Itoa(c.workers), "ONCEBUS_COMMIT_INTERVAL="+c.s.commitInterval.String(),
		"ONCEBUS_STATE_FLUSH_AGE="+c.s.flushAge.String(), "ONCEBUS_SESSION_TIMEOUT="+c.s.sessionTimeout.String(),
		"ONCEBUS_HTTP_ADDR=127.0.0.1:0", "ONCEBUS_LOG_FORMAT=json")
}

// A service is a running process of oncebus.
type service struct {
	*bench.Process

	name    string
	pid     int
	started time.Time
	log     *logReader
}

func startService(ctx context.Context, c spec) (*service, error) {
	cmd := exec.CommandContext(ctx, c.binary, "run")
	cmd.Env = c.environ()
	s := &service{name: c.app + " " + c.instance, log: newLogReader(), started: time.Now()}
	cmd.Stderr = s.log
	var err error
	if s.Process, err = bench.Start(cmd); err != nil {
		return nil, err
	}
	s.pid = cmd.Process.Pid
	return s, nil
}

// ended is an error once the process has ended, which it was not asked to.
func (s *service) ended() error {
	select {
	case <-s.Exited():
		return fmt.Errorf("%s ended: %w; end of its log:\n%s", s.name, s.Err(), s.log.tail())
	default:
		return nil
	}
}

const (
	// readyEvery is the resolution of the time until a process is ready.
	readyEvery = 5 * time.Millisecond
	// readyMax is how long a process may take: a rebuild of 100 million keys
	// at a quarter of the rate that is asked for.
	readyMax = 15 * time.Minute
)

// ready waits until /readyz says so and returns how long after the process was
// started that was.
func (s *service) ready(ctx context.Context) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, readyMax)
	defer cancel()
	tick := time.NewTicker(readyEvery)
	defer tick.Stop()
	for last := "its http address is not known yet"; ; {
		select {
		case <-tick.C:
		case <-s.Exited():
			return 0, s.ended()
		case <-ctx.Done():
			return 0, fmt.Errorf("%s did not get ready: %w; it says: %s", s.name, ctx.Err(), last)
		}
		if s.log.address() == "" {
			continue
		}
		_, err := s.get(ctx, "/readyz")
		if err == nil {
			return time.Since(s.started), nil
		}
		last = err.Error()
	}
}

// get asks the process over HTTP; anything but 200 is an error with the body.
func (s *service) get(ctx context.Context, path string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.log.address()+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", path, bytes.TrimSpace(body))
	}
	return body, err
}

// why says what keeps services from getting on, as far as they know.
func why(ctx context.Context, services []*service) string {
	var parts []string
	for _, s := range services {
		body, err := s.get(ctx, "/readyz")
		if err != nil {
			body = []byte(err.Error())
		}
		parts = append(parts, fmt.Sprintf("%s says %q, end of its log:\n%s", s.name, bytes.TrimSpace(body), s.log.tail()))
	}
	return strings.Join(parts, "\n")
}

// The metrics that are used here.
const (
	metricHeap     = "go_memstats_heap_alloc_bytes"
	metricRecent   = "oncebus_state_recent_rows"
	metricRestored = "oncebus_restored_rows_total"
	metricExpired  = "oncebus_state_expired_rows_total"

	metricKeySeconds   = "oncebus_key_seconds"
	metricCheckSeconds = "oncebus_check_seconds"
)

// tasks lists the partitions of the tasks that run in the process.
func (s *service) tasks(ctx context.Context) ([]int, error) {
	body, err := s.get(ctx, "/state")
	if err != nil {
		return nil, err
	}
	var state struct {
		Tasks []struct {
			Task  string `json:"task"`
			State string `json:"state"`
		} `json:"tasks"`
	}
	if err := json.Unmarshal(body, &state); err != nil {
		return nil, fmt.Errorf("/state: %w", err)
	}
	var partitions []int
	for _, t := range state.Tasks {
		p, err := strconv.Atoi(t.Task[strings.LastIndexByte(t.Task, '/')+1:])
		if err != nil {
			return nil, fmt.Errorf("/state: task %q has no partition", t.Task)
		}
		if t.State == "running" {
			partitions = append(partitions, p)
		}
	}
	return partitions, nil
}

// resident reads what /proc says of the process's memory: resident now, and
// the part of it that is not files, which the system cannot just drop.
func (s *service) resident() (now, anonymous int64, err error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.pid))
	if err != nil {
		return 0, 0, fmt.Errorf("read what a process costs (this needs Linux): %w", err)
	}
	for line := range strings.Lines(string(status)) {
		name, value, _ := strings.Cut(line, ":")
		kib, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		switch name {
		case "VmRSS":
			now = kib << 10
		case "RssAnon":
			anonymous = kib << 10
		}
	}
	return now, anonymous, nil
}

// stop ends a process with SIGTERM; it has to end well.
func (s *service) stop() error {
	if err := s.Stop(); err != nil {
		return fmt.Errorf("stop %s: %w; end of its log:\n%s", s.name, err, s.log.tail())
	}
	return nil
}

// end kills whatever still runs. Stopping and killing twice does no harm.
func end(services ...*service) error {
	var errs []error
	for _, s := range services {
		if s != nil {
			errs = append(errs, s.Kill())
		}
	}
	return errors.Join(errs...)
}

// A logReader is where a process writes its log: it finds the HTTP address in
// it and keeps the end.
type logReader struct {
	mu      sync.Mutex
	pending []byte
	lines   []string
	addr    string
}

const logTailLines = 20

func newLogReader() *logReader { return &logReader{} }

// Write takes in some of the log.
func (l *logReader) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pending = append(l.pending, p...)
	for {
		advance, line, err := bufio.ScanLines(l.pending, false)
		if advance == 0 || err != nil {
			return len(p), err
		}
		l.line(string(line))
		l.pending = l.pending[advance:]
	}
}

func (l *logReader) line(line string) {
	l.lines = append(l.lines, line)
	l.lines = l.lines[max(0, len(l.lines)-logTailLines):]
	var entry struct{ Msg, Addr string }
	if json.Unmarshal([]byte(line), &entry) == nil && entry.Msg == "http listening" {
		l.addr = entry.Addr
	}
}

func (l *logReader) address() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.addr
}

func (l *logReader) tail() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.lines, "\n")
}
