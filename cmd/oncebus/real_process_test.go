//go:build unix

package main_test

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
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"oncebus/processor/kafkatest"
)

// binary builds the program under test once; removeBinary deletes it.
var binary = sync.OnceValues(buildBinary)

var binaryDir string

func buildBinary() (string, error) {
	dir, err := os.MkdirTemp("", "oncebus-real-")
	if err != nil {
		return "", err
	}
	binaryDir = dir
	path := filepath.Join(dir, "oncebus")
	// No version stamp: git refuses to read a checkout of another owner.
	args := []string{"build", "-buildvcs=false", "-o", path}
	if raceAvailable() {
		args = append(args, "-race")
	}
	if out, err := exec.Command("go", append(args, ".")...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return path, nil
}

// raceAvailable reports whether the race detector can be built in, which needs cgo and a C compiler.
func raceAvailable() bool {
	out, err := exec.Command("go", "env", "CGO_ENABLED", "CC").Output()
	enabled, compiler, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	if err != nil || enabled != "1" || compiler == "" {
		return false
	}
	_, err = exec.LookPath(strings.Fields(compiler)[0])
	return err == nil
}

// realTests are the tests of the package, which share a broker and the built program.
type realTests struct{ kafkatest.Tests }

func (r realTests) Run() int {
	code := r.Tests.Run()
	if binaryDir != "" {
		if err := os.RemoveAll(binaryDir); err != nil {
			fmt.Fprintln(os.Stderr, "remove the built program:", err)
			return max(code, 1)
		}
	}
	return code
}

// service is one process of the program under test.
type service struct {
	t    *testing.T
	name string
	proc *kafkatest.Process
	log  *jsonLog
	addr string // of its HTTP server
}

// start runs `oncebus run` as instance, with its state directory in the world's, and returns once its HTTP server listens.
// settings are NAME=value without prefix and override the test's own.
func (w *world) start(instance string, settings ...string) *service {
	w.t.Helper()
	return w.startAs("run", instance, settings...)
}

// startAs is start with another command.
func (w *world) startAs(command, instance string, settings ...string) *service {
	w.t.Helper()
	path, err := binary()
	if err != nil {
		w.t.Fatal(err)
	}
	cmd := exec.Command(path, command)
	cmd.Env = append(w.environ(instance, settings...), "GORACE=halt_on_error=1")
	s := &service{t: w.t, name: instance, log: newJSONLog()}
	cmd.Stdout, cmd.Stderr = s.log, s.log
	if s.proc, err = kafkatest.StartProcess(cmd); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		if err := s.proc.Kill(); err != nil {
			w.t.Errorf("kill process %s: %v", s.name, err)
		}
		if text := s.log.text(); strings.Contains(text, "DATA RACE") {
			w.t.Errorf("process %s has a data race:\n%s", s.name, text)
		} else if w.t.Failed() {
			w.t.Logf("log of process %s:\n%s\nits complaints:\n%s", s.name, lastLines(text, 30), lastLines(complaints(text), 20))
		}
	})
	s.addr = s.await("http listening")["addr"].(string)
	return s
}

// environ is the whole environment of a process, with only PATH and HOME of the machine.
func (w *world) environ(instance string, settings ...string) []string {
	session := "2s"
	if w.external {
		session = "6s" // group.min.session.timeout.ms as Kafka ships it
	}
	env := []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + w.dir,
		"ONCEBUS_BROKERS=" + strings.Join(w.seeds, ","),
		"ONCEBUS_ROUTES=" + w.routes,
		"ONCEBUS_APP_ID=" + w.app,
		"ONCEBUS_INSTANCE_ID=" + instance,
		"ONCEBUS_STATE_DIR=" + w.stateDir(instance),
		"ONCEBUS_PARTITIONS=6",
		"ONCEBUS_WORKERS=2",
		"ONCEBUS_CREATE_TOPICS=true",
		"ONCEBUS_ADMIN_ADDR=127.0.0.1:0",
		"ONCEBUS_LOG_FORMAT=json",
		// The broker detects a dead process and ends its transaction within seconds.
		"ONCEBUS_SESSION_TIMEOUT=" + session,
		"ONCEBUS_TRANSACTION_TIMEOUT=5s",
	}
	for _, s := range settings {
		env = append(env, "ONCEBUS_"+s)
	}
	return env
}

func (w *world) stateDir(instance string) string { return filepath.Join(w.dir, "state-"+instance) }

// await waits until the process logs msg and returns that line. It fails if the process ends before.
func (s *service) await(msg string) map[string]any {
	s.t.Helper()
	var line map[string]any
	eventually(s.t, fmt.Sprintf("process %s logs %q", s.name, msg), func(context.Context) error {
		for _, l := range s.log.lines() {
			if l["msg"] == msg {
				line = l
				return nil
			}
		}
		return s.alive()
	})
	return line
}

// alive returns errNotYet while the process runs, else why it ended.
func (s *service) alive() error {
	select {
	case <-s.proc.Exited():
		return fatalError{fmt.Errorf("process %s ended: %w", s.name, s.proc.Err())}
	default:
		return errNotYet
	}
}

// awaitReady waits until /readyz returns 200.
func (s *service) awaitReady() {
	s.t.Helper()
	eventually(s.t, fmt.Sprintf("process %s is ready", s.name), func(ctx context.Context) error {
		if err := s.alive(); !errors.Is(err, errNotYet) {
			return err
		}
		status, body, err := s.get(ctx, "/readyz")
		if err != nil {
			return err
		}
		if status != http.StatusOK {
			return fmt.Errorf("readyz: %d %s", status, body)
		}
		return nil
	})
}

