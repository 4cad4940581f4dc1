//go:build unix

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"oncebus/dedup/rules"
	"oncebus/processor"
	"oncebus/processor/app"
	"oncebus/processor/kafkatest"
	"oncebus/processor/security"
	"oncebus/state"
)

// What the measured process is told.
const (
	envBrokers = "ONCEBUS_RESTART_BROKERS"
	envState   = "ONCEBUS_RESTART_STATE"
)

// readingEvery is how often the measured process tells about itself.
const readingEvery = 20 * time.Millisecond

// reading is what it tells, one JSON line each.
type reading struct {
	Ready       bool
	Committed   int // input records, over all lives
	Recent      int // rows in memory only
	Restored    int // changelog records read
	Quarantined int
}

// runChild is the measured process: it works until it is killed.
func runChild() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	routes, err := rules.ParseRoutes("restart", fmt.Appendf(nil, `routes:
  - name: keys
    topics: [%s]
    prepartitioned: true
    key:
      - field: id
    window: 24h
    output: %s-output
    dead_letter: %s-dead
`, inputTopic, appID, appID))
	if err != nil {
		return err
	}
	registry := prometheus.NewRegistry()
	p, err := processor.New(processor.Config{
		Config: app.Config{
			Config: security.Config{
				Brokers:    strings.Split(os.Getenv(envBrokers), ","),
				AppID:      appID,
				InstanceID: "one",
			},
			Partitions:         1,
			ReplicationFactor:  1,
			Start:              app.StartEarliest,
			TransactionTimeout: 15 * time.Second,
		},
		StateDir:        os.Getenv(envState),
		Workers:         1,
		CommitInterval:  100 * time.Millisecond,
		SessionTimeout:  10 * time.Second,
		StopTimeout:     20 * time.Second,
		State:           state.DefaultConfig(),
		RebuildsPerHour: 1,
	}, routes, registry, slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})))
	if err != nil {
		return err
	}
	var telling sync.WaitGroup
	defer telling.Wait()
	defer stop()
	telling.Go(func() { tell(ctx, p, registry) })
	return p.Run(ctx)
}

// tell writes readings until ctx is done or nobody listens.
func tell(ctx context.Context, p *processor.Processor, registry *prometheus.Registry) {
	out := json.NewEncoder(os.Stdout)
	tick := time.NewTicker(readingEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		r := reading{Ready: p.Ready() == nil}
		for _, t := range p.State().Tasks {
			r.Committed += int(max(0, t.NextOffset))
		}
		families, err := registry.Gather()
		for _, f := range families {
			for name, to := range map[string]*int{"oncebus_state_recent_rows": &r.Recent, "oncebus_restored_rows_total": &r.Restored, "oncebus_quarantined_stores_total": &r.Quarantined} {
				if f.GetName() == name {
					m := f.GetMetric()[0]
					*to = int(m.GetCounter().GetValue() + m.GetGauge().GetValue())
				}
			}
		}
		if err = errors.Join(err, out.Encode(r)); err != nil {
			return
		}
	}
}

// child is the measured process, seen from outside.
type child struct {
	process *kafkatest.Process
	mu      sync.Mutex
	newest  reading
	changed chan struct{}
}

func startChild(ctx context.Context, seeds []string, stateDir string) (*child, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, exe)
	cmd.Env = append(os.Environ(), envBrokers+"="+strings.Join(seeds, ","), envState+"="+stateDir)
	cmd.Stderr = os.Stderr
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd.Stdout = write
	c := &child{changed: make(chan struct{}, 1)}
	c.process, err = kafkatest.StartProcess(cmd)
	err = errors.Join(err, write.Close())
	if err != nil {
		return nil, errors.Join(err, read.Close())
	}
	go func() {
		defer func() { _ = read.Close() }()
		for lines := bufio.NewScanner(read); lines.Scan(); {
			var r reading
			if json.Unmarshal(lines.Bytes(), &r) != nil {
				continue // the last line of a process that was killed
			}
			c.mu.Lock()
			c.newest = r
			c.mu.Unlock()
			select {
			case c.changed <- struct{}{}:
			default:
			}
		}
	}()
	return c, nil
}

func (c *child) last() reading {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.newest
}

// await waits for a reading.
func (c *child) await(ctx context.Context, holds func(reading) bool) error {
	for !holds(c.last()) {
		select {
		case <-c.changed:
		case <-c.process.Exited():
			return fmt.Errorf("the process ended: %w", c.process.Err())
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
