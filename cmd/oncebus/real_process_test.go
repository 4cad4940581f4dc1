//go:build unix

package main_test

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"oncebus/processor/kafkatest/program"
)

// service is one process of the program under test.
type service struct {
	*program.Process

	t *testing.T
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
	s := w.launch(instance, w.process(w.binary(w.t), command, instance, settings...))
	s.await(program.ListensHTTP)
	return s
}

// process returns a process of a binary, which is not started yet.
func (w *world) process(binary, command, instance string, settings ...string) *exec.Cmd {
	cmd := exec.CommandContext(context.WithoutCancel(w.t.Context()), binary, command)
	cmd.Env = w.environ(instance, settings...)
	return cmd
}

// launch starts a process that ends with the test, which shows its log if it fails.
func (w *world) launch(name string, cmd *exec.Cmd) *service {
	w.t.Helper()
	cmd.Env = append([]string{"GORACE=halt_on_error=1"}, cmd.Env...)
	proc, err := program.Start(name, cmd, filepath.Join(w.dir, name+".log"))
	if err != nil {
		w.t.Fatal(err)
	}
	s := &service{Process: proc, t: w.t}
	w.t.Cleanup(func() {
		if err := s.Kill(); err != nil {
			w.t.Errorf("kill process %s: %v", s.Name, err)
		}
		if text := s.text(); strings.Contains(text, "DATA RACE") {
			w.t.Errorf("process %s has a data race:\n%s", s.Name, text)
		} else if w.t.Failed() {
			w.t.Logf("log of process %s:\n%s\nits warnings:\n%s", s.Name, lastLines(text, 30), lastLines(complaints(text), 20))
		}
	})
	return s
}

// command starts a command of oncebus as a process, whose output is in its log.
func (w *world) command(name string, args ...string) *program.Process {
	w.t.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(w.t.Context()), w.binary(w.t), args...)
	cmd.Env = append(w.environ("command"), "GORACE=halt_on_error=1")
	p, err := program.Start(name, cmd, filepath.Join(w.dir, name+".log"))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		if err := p.Kill(); err != nil {
			w.t.Errorf("kill %s: %v", name, err)
		}
	})
	return p
}

// environ returns the environment of a process, with only PATH and HOME of the
// machine.
func (w *world) environ(instance string, settings ...string) []string {
	session := "2s"
	if w.external {
		session = "6s" // Kafka's default of group.min.session.timeout.ms
	}
	return append(program.Isolated(w.dir), program.Settings{
		Brokers: w.seeds, AppID: w.app, Instance: instance, Routes: w.routes, StateDir: w.stateDir(instance),
		More: append([]string{
			"PARTITIONS=6", "WORKERS=2", "CREATE_TOPICS=true",
			// The group removes a dead process, and the broker aborts its transaction, within seconds.
			"SESSION_TIMEOUT=" + session, "TRANSACTION_TIMEOUT=5s",
			// A stop in a rebalance waits for the embedded broker, up to the rebalance timeout of 30 s.
			"STOP_TIMEOUT=40s",
		}, slices.Concat(w.settings, settings)...),
	}.Environ()...)
}

func (w *world) stateDir(instance string) string { return filepath.Join(w.dir, "state-"+instance) }

// within returns a context that limits one wait.
func (s *service) within() (context.Context, context.CancelFunc) {
	return context.WithTimeout(s.t.Context(), realDeadline)
}

// await waits until the process logs msg and returns the first such line. The test
// fails if the process ends.
func (s *service) await(msg string) program.Entry {
	s.t.Helper()
	ctx, cancel := s.within()
	defer cancel()
	entry, err := s.AwaitLog(ctx, msg)
	if err != nil {
		s.t.Fatal(err)
	}
	return entry
}

// awaitReady waits until /readyz returns 200.
func (s *service) awaitReady() {
	s.t.Helper()
	ctx, cancel := s.within()
	defer cancel()
	if _, err := s.AwaitReady(ctx); err != nil {
		s.t.Fatal(err)
	}
}

// metric reads the samples of one metric. Its keys are the label values in their order, joined by slashes.
func (s *service) metric(ctx context.Context, name string) (map[string]int, error) {
	m, err := s.Metrics(ctx)
	return m.Counts(name), err
}

// text returns the output of the process.
func (s *service) text() string {
	s.t.Helper()
	text, err := s.Log.Text()
	if err != nil {
		s.t.Error(err)
	}
	return text
}

// lines returns the lines of the process's log.
func (s *service) lines() []program.Entry {
	s.t.Helper()
	entries, err := s.Log.Entries()
	if err != nil {
		s.t.Error(err)
	}
	return entries
}

// events reads oncebus_events_total: the number of judged events, by "route/verdict".
func (s *service) events() map[string]int {
	s.t.Helper()
	counts, err := s.metric(s.t.Context(), "oncebus_events_total")
	if err != nil {
		s.t.Fatal(err)
	}
	return counts
}

// checkEvents compares the number of events that the processes judged with want, by
// "route/verdict". It waits for missing ones, because a process counts an event after
// the commit.
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

// awaitSharing waits until all tasks run and every process has some: the group
// assigns them in two rebalances.
func awaitSharing(t *testing.T, tasks int, services ...*service) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d tasks are assigned and running", tasks), func(ctx context.Context) error {
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
	if err := s.Stop(); err != nil {
		s.t.Error(err)
	}
}

// exited waits until the process has ended, and returns its exit code.
func (s *service) exited() int {
	s.t.Helper()
	ctx, cancel := s.within()
	defer cancel()
	code, err := s.ExitCode(ctx)
	if err != nil {
		s.t.Fatal(err)
	}
	return code
}

// kill sends SIGKILL and waits until the process has ended.
func (s *service) kill() {
	s.t.Helper()
	if err := s.Kill(); err != nil {
		s.t.Fatal(err)
	}
}

// restores has the numbers of the log lines about restored tasks.
type restores struct {
	tasks     int
	rows      int // changelog records read
	fromStart int // tasks read from the changelog's start
}

func (s *service) restores() restores {
	s.t.Helper()
	var sum restores
	for _, l := range s.lines() {
		if l["msg"] != "restored" {
			continue
		}
		rows, rowsOK := l["rows"].(float64)
		from, fromOK := l["from"].(float64)
		if _, ok := l["task"].(string); !ok || !rowsOK || !fromOK {
			s.t.Fatalf("process %s: a line \"restored\" without task, from and rows: %v", s.Name, l)
		}
		sum.tasks++
		sum.rows += int(rows)
		if from == 0 && rows > 0 {
			sum.fromStart++
		}
	}
	return sum
}

// complaints returns the lines of level WARN and above; they may be far from the end
// of the log.
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