func (s *service) get(ctx context.Context, path string) (status int, body string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.addr+path, http.NoBody)
	if err != nil {
		return 0, "", err
	}
	req.Close = true // no idle connection stays behind for the leak check
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), err
}

// metric reads the samples of one metric. Its keys are the label values in their order, joined by slashes.
func (s *service) metric(ctx context.Context, name string) (map[string]int, error) {
	status, body, err := s.get(ctx, "/metrics")
	if err != nil || status != http.StatusOK {
		return nil, fmt.Errorf("metrics of process %s: %d, %w", s.name, status, err)
	}
	samples := map[string]int{}
	for line := range strings.Lines(body) {
		rest, ok := strings.CutPrefix(line, name+"{")
		if !ok {
			continue
		}
		labels, value, _ := strings.Cut(rest, "} ")
		var values []string
		for label := range strings.SplitSeq(labels, ",") {
			_, quoted, _ := strings.Cut(label, "=")
			values = append(values, strings.Trim(quoted, `"`))
		}
		n, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
		if err != nil {
			return nil, fatalError{fmt.Errorf("metrics of process %s: cannot read %q", s.name, line)}
		}
		samples[strings.Join(values, "/")] = int(n)
	}
	return samples, nil
}

// events reads oncebus_events_total: how many events the process judged, by "route/verdict".
func (s *service) events() map[string]int {
	s.t.Helper()
	counts, err := s.metric(s.t.Context(), "oncebus_events_total")
	if err != nil {
		s.t.Fatal(err)
	}
	return counts
}

// checkEvents compares how many events the processes judged with want, by
// "route/verdict". It waits for missing ones, because a process counts an event only
// after the commit.
func checkEvents(t *testing.T, want map[string]int, services ...*service) {
	t.Helper()
	got := map[string]int{}
	eventually(t, "all events are counted", func(ctx context.Context) error {
		clear(got)
		for _, s := range services {
			counts, err := s.metric(ctx, "oncebus_events_total")
			if err != nil {
				return err
			}
			for what, n := range counts {
				got[what] += n
			}
		}
		for what, n := range want {
			if got[what] < n {
				return fmt.Errorf("%s is %d, want %d", what, got[what], n)
			}
		}
		return nil
	})
	for what, n := range want {
		if got[what] != n {
			t.Errorf("oncebus_events_total of %s is %d, want %d", what, got[what], n)
		}
	}
}

// awaitSharing waits until all tasks run and every process has some: the group assigns them in two rebalances.
func awaitSharing(t *testing.T, tasks int, services ...*service) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d tasks are shared out", tasks), func(ctx context.Context) error {
		running := make([]int, len(services))
		total := 0
		for i, s := range services {
			states, err := s.metric(ctx, "oncebus_tasks")
			if err != nil {
				return err
			}
			running[i] = states["running"]
			total += running[i]
		}
		if total != tasks || slices.Contains(running, 0) {
			return fmt.Errorf("running tasks by process: %v", running)
		}
		return nil
	})
}

// stop sends SIGTERM and checks that the process ends with exit code 0.
func (s *service) stop() {
	s.t.Helper()
	if err := s.proc.Signal(syscall.SIGTERM); err != nil {
		s.t.Fatal(err)
	}
	s.exited()
	if err := s.proc.Err(); err != nil {
		s.t.Errorf("process %s, after SIGTERM: %v, want exit code 0", s.name, err)
	}
}

// exited waits until the process has ended.
func (s *service) exited() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), realDeadline)
	defer cancel()
	select {
	case <-s.proc.Exited():
	case <-ctx.Done():
		s.t.Fatalf("process %s did not end", s.name)
	}
}

// kill sends SIGKILL and waits until the process has ended.
func (s *service) kill() {
	s.t.Helper()
	if err := s.proc.Kill(); err != nil {
		s.t.Fatal(err)
	}
}

// restores returns what the process logged about restored tasks.
type restores struct {
	tasks     int
	rows      int // changelog records read
	fromStart int // tasks read from the changelog's start
}

func (s *service) restores() restores {
	s.t.Helper()
	var sum restores
	for _, l := range s.log.lines() {
		if l["msg"] != "restored" {
			continue
		}
		rows, rowsOK := l["rows"].(float64)
		from, fromOK := l["from"].(float64)
		if _, ok := l["task"].(string); !ok || !rowsOK || !fromOK {
			s.t.Fatalf("process %s: a line \"restored\" without task, from and rows: %v", s.name, l)
		}
		sum.tasks++
		sum.rows += int(rows)
		if from == 0 && rows > 0 {
			sum.fromStart++
		}
	}
	return sum
}

// jsonLog collects the output of a process: lines of JSON, and text after a crash.
type jsonLog struct {
	mu     sync.Mutex
	raw    bytes.Buffer
	parsed []map[string]any
	rest   []byte // of the last line, as yet without its end
}

func newJSONLog() *jsonLog { return &jsonLog{} }

func (l *jsonLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.raw.Write(p)
	l.rest = append(l.rest, p...)
	for {
		line, rest, whole := bytes.Cut(l.rest, []byte("\n"))
		if !whole {
			return len(p), nil
		}
		l.rest = rest
		var fields map[string]any
		if json.Unmarshal(line, &fields) == nil {
			l.parsed = append(l.parsed, fields)
		}
	}
}

func (l *jsonLog) lines() []map[string]any {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.parsed[:len(l.parsed):len(l.parsed)]
}

func (l *jsonLog) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.raw.String()
}

// complaints returns the lines of level WARN and above.
func complaints(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if strings.Contains(line, `"level":"WARN"`) || strings.Contains(line, `"level":"ERROR"`) {
			b.WriteString(line)
		}
	}
	return b.String()
}

func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
