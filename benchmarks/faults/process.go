//go:build unix

package main

import (
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
	"syscall"
	"time"

	"oncebus/processor/kafkatest"
)

const (
	// startMax bounds a process's start until it is ready. Another fault may have
	// taken the broker away for a minute of it.
	startMax = 3 * time.Minute
	// stopMax bounds an end by SIGTERM: the program's own stop timeout and some.
	stopMax = 30 * time.Second
	// askEvery paces questions to other processes, whose progress nothing announces.
	askEvery = 20 * time.Millisecond
)

// A slot is a place for one process of the app: an instance id and a state
// directory, which outlive the processes in it. One goroutine at a time may act
// on it.
type slot struct {
	app   *app
	name  string // instance id
	label string // of directory and log; the name, but for twins
	// doomed says that processes started from now on may end by themselves.
	doomed bool

	mu      sync.Mutex
	proc    *kafkatest.Process
	pid     int
	log     *processLog
	awaited bool // the end of the process is the harness's doing, or wanted
}

func newSlot(a *app, name string) *slot { return &slot{app: a, name: name, label: name} }

func (s *slot) stateDir() string { return filepath.Join(s.app.dir, "state-"+s.label) }

// storesDir is where the program keeps one directory per task.
func (s *slot) storesDir() string { return filepath.Join(s.stateDir(), s.app.id) }

func (s *slot) logPath() string {
	return filepath.Join(s.app.h.dir, "logs", s.app.id+"-"+s.label+".log")
}

// environ is the whole environment of a process: nothing of the machine's but
// PATH and HOME.
func (s *slot) environ(settings []string) []string {
	env := []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + s.app.dir,
		"ONCEBUS_BROKERS=" + strings.Join(s.app.h.cluster.seedsThroughProxy(), ","),
		"ONCEBUS_ROUTES=" + s.app.routesFile(),
		"ONCEBUS_APP_ID=" + s.app.id,
		"ONCEBUS_INSTANCE_ID=" + s.name,
		"ONCEBUS_STATE_DIR=" + s.stateDir(),
		"ONCEBUS_PARTITIONS=" + strconv.Itoa(partitions),
		"ONCEBUS_REPLICATION_FACTOR=" + strconv.Itoa(s.app.h.set.nodes),
		"ONCEBUS_WORKERS=2",
		"ONCEBUS_CREATE_TOPICS=true",
		"ONCEBUS_ADMIN_ADDR=127.0.0.1:0",
		"ONCEBUS_LOG_FORMAT=json",
		"ONCEBUS_COMMIT_INTERVAL=" + commitInterval.String(),
		"ONCEBUS_SESSION_TIMEOUT=" + sessionTimeout.String(),
		"ONCEBUS_TRANSACTION_TIMEOUT=" + transactionTimeout.String(),
		// Runs are written and merged all the time, so that a kill finds
		// stores at work.
		"ONCEBUS_STATE_FLUSH_ROWS=2000",
		"ONCEBUS_STATE_FLUSH_AGE=2s",
		// State is damaged here more often than any disk would do it.
		"ONCEBUS_REBUILDS_PER_HOUR=0",
	}
	for _, setting := range settings {
		if !strings.HasPrefix(setting, "GO") {
			setting = "ONCEBUS_" + setting
		}
		env = append(env, setting)
	}
	return env
}

// start runs the program in the slot and returns once its HTTP server listens.
// settings are NAME=value without prefix and override the harness's own.
func (s *slot) start(ctx context.Context, settings ...string) error {
	log, err := openProcessLog(s.logPath())
	if err != nil {
		return err
	}
	// Not bound to ctx: the process outlives the fault that starts it.
	cmd := exec.CommandContext(context.WithoutCancel(ctx), s.app.h.binary, "run")
	cmd.Env = s.environ(settings)
	cmd.Stdout, cmd.Stderr = log, log
	proc, err := kafkatest.StartProcess(cmd)
	if err != nil {
		return errors.Join(err, log.file.Close())
	}
	s.mu.Lock()
	s.proc, s.pid, s.log = proc, cmd.Process.Pid, log
	s.awaited = s.doomed
	s.mu.Unlock()
	go s.watch(proc, log)
	select {
	case <-log.listening:
		return nil
	case <-proc.Exited():
		return fmt.Errorf("process %s ended while it started: %w\n%s", s.name, proc.Err(), log.tail())
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// watch waits for the end of a process. One that nobody wanted is a broken
// promise: a fault from outside may cost time, not the process.
func (s *slot) watch(proc *kafkatest.Process, log *processLog) {
	<-proc.Exited()
	s.mu.Lock()
	awaited := s.awaited || s.proc != proc
	s.mu.Unlock()
	if !awaited {
		s.app.h.violate("process", "process %s of %s ended by itself: %v: %s", s.name, s.app.id, proc.Err(), log.failure())
	}
	_ = log.file.Close() // everything was written; a log that cannot be closed loses nothing
}

// expectEnd tells the watcher that the process is about to end.
func (s *slot) expectEnd() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.awaited = true
}

func (s *slot) current() (*kafkatest.Process, *processLog) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proc, s.log
}

// alive reports whether a process runs (or is stopped by SIGSTOP) in the slot.
func (s *slot) alive() bool {
	proc, _ := s.current()
	if proc == nil {
		return false
	}
	select {
	case <-proc.Exited():
		return false
	default:
		return true
	}
}

// kill ends the process with SIGKILL.
func (s *slot) kill() error {
	s.expectEnd()
	proc, _ := s.current()
	if proc == nil {
		return nil
	}
	return proc.Kill()
}

