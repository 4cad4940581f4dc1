//go:build unix

package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"oncebus/benchmarks/internal/bench"
	"oncebus/processor/kafkatest"
	"oncebus/processor/kafkatest/program"
)

// bed has the parts that all measurements share.
type bed struct {
	settings

	broker   *bench.Broker
	binary   string
	progress *bench.Progress
}

// app is one app of oncebus, or the topics of the plain server.
type app struct {
	*bed

	id     string
	commit time.Duration
}

// The topics of an app; the ingress produces events with a key to the repartition topic.
func (a *app) input() string       { return a.id + "-input" }
func (a *app) output() string      { return a.id + "-output" }
func (a *app) repartition() string { return a.id + "-repartition" }
func (a *app) path(end string) string {
	return filepath.Join(a.broker.Dir, a.id+end)
}

// newApp creates an app whose route has this value of `http.answer`.
func (b *bed) newApp(ctx context.Context, id, answer string, commit time.Duration) (*app, error) {
	a := &app{bed: b, id: id, commit: commit}
	if err := os.WriteFile(a.path("-routes.yaml"), routes(a, answer), 0o600); err != nil {
		return nil, err
	}
	return a, b.broker.CreateTopics(ctx, b.partitions, a.input(), a.output(), a.id+"-dead")
}

func routes(a *app, answer string) []byte {
	return fmt.Appendf(nil, `routes:
  - name: signals
    topics: [%s]
    key:
      - field: traceId
    window: %v
    output: %s
    dead_letter: %s-dead
    http:
      path: %s
      signature: {scheme: hmac, secret: %s, header: %s, prefix: "%s"}
      answer: %s
`, a.input(), bench.Window, a.output(), a.id, requestPath, secretName, signatureHeader, signaturePrefix, answer)
}

// remove deletes the app's topics and files.
func (a *app) remove(ctx context.Context) error {
	return errors.Join(a.broker.DeleteApp(context.WithoutCancel(ctx), a.id), os.RemoveAll(a.path("-state")), os.RemoveAll(a.path(".log")))
}

// listensIngress is the message with which oncebus logs the address for requests.
const listensIngress = "ingress listening"

// start starts the program, "run" or "ingress", and waits until it is ready. Its log goes to a file; as by
// default, it has a line for each request.
func (a *app) start(ctx context.Context, command string, serves bool) (*program.Process, error) {
	cmd := exec.CommandContext(ctx, a.binary, command)
	settings := program.Settings{
		Brokers: a.broker.Seeds(), AppID: a.id, Instance: "bench", Routes: a.path("-routes.yaml"), StateDir: a.path("-state"),
		More: []string{
			"PARTITIONS=" + strconv.Itoa(a.partitions), "REPLICATION_FACTOR=1", "WORKERS=" + strconv.Itoa(a.workers),
			"COMMIT_INTERVAL=" + a.commit.String(),
		},
	}
	if serves {
		settings.More = append(settings.More, "INGRESS_ADDR=127.0.0.1:0", "INGRESS_SECRET_"+secretName+"="+secretValue, "INGRESS_TRUSTED_PROXIES=127.0.0.0/8")
	}
	cmd.Env = append(program.Inherited(), settings.Environ()...)
	if a.profiles != "" {
		cmd.Env = append(cmd.Env, profileEnv+"="+a.profilePath(command))
		if err := os.RemoveAll(a.profilePath(command) + "-allocs.pprof"); err != nil { // of a previous run
			return nil, err
		}
	}
	s, err := program.Start(a.id+" "+command, cmd, a.path(".log"))
	if err != nil {
		return nil, err
	}
	if err := ready(ctx, s); err != nil {
		return nil, err
	}
	return s, nil
}

// ready waits until a process is ready, and kills it if that takes too long.
func ready(ctx context.Context, s *program.Process) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startMax, fmt.Errorf("within %v", startMax))
	defer cancel()
	if _, err := s.AwaitReady(ctx); err != nil {
		return errors.Join(err, s.Kill())
	}
	return nil
}

// startMax limits the time until a process is ready, and the time of its first
// requests.
const startMax = time.Minute

