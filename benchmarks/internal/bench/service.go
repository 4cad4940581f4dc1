//go:build unix

package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Build builds the program that is measured, as make build does, into dir and
// returns its path. flags are further ones of go build.
func Build(ctx context.Context, dir string, flags ...string) (string, error) {
	path := filepath.Join(dir, "oncebus")
	args := append([]string{"build", "-trimpath", "-o", path}, flags...)
	cmd := exec.CommandContext(ctx, "go", append(args, "oncebus/cmd/oncebus")...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build oncebus (this needs go in PATH and the module's directory): %w: %s", err, bytes.TrimSpace(out))
	}
	return path, nil
}

// Environ is the environment without settings of oncebus.
func Environ() (env []string) {
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "ONCEBUS_") {
			env = append(env, variable)
		}
	}
	return env
}

// A Service is a running process of oncebus, or another that logs as it does.
type Service struct {
	*Process

	Name    string
	Started time.Time

	log  *logReader
	path string // of the log file; in that case log has only what was read of it
	read int64  // bytes of it
}

// StartService starts a process whose log, on standard error, is JSON.
func StartService(name string, cmd *exec.Cmd) (*Service, error) {
	s := &Service{Name: name, log: newLogReader(), Started: time.Now()}
	cmd.Stderr = s.log
	if err := s.start(cmd); err != nil {
		return nil, err
	}
	return s, nil
}

// StartServiceLogging starts a process that writes its log to a file, for one
// that logs so much that to read it along would be work.
func StartServiceLogging(name string, cmd *exec.Cmd, path string) (*Service, error) {
	file, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // the process has its own
	s := &Service{Name: name, log: newLogReader(), path: path, Started: time.Now()}
	cmd.Stderr = file
	if err := s.start(cmd); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *Service) start(cmd *exec.Cmd) (err error) {
	s.Process, err = Start(cmd)
	return err
}

// readOn reads what the log file has gained, if there is one. What cannot be
// read is missing in a message about something else.
func (s *Service) readOn() {
	if s.path == "" {
		return
	}
	file, err := os.Open(s.path)
	if err != nil {
		return
	}
	defer func() { _ = file.Close() }()
	n, _ := io.Copy(s.log, io.NewSectionReader(file, s.read, math.MaxInt64-s.read))
	s.read += n
}

// Ended is an error once the process has ended, which it was not asked to.
func (s *Service) Ended() error {
	select {
	case <-s.Exited():
		return fmt.Errorf("%s ended: %w; end of its log:\n%s", s.Name, s.Err(), s.LogTail())
	default:
		return nil
	}
}

const (
	// readyEvery is the resolution of the time until a process is ready.
	readyEvery = 5 * time.Millisecond
	// ReadyMax is how long a process may take: a rebuild of 100 million keys
	// at a quarter of the rate that is asked for.
	ReadyMax = 15 * time.Minute
)

// Ready waits until /readyz says so and returns how long after the process was
// started that was.
func (s *Service) Ready(ctx context.Context) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, ReadyMax)
	defer cancel()
	tick := time.NewTicker(readyEvery)
	defer tick.Stop()
	for last := "its http address is not known yet"; ; {
		select {
		case <-tick.C:
		case <-s.Exited():
			return 0, s.Ended()
		case <-ctx.Done():
			return 0, fmt.Errorf("%s did not get ready: %w; it says: %s", s.Name, ctx.Err(), last)
		}
		if s.Address(ListensHTTP) == "" {
			continue
		}
		_, err := s.Get(ctx, "/readyz")
		if err == nil {
			return time.Since(s.Started), nil
		}
		last = err.Error()
	}
}

// Get asks the process over HTTP; anything but 200 is an error with the body.
func (s *Service) Get(ctx context.Context, path string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.Address(ListensHTTP)+path, http.NoBody)
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

// Stop ends a process with SIGTERM; it has to end well.
func (s *Service) Stop() error {
	if err := s.Process.Stop(); err != nil {
		return fmt.Errorf("stop %s: %w; end of its log:\n%s", s.Name, err, s.LogTail())
	}
	return nil
}

// ListensHTTP is what oncebus logs with the address of the server that has
// /metrics and /readyz.
const ListensHTTP = "http listening"

// Address is where the server listens of which the process has logged msg with
// its address; empty before.
func (s *Service) Address(msg string) string {
	s.readOn()
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	return s.log.addrs[msg]
}

// LogTail is the end of the process's log.
func (s *Service) LogTail() string {
	s.readOn()
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	return strings.Join(s.log.lines, "\n")
}

// Families reads /metrics.
func (s *Service) Families(ctx context.Context) (map[string]*dto.MetricFamily, error) {
	body, err := s.Get(ctx, "/metrics")
	if err != nil {
		return nil, err
	}
	return ParseMetrics(body)
}

// ParseMetrics reads Prometheus' text format.
func ParseMetrics(body []byte) (map[string]*dto.MetricFamily, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("/metrics: %w", err)
	}
	return families, nil
}

// Metrics returns counters and gauges; series of one name are summed.
func (s *Service) Metrics(ctx context.Context) (map[string]float64, error) {
	families, err := s.Families(ctx)
	return Sums(families), err
}

// Sums returns the sum of the series of each counter and gauge.
func Sums(families map[string]*dto.MetricFamily) map[string]float64 {
	sums := map[string]float64{}
	for name, family := range families {
		for _, m := range family.GetMetric() {
			sums[name] += m.GetCounter().GetValue() + m.GetGauge().GetValue() + m.GetUntyped().GetValue()
		}
	}
	return sums
}

// A logReader is where a process writes its log: it finds the addresses of
// servers in it, and keeps the end.
type logReader struct {
	mu      sync.Mutex
	pending []byte
	lines   []string
	addrs   map[string]string // by message
}

const logTailLines = 20

func newLogReader() *logReader { return &logReader{addrs: map[string]string{}} }

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
	if json.Unmarshal([]byte(line), &entry) == nil && entry.Addr != "" {
		l.addrs[entry.Msg] = entry.Addr
	}
}
