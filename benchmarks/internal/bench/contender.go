//go:build unix

package bench

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime/pprof"
	"syscall"
	"time"
)

// envTask is the environment variable with the Task of a contender's process.
const envTask = "ONCEBUS_BENCH_TASK"

// Task has the settings of a contender. All contenders, including those in Java, read Input, write to Output, and
// commit their offsets of Input in the group [Task.Group].
type Task struct {
	Role       Role
	App        string // prefix of the contender's groups, transactional ids and topics
	Brokers    []string
	Input      string
	Partitions int           // number of partitions of every topic
	Workers    int           // workers of each stage; for Kafka Streams, threads
	Commit     time.Duration // commit interval
	StateDir   string
	Instance   string        // name of the process among the processes of App; empty if there is only one
	Profile    string        // file for a CPU profile; empty: no profile
	Route      string        // further lines for the route of oncebus, already indented
	Window     time.Duration // how long a contender stores an event; 0 means the constant [Window]
	Payload    bool          // peers take the dedup key from the payload, as oncebus always does, instead of from the record key
}

// Role is a contender that is written in Go. Routed means that it has two stages, each with its own
// transactions, and a topic between the two.
type Role struct {
	Oncebus   bool // the contender is oncebus; otherwise the passthrough
	Routed    bool
	Changelog bool // the passthrough also writes a small record for each event
}

// Window is how long contenders store an event: longer than any run.
const Window = 24 * time.Hour

// SessionTimeout is how long the broker waits for a silent member of a contender's group. It is the default of
// oncebus.
const SessionTimeout = 10 * time.Second

// Stored returns how long the contender stores an event.
func (t Task) Stored() time.Duration { return cmp.Or(t.Window, Window) }

// KeySource returns the name of the place from which peers take the dedup key, as the Java programs spell it.
func (t Task) KeySource() string {
	if t.Payload {
		return "payload"
	}
	return "record"
}

// Member returns the name of the process in its group.
func (t Task) Member() string { return cmp.Or(t.Instance, "bench") }

// Output returns the topic with the contender's output.
func (t Task) Output() string { return t.App + "-output" }

// Side returns the topic of the passthrough's changelog, or of oncebus's dead letters.
func (t Task) Side() string { return t.App + "-side" }

// between returns the topic between the two stages of the passthrough.
func (t Task) between() string { return t.App + "-between" }

// The consumer groups of the stages have the same names as in oncebus.
func (t Task) routeGroup() string { return t.App + "-route" }
func (t Task) dedupGroup() string { return t.App + "-dedup" }

// Group returns the consumer group that reads Input.
func (t Task) Group() string {
	if t.Role.Routed {
		return t.routeGroup()
	}
	return t.dedupGroup()
}

// Topics returns the topics that must exist before the contender starts.
func (t Task) Topics() []string {
	topics := []string{t.Output(), t.Side()}
	if t.Role.Routed && !t.Role.Oncebus {
		topics = append(topics, t.between())
	}
	return topics
}

// Command returns a command that starts this program again as the contender of the task. SIGTERM ends that process.
func (t Task) Command(ctx context.Context) (*exec.Cmd, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	task, err := json.Marshal(t)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, exe)
	cmd.Env = append(os.Environ(), envTask+"="+string(task))
	cmd.Stderr = os.Stderr
	return cmd, nil
}

// ChildMain returns at once in the process of a benchmark. In a process that [Task.Command] started, it runs the
// contender and exits.
func ChildMain() {
	text, is := os.LookupEnv(envTask)
	if !is {
		return
	}
	var t Task
	err := json.Unmarshal([]byte(text), &t)
	if err == nil {
		err = t.run()
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", t.App, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// run works until SIGTERM.
func (t Task) run() (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if t.Profile != "" {
		f, err := os.Create(t.Profile)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
		defer func() { err = errors.Join(err, writeAllocations(t.Profile+".allocs")) }()
	}
	if t.Role.Oncebus {
		return t.oncebus(ctx)
	}
	return t.passthrough(ctx)
}

// writeAllocations writes the profile of all allocations so far.
func writeAllocations(file string) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	return errors.Join(pprof.Lookup("allocs").WriteTo(f, 0), f.Close())
}
