//go:build unix

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"oncebus/benchmarks/internal/bench"
)

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
	return append(bench.Environ(),
		"ONCEBUS_BROKERS="+strings.Join(c.brokers, ","), "ONCEBUS_APP_ID="+c.app, "ONCEBUS_INSTANCE_ID="+c.instance,
		"ONCEBUS_ROUTES="+c.routes, "ONCEBUS_STATE_DIR="+c.stateDir, "ONCEBUS_PARTITIONS="+strconv.Itoa(c.partitions),
		"ONCEBUS_WORKERS="+strconv.Itoa(c.workers), "ONCEBUS_COMMIT_INTERVAL="+c.s.commitInterval.String(),
		"ONCEBUS_STATE_FLUSH_AGE="+c.s.flushAge.String(), "ONCEBUS_SESSION_TIMEOUT="+c.s.sessionTimeout.String(),
		"ONCEBUS_ADMIN_ADDR=127.0.0.1:0", "ONCEBUS_LOG_FORMAT=json")
}

// A service is a running process of oncebus.
type service struct{ *bench.Service }

func startService(ctx context.Context, c spec) (*service, error) {
	cmd := exec.CommandContext(ctx, c.binary, "run")
	cmd.Env = c.environ()
	s, err := bench.StartService(c.app+" "+c.instance, cmd)
	if err != nil {
		return nil, err
	}
	return &service{s}, nil
}

// why says what keeps services from getting on, as far as they know.
func why(ctx context.Context, services []*service) string {
	var parts []string
	for _, s := range services {
		body, err := s.Get(ctx, "/readyz")
		if err != nil {
			body = []byte(err.Error())
		}
		parts = append(parts, fmt.Sprintf("%s says %q, end of its log:\n%s", s.Name, bytes.TrimSpace(body), s.LogTail()))
	}
	return strings.Join(parts, "\n")
}

// The metrics that are used here.
const (
	metricHeap     = "go_memstats_heap_alloc_bytes"
	metricRecent   = "oncebus_state_recent_rows"
	metricRestored = "oncebus_restored_rows_total"
	metricEvicted  = "oncebus_state_evicted_rows_total"

	metricKeyDerivationSeconds = "oncebus_key_derivation_seconds"
	metricDecisionSeconds      = "oncebus_decision_seconds"
)

// tasks lists the partitions of the tasks that run in the process.
func (s *service) tasks(ctx context.Context) ([]int, error) {
	body, err := s.Get(ctx, "/state")
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
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.PID()))
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