// stop ends the process with SIGTERM, after which it has to end with exit
// code 0.
func (s *slot) stop(ctx context.Context) error {
	if !s.alive() {
		return nil
	}
	s.expectEnd()
	proc, log := s.current()
	if err := proc.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, stopMax)
	defer cancel()
	select {
	case <-proc.Exited():
	case <-ctx.Done():
		return fmt.Errorf("process %s did not end in %v after SIGTERM:\n%s", s.name, stopMax, log.tail())
	}
	if err := proc.Err(); err != nil {
		return fmt.Errorf("process %s, after SIGTERM: %w, want exit code 0:\n%s", s.name, err, log.tail())
	}
	return nil
}

// signal sends a signal to the process.
func (s *slot) signal(sig syscall.Signal) error {
	proc, _ := s.current()
	return proc.Signal(sig)
}

// freeze stops the process with SIGSTOP for d.
func (s *slot) freeze(ctx context.Context, d time.Duration) error {
	if err := s.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	err := pause(ctx, d)
	return errors.Join(err, s.signal(syscall.SIGCONT))
}

// exited waits for the end of the process and returns its exit code, -1 for
// death by a signal.
func (s *slot) exited(ctx context.Context) (int, error) {
	proc, _ := s.current()
	select {
	case <-proc.Exited():
	case <-ctx.Done():
		return 0, fmt.Errorf("process %s still runs: %w", s.name, context.Cause(ctx))
	}
	var exit *exec.ExitError
	if err := proc.Err(); errors.As(err, &exit) {
		return exit.ExitCode(), nil
	} else if err != nil {
		return 0, err
	}
	return 0, nil
}

// awaitReady waits until /readyz says that every assigned task runs.
func (s *slot) awaitReady(ctx context.Context) error {
	return eventually(ctx, "process "+s.name+" is ready", func(ctx context.Context) error {
		if !s.alive() {
			_, log := s.current()
			return fatal(fmt.Errorf("process %s ended: %s", s.name, log.failure()))
		}
		status, body, err := s.get(ctx, "/readyz")
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("%d %s", status, strings.TrimSpace(body))
		}
		return err
	})
}

func (s *slot) get(ctx context.Context, path string) (status int, body string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	_, log := s.current()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+log.address()+path, http.NoBody)
	if err != nil {
		return 0, "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), errors.Join(err, resp.Body.Close())
}

// metric sums the samples of a metric whose labels contain all of with.
func (s *slot) metric(ctx context.Context, name string, with ...string) (float64, error) {
	status, body, err := s.get(ctx, "/metrics")
	if err != nil || status != http.StatusOK {
		return 0, fmt.Errorf("metrics of process %s: %d, %w", s.name, status, err)
	}
	sum, found := 0.0, false
	for line := range strings.Lines(body) {
		rest, ok := strings.CutPrefix(line, name)
		if !ok || rest[0] != '{' && rest[0] != ' ' {
			continue
		}
		rest = strings.TrimSpace(rest)
		at := strings.LastIndexByte(rest, ' ') // a value of a label may have spaces
		labels, value := rest[:max(0, at)], rest[at+1:]
		for _, w := range with {
			ok = ok && strings.Contains(labels, w)
		}
		if !ok {
			continue
		}
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return 0, fmt.Errorf("metrics of process %s: cannot read %q", s.name, line)
		}
		sum, found = sum+n, true
	}
	if !found {
		return 0, fmt.Errorf("process %s has no metric %s %v", s.name, name, with)
	}
	return sum, nil
}

// processLog keeps a process's output in a file, whose lines are JSON objects
// but for a crash, and counts its messages.
type processLog struct {
	file      *os.File
	listening chan struct{} // closed once addr is set

	mu     sync.Mutex
	rest   []byte         // of the last line, as yet without its end
	addr   string         // of the HTTP server
	counts map[string]int // by message, and by message and task
	last   []string       // the last lines
	failed string         // the last error of level ERROR, or the start of a crash
}

const logTailLines = 30

func openProcessLog(path string) (*processLog, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open a process's log: %w", err)
	}
	return &processLog{file: file, listening: make(chan struct{}), counts: map[string]int{}}, nil
}

func (l *processLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rest = append(l.rest, p...)
	for {
		line, rest, whole := bytes.Cut(l.rest, []byte("\n"))
		if !whole {
			break
		}
		l.line(line)
		l.rest = rest
	}
	return l.file.Write(p)
}

func (l *processLog) line(line []byte) {
	l.last = append(l.last, string(line))
	if len(l.last) > 2*logTailLines {
		l.last = append(l.last[:0], l.last[logTailLines:]...)
	}
	var fields struct{ Level, Msg, Addr, Error, Task string }
	if json.Unmarshal(line, &fields) != nil {
		if point, ok := bytes.CutPrefix(line, []byte("failpoint: ")); ok {
			l.counts["failpoint "+string(point)]++
		} else if l.failed == "" {
			l.failed = string(line)
		}
		return
	}
	l.counts[fields.Msg]++
	if fields.Task != "" {
		l.counts[fields.Msg+" "+fields.Task]++
	}
	if fields.Level == "ERROR" {
		l.failed = fields.Msg + ": " + fields.Error
	}
	if fields.Msg == "http listening" && l.addr == "" {
		l.addr = fields.Addr
		close(l.listening)
	}
}

// count is how often the process logged msg.
func (l *processLog) count(msg string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.counts[msg]
}

// countTask is how often the process logged msg about a task.
func (l *processLog) countTask(msg, task string) int { return l.count(msg + " " + task) }

func (l *processLog) address() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.addr
}

// failure is what the process complained of last.
func (l *processLog) failure() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failed
}

func (l *processLog) tail() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.last[max(0, len(l.last)-logTailLines):], "\n")
}