// drained waits until all events are judged, and returns the content of the output.
func (a *app) drained(ctx context.Context, s *program.Process) (tally, error) {
	err := kafkatest.Await(ctx, "every event is judged", func(ctx context.Context) error {
		end, err := a.broker.Ends(ctx, a.repartition())
		if err != nil {
			return kafkatest.Fatal(err)
		}
		done, err := a.broker.Committed(ctx, a.id+"-dedup", a.repartition())
		if err != nil {
			return kafkatest.Fatal(err)
		}
		if done >= end {
			return nil
		}
		if err := s.Ended(); err != nil {
			return kafkatest.Fatal(err)
		}
		return fmt.Errorf("%d of %d are", done, end)
	})
	if err != nil {
		return tally{}, err
	}
	return readTally(ctx, a.broker.Seeds(), a.output())
}

// cost is the resource usage of processes since their start.
type cost struct {
	server, broker program.Usage
	generator      time.Duration
	mallocs        float64 // heap allocations of the server
}

func (b *bed) cost(ctx context.Context, s *program.Process) (c cost, err error) {
	metrics, err := s.Metrics(ctx)
	if err != nil {
		return c, err
	}
	c.mallocs = metrics.Sum("go_memstats_mallocs_total")
	if c.server, err = s.Usage(); err != nil {
		return c, err
	}
	if c.broker, err = b.broker.Usage(); err != nil {
		return c, err
	}
	var self syscall.Rusage
	err = syscall.Getrusage(syscall.RUSAGE_SELF, &self)
	c.generator = time.Duration(self.Utime.Nano() + self.Stime.Nano())
	return c, err
}

// PerRequest is the cost of one request: CPU in microseconds.
type PerRequest struct {
	CPUMicros, BrokerCPUMicros, GeneratorCPUMicros float64
	Allocations                                    float64 // of the server's heap
	RSSMaxMiB                                      float64 // of the server, in total
}

func perRequest(before, after cost, requests int) PerRequest {
	n := float64(requests)
	micros := func(d time.Duration) float64 { return float64(d.Microseconds()) / n }
	return PerRequest{
		CPUMicros: micros(after.server.CPU - before.server.CPU), BrokerCPUMicros: micros(after.broker.CPU - before.broker.CPU),
		GeneratorCPUMicros: micros(after.generator - before.generator),
		Allocations:        (after.mallocs - before.mallocs) / n, RSSMaxMiB: float64(after.server.RSSMax) / (1 << 20),
	}
}

// The program has no profiler. With -profiles the build adds a file that takes a CPU
// profile from SIGUSR1 to SIGUSR2.
const profileEnv = "BENCH_PROFILE"

//go:embed testdata/profile.go.txt
var profiler []byte

// build builds the program.
func (b *bed) build(ctx context.Context) (err error) {
	if b.profiles == "" {
		b.binary, err = program.Build(ctx, b.broker.Dir)
		return err
	}
	if b.profiles, err = filepath.Abs(b.profiles); err != nil {
		return err
	}
	dir, err := exec.CommandContext(ctx, "go", "list", "-f", "{{.Dir}}", "oncebus/cmd/oncebus").Output()
	if err != nil {
		return fmt.Errorf("find cmd/oncebus: %w", err)
	}
	source, overlay := filepath.Join(b.broker.Dir, "profile.go"), filepath.Join(b.broker.Dir, "overlay.json")
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {filepath.Join(strings.TrimSpace(string(dir)), "bench_profile.go"): source}})
	if err != nil {
		return err
	}
	if err := errors.Join(os.MkdirAll(b.profiles, 0o755), os.WriteFile(source, profiler, 0o600), os.WriteFile(overlay, replace, 0o600)); err != nil {
		return err
	}
	b.binary, err = program.Build(ctx, b.broker.Dir, "-overlay", overlay)
	return err
}

// profile starts the profile of a process, if -profiles is set.
func (a *app) profile(s *program.Process) error {
	if a.profiles == "" || s.Name == a.id {
		return nil // the plain server has no profiler
	}
	return s.Signal(syscall.SIGUSR1)
}

// profiled ends the profile and waits until it is written.
func (a *app) profiled(ctx context.Context, s *program.Process) error {
	if a.profiles == "" || s.Name == a.id {
		return nil
	}
	if err := s.Signal(syscall.SIGUSR2); err != nil {
		return err
	}
	_, command, _ := strings.Cut(s.Name, " ")
	return kafkatest.Await(ctx, "the profile of "+s.Name+" is written", func(context.Context) error {
		_, err := os.Stat(a.profilePath(command) + "-allocs.pprof")
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			err = kafkatest.Fatal(err)
		}
		return err
	})
}

// profilePath returns the path of a process's profiles, without extensions.
func (a *app) profilePath(command string) string { return filepath.Join(a.profiles, a.id+"-"+command) }
