//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"oncebus/benchmarks/internal/bench"
	"oncebus/benchmarks/internal/peers"
	"oncebus/benchmarks/internal/server"
	"oncebus/processor/kafkatest"
	"oncebus/processor/kafkatest/program"
)

const (
	// startMax limits the time from the start of a system until its first events come out.
	startMax = 3 * time.Minute
	// finishMax limits the time from the end of the load until all events have come out.
	finishMax = 3 * time.Minute
	// quiet is how long no event must have arrived before the output is read.
	quiet = 5 * time.Second
)

// system is a contender.
type system struct {
	name      string
	processes int
	peer      *peers.Peer // nil for oncebus
}

// systems returns the systems whose name contains one of the comma separated parts of only. A peer whose server is
// not installed is left out.
func systems(ctx context.Context, only string) ([]system, error) {
	all := []system{{name: "oncebus", processes: 2}}
	for _, peer := range peers.All() {
		all = append(all, system{peer.Name, peer.Processes, &peer})
	}
	return peers.Choose(ctx, all, only, func(s system) (string, *peers.Peer) { return s.name, s.peer })
}

// outcome is one fault and its effect.
type outcome struct {
	strike

	Took      time.Duration // ns that the fault itself took: the length of the pause, or the time until the broker served again
	Recovery  time.Duration // ns until events flow again in every partition
	Recovered bool
	Lost      int
	Doubled   int
}

// result is the result of one system.
type result struct {
	System    string
	Processes int
	Events    int // distinct events
	Lost      int
	Doubled   int
	Outcomes  []outcome
	Unplanned int  // how often a process ended although the plan did not end it
	Complete  bool // the whole input was committed before the run ended
}

// trial is the run of one system.
type trial struct {
	settings
	system

	broker  *bench.Broker
	task    bench.Task
	keys    *server.Server // the server of a peer's keys; nil if there is none
	members []*member
	traffic *traffic
}

// run measures one system.
func (t *trial) run(ctx context.Context, strikes []strike) (r result, err error) {
	in := bench.Input{Topic: t.task.Input, Partitions: t.partitions, Events: t.events, Duplicates: t.duplicates, Start: time.Now().Add(-time.Minute)}
	if err := t.broker.CreateTopics(ctx, t.partitions, append(t.task.Topics(), t.task.Input)...); err != nil {
		return r, err
	}
	defer func() {
		err = errors.Join(err, t.broker.DeleteApp(context.WithoutCancel(ctx), t.task.App), os.RemoveAll(t.task.StateDir))
	}()
	if t.peer != nil {
		if t.keys, err = t.peer.StartServer(ctx); err != nil {
			return r, err
		}
		if t.keys != nil {
			defer func() { err = errors.Join(err, t.keys.Close()) }()
		}
	}
	if t.traffic, err = newTraffic(t.broker.Seeds(), in, t.rate); err != nil {
		return r, err
	}
	defer t.traffic.client.Close()
	r = result{System: t.name, Processes: t.processes, Events: in.Distinct()}
	if err := t.together(ctx, strikes, &r); err != nil {
		return r, err
	}
	input, err := occurrences(ctx, t.broker.Seeds(), t.task.Input, in)
	if err == nil {
		err = checkInput(input, in)
	}
	if err != nil {
		return r, err
	}
	output, err := occurrences(ctx, t.broker.Seeds(), t.task.Output(), in)
	if err != nil {
		return r, err
	}
	r.Lost, r.Doubled = count(input, output, t.traffic.sent, r.Outcomes)
	return r, nil
}

// together starts the processes, runs the load with the faults, waits until all events have come out, and stops the
// processes.
func (t *trial) together(ctx context.Context, strikes []strike, r *result) (err error) {
	running, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	errs := make([]error, t.processes+1)
	defer func() {
		stop()
		wg.Wait()
		err = errors.Join(err, errors.Join(errs...))
	}()
	for i := range t.processes {
		m := &member{start: func() (*program.Process, error) { return t.start(ctx, i) }}
		if err := m.launch(); err != nil {
			return err
		}
		t.members = append(t.members, m)
		wg.Go(func() { errs[i] = m.supervise(running) })
	}
	wg.Go(func() { errs[t.processes] = t.traffic.watch(running, t.broker.Seeds(), t.task.Output()) })
	if err := t.traffic.warmUp(ctx); err != nil {
		return err
	}
	var load error
	loaded := make(chan struct{})
	go func() {
		defer close(loaded)
		load = t.traffic.run(ctx)
	}()
	r.Outcomes, err = t.strikeAll(ctx, strikes)
	<-loaded
	if err := errors.Join(err, load); err != nil {
		return err
	}
	r.Complete = t.finish(ctx) == nil
	for i := range r.Outcomes {
		o := &r.Outcomes[i]
		o.Recovery, o.Recovered = t.traffic.recovery(o.At)
	}
	for _, m := range t.members {
		r.Unplanned += m.unplanned()
	}
	return ctx.Err()
}

// start starts a process of the system.
func (t *trial) start(ctx context.Context, i int) (*program.Process, error) {
	task := t.task
	task.Instance = fmt.Sprintf("member-%d", i)
	task.StateDir = filepath.Join(t.task.StateDir, task.Instance)
	if err := os.MkdirAll(task.StateDir, 0o755); err != nil {
		return nil, err
	}
	var cmd *exec.Cmd
	var err error
	if t.peer == nil {
		task.Role = bench.Role{Oncebus: true}
		cmd, err = task.Command(context.WithoutCancel(ctx))
	} else {
		cmd, err = t.peer.Command(context.WithoutCancel(ctx), task, t.keys)
	}
	if err != nil {
		return nil, err
	}
	return program.Start(t.name, cmd, filepath.Join(t.task.StateDir, task.Instance+".log"))
}

// strikeAll causes each fault at its moment.
func (t *trial) strikeAll(ctx context.Context, strikes []strike) (outcomes []outcome, err error) {
	start := time.Now()
	for _, s := range strikes {
		if err := kafkatest.Pause(ctx, s.At-time.Since(start)); err != nil {
			return nil, err
		}
		before := time.Now()
		if err := t.strike(ctx, s); err != nil {
			return nil, fmt.Errorf("%s at %v: %w", s.Kind, s.At, err)
		}
		outcomes = append(outcomes, outcome{strike: s, Took: time.Since(before)})
	}
	return outcomes, nil
}

func (t *trial) strike(ctx context.Context, s strike) error {
	m := t.members[s.Process%len(t.members)]
	switch s.Kind {
	case kill:
		return m.kill()
	case pause:
		return m.pause(ctx, pauseFor)
	case restart:
		return errors.Join(t.broker.Kill(), t.broker.Restart(ctx))
	}
	return fmt.Errorf("no fault %q", s.Kind)
}

// finish waits until the system has committed the whole input and no event has arrived for a while.
func (t *trial) finish(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, finishMax)
	defer cancel()
	return kafkatest.AwaitEvery(ctx, 200*time.Millisecond, t.name+" is done", func(ctx context.Context) error {
		done, err := t.broker.Committed(ctx, t.task.Group(), t.task.Input)
		if err == nil && (done < int64(t.events) || t.traffic.quietFor() < quiet) {
			err = fmt.Errorf("%d of %d events are committed", done, t.events)
		}
		return err
	})
}
