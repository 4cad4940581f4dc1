//go:build unix

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"oncebus/processor/kafkatest/program"
)

// spec has the settings of one process of an app.
type spec struct {
	binary     string
	brokers    []string
	app        string
	instance   string
	routes     string // path
	stateDir   string
	log        string // path
	partitions int
	workers    int
	group      *group // the cgroup of the process; nil if memory has no limit
	standby    bool
	s          settings
}

func (c spec) environ() []string {
	return append(program.Inherited(), program.Settings{
		Brokers: c.brokers, AppID: c.app, Instance: c.instance, Routes: c.routes, StateDir: c.stateDir,
		More: []string{
			"PARTITIONS=" + strconv.Itoa(c.partitions), "WORKERS=" + strconv.Itoa(c.workers), "COMMIT_INTERVAL=" + c.s.commitInterval.String(),
			"STATE_FLUSH_AGE=" + c.s.flushAge.String(), "SESSION_TIMEOUT=" + c.s.sessionTimeout.String(), "STANDBY=" + strconv.FormatBool(c.standby),
		},
	}.Environ()...)
}

// start starts a process of oncebus.
func (c spec) start(ctx context.Context) (*program.Process, error) {
	cmd := c.group.command(ctx, c.binary, "run")
	cmd.Env = c.environ()
	return program.Start(c.app+" "+c.instance, cmd, c.log)
}

// readyMax limits the time until a process is ready. It suffices for a rebuild of 100 million keys at a quarter of
// the required rate.
const readyMax = 15 * time.Minute

// why returns the state and the log of the services as text for an error.
func why(ctx context.Context, services []*program.Process) string {
	var parts []string
	for _, s := range services {
		status := "ready"
		if _, err := s.Page(ctx, "/readyz"); err != nil {
			status = err.Error()
		}
		parts = append(parts, fmt.Sprintf("%s: %s, end of its log:\n%s", s.Name, status, s.Log.Tail()))
	}
	return strings.Join(parts, "\n")
}

// The metrics that this package uses.
const (
	metricHeap        = "go_memstats_heap_alloc_bytes"
	metricRecent      = "oncebus_state_recent_rows"
	metricQuarantined = "oncebus_quarantined_stores_total"
	metricRestored    = "oncebus_restored_rows_total"
	metricEvicted     = "oncebus_state_evicted_rows_total"
	metricJudged      = "oncebus_events_total"

	metricKeyDerivationSeconds = "oncebus_key_derivation_seconds"
	metricDecisionSeconds      = "oncebus_decision_seconds"
)

// tasks returns the partitions whose tasks run in the process.
func tasks(ctx context.Context, s *program.Process) ([]int, error) {
	body, err := s.Page(ctx, "/state")
	if err != nil {
		return nil, err
	}
	var state struct {
		Tasks []struct {
			Task  string `json:"task"`
			State string `json:"state"`
		} `json:"tasks"`
	}
	if err := json.Unmarshal([]byte(body), &state); err != nil {
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

// end kills all services that are still running.
func end(services ...*program.Process) error {
	var errs []error
	for _, s := range services {
		if s != nil {
			errs = append(errs, s.Kill())
		}
	}
	return errors.Join(errs...)
}
