//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"oncebus/processor/kafkatest"
	"oncebus/processor/kafkatest/program"
)

const (
	appID          = "app"
	processes      = 2
	executorCount  = 2
	partitions     = 4
	lease          = 3 * time.Second
	sessionTimeout = 6 * time.Second
	// aloneSession is the session timeout of the single broker; downMin is the shortest time for which it is
	// down. Both are chosen so that the broker does not lose its partitions while it is alive (KAFKA-20734;
	// package benchmarks/faults has the same rule).
	aloneSession = 6 * time.Second
	downMin      = aloneSession + time.Second
	httpTimeout  = 10 * time.Second
)

// routesText is the routes file. Its executor group is the group of deployments/executor.
const routesText = `routes:
  - name: ops
    topics: [ops.raw]
    mode: claim
    key: [{field: account}]
    fingerprint: [amount]
    collision: dead_letter
    window: 24h
    output: ops.run
    outcomes: ops.outcomes
    replies: ops.replies
    answers: ops.answers
    lease: %v
    %s
    while_in_progress: wait
    max_waiting: 64
    request: {field: request}
    dead_letter: ops.dead
    http: {path: /ops, signature: {scheme: none}, timeout: %v}
`

// system is Kafka, oncebus and the executors of a run.
type system struct {
	dir       string
	kafka     *kafkatest.Cluster
	oncebus   []*unit
	ingress   *unit
	executors []*unit
	url       string // URL of the route for HTTP requests
}

func startSystem(ctx context.Context, s settings) (y *system, err error) {
	dir, err := os.MkdirTemp("", "oncebus-executions-")
	if err != nil {
		return nil, err
	}
	y = &system{dir: dir}
	defer func() {
		if err != nil {
			err = errors.Join(err, y.close())
		}
	}()
	binary, err := program.Build(ctx, dir)
	if err != nil {
		return y, err
	}
	executor := filepath.Join(dir, "executor")
	if out, err := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-o", executor, "oncebus/deployments/executor").CombinedOutput(); err != nil {
		return y, fmt.Errorf("build the executor: %w: %s", err, out)
	}
	y.kafka, err = kafkatest.StartCluster(ctx, filepath.Join(dir, "kafka"), 1, kafkatest.WithController(),
		kafkatest.WithProperty("controlled.shutdown.enable", "false"),
		kafkatest.WithProperty("broker.session.timeout.ms", strconv.FormatInt(aloneSession.Milliseconds(), 10)),
		kafkatest.WithProperty("broker.heartbeat.interval.ms", "500"))
	if err != nil {
		return y, err
	}
	resp, err := y.kafka.Admin().CreateTopics(ctx, partitions, 1, nil, "ops.raw", "ops.outcomes")
	if err == nil {
		err = resp.Error()
	}
	if err != nil {
		return y, err
	}
	group := "executor_group: executor"
	if !s.fenced {
		group = ""
	}
	if err := os.WriteFile(filepath.Join(dir, "routes.yaml"), fmt.Appendf(nil, routesText, lease, group, httpTimeout), 0o600); err != nil {
		return y, err
	}
	if err := y.prepare(ctx, binary, executor, s); err != nil {
		return y, err
	}
	err = y.heal(ctx)
	return y, err
}

// prepare makes the units.
func (y *system) prepare(ctx context.Context, binary, executor string, s settings) error {
	address, err := freeAddress(ctx)
	if err != nil {
		return err
	}
	y.url = "http://" + address + "/ops"
	for n := range processes {
		y.oncebus = append(y.oncebus, y.program(fmt.Sprint("dedup-", n), binary, "run"))
	}
	y.ingress = y.program("ingress", binary, "ingress", "INGRESS_ADDR="+address)
	for n := range executorCount {
		name := fmt.Sprint("executor-", n)
		args := []string{"-brokers", strings.Join(y.kafka.Seeds(), ","), "-input", "ops.run", "-outcomes", "ops.outcomes", "-instance", name, "-journal", y.journal(n)}
		if s.fenced {
			args = append(args, "-answers", "ops.answers", "-repeatable") // allowed, because the work has no effect outside of the journal
		}
		y.executors = append(y.executors, &unit{name: name, mayEnd: true, log: y.logPath(name), command: func(ctx context.Context) *exec.Cmd {
			cmd := exec.CommandContext(ctx, executor, args...)
			cmd.Env = program.Isolated(y.dir)
			return cmd
		}})
	}
	return nil
}

// program returns the unit of an oncebus process.
func (y *system) program(name, binary, command string, more ...string) *unit {
	return &unit{name: name, log: y.logPath(name), command: func(ctx context.Context) *exec.Cmd {
		cmd := exec.CommandContext(ctx, binary, command)
		cmd.Env = append(program.Isolated(y.dir), program.Settings{
			Brokers: y.kafka.Seeds(), AppID: appID, Instance: name, Routes: filepath.Join(y.dir, "routes.yaml"), StateDir: filepath.Join(y.dir, "state-"+name),
			More: append([]string{
				"CREATE_TOPICS=true", "PARTITIONS=" + strconv.Itoa(partitions), "REPLICATION_FACTOR=1",
				"SESSION_TIMEOUT=" + sessionTimeout.String(), "TRANSACTION_TIMEOUT=10s", "REBUILDS_PER_HOUR=0",
			}, more...),
		}.Environ()...)
		return cmd
	}}
}

// freeAddress draws a port for the ingress, which keeps the port over its restarts.
func freeAddress(ctx context.Context) (string, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return listener.Addr().String(), listener.Close()
}

func (y *system) logPath(name string) string { return filepath.Join(y.dir, name+".log") }
func (y *system) journal(n int) string {
	return filepath.Join(y.dir, fmt.Sprintf("executor-%d.journal", n))
}

func (y *system) journals() (paths []string) {
	for n := range y.executors {
		paths = append(paths, y.journal(n))
	}
	return paths
}

// all returns all units, in the order in which they start.
func (y *system) all() []*unit {
	if y.ingress == nil {
		return nil
	}
	return slices.Concat(y.oncebus, []*unit{y.ingress}, y.executors)
}

// heal ends all faults: afterwards every program runs, and all tasks are ready.
func (y *system) heal(ctx context.Context) error {
	for _, n := range y.kafka.Brokers() {
		if !n.Running() {
			if err := n.Restart(ctx); err != nil {
				return err
			}
		}
	}
	if err := y.kafka.WaitReady(ctx); err != nil {
		return err
	}
	for _, u := range y.all() {
		if err := u.running(ctx); err != nil {
			return err
		}
	}
	for _, u := range append(slices.Clone(y.oncebus), y.ingress) {
		if err := u.awaitReady(ctx); err != nil {
			return err
		}
	}
	return nil
}

// failure returns an error with the defects that show in the processes themselves.
func (y *system) failure() error {
	var errs []error
	for _, u := range y.all() {
		errs = append(errs, u.failure())
	}
	return errors.Join(errs...)
}

func (y *system) stopExecutors() error {
	var errs []error
	for _, u := range y.executors {
		errs = append(errs, u.stop())
	}
	return errors.Join(errs...)
}

func (y *system) close() error {
	var errs []error
	for _, u := range y.all() {
		errs = append(errs, u.kill())
	}
	if y.kafka != nil {
		errs = append(errs, y.kafka.Close())
	}
	return errors.Join(append(errs, os.RemoveAll(y.dir))...)
}
