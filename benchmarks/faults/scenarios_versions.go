//go:build unix

package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"time"

	"oncebus/processor/kafkatest"
	"oncebus/processor/kafkatest/program"
)

const (
	// upgradeFrom is the release of Kafka with which the scenario upgrade starts: the last release of Kafka 3, whose
	// transactions are from before KIP-890.
	upgradeFrom = "3.9.2"
	// mixedTime is how long two versions of the program run at the same time and share the tasks.
	mixedTime = 3 * time.Second
	// refusedTime is how long the app continues after a process of another version has refused to start.
	refusedTime = 20 * time.Second
)

// errLeftOut is wrapped by the error of a scenario that cannot run on this machine.
var errLeftOut = errors.New("left out")

// errStarted says that a process runs which should have refused to start.
var errStarted = errors.New("it runs")

// errRefused is wrapped if a process refuses to start because it must not run together with another version.
// The other processes of the app must then continue as before.
var errRefused = errors.New("it refuses to start")

// playUpgrade upgrades the controller, then one broker after the other to the newest release, and then the features,
// all under load. No process of the app restarts.
func playUpgrade(ctx context.Context, e *epoch, _ int) ([]time.Duration, error) {
	c := e.h.cluster
	var times []time.Duration
	procs := map[*slot]any{}
	for _, s := range e.base {
		procs[s] = s.current()
	}
	for _, n := range append([]*kafkatest.Node{c.kafka.Controller()}, c.kafka.Brokers()...) {
		if err := errors.Join(n.Stop(), n.SetVersion(ctx, kafkatest.KafkaVersion), n.Restart(ctx), c.revive(ctx)); err != nil {
			return times, err
		}
		if err := e.step(ctx, &times, fmt.Sprintf("node %d runs %s", n.ID(), kafkatest.KafkaVersion)); err != nil {
			return times, err
		}
	}
	levels, err := c.kafka.FinalizeFeatures(ctx)
	if err != nil {
		return times, err
	}
	if err := e.step(ctx, &times, fmt.Sprintf("features %v", levels)); err != nil {
		return times, err
	}
	// Each producer changes to the new version of transactions when it begins its next transaction.
	if err := errors.Join(kafkatest.Pause(ctx, transactionTimeout), e.step(ctx, &times, "a transaction timeout later")); err != nil {
		return times, err
	}
	for _, s := range e.base {
		if procs[s] != s.current() || !s.alive() {
			return times, fmt.Errorf("process %s was replaced", s.name)
		}
	}
	return times, nil
}

// step waits until the app has processed events that are made from now on, and records how long this took.
func (e *epoch) step(ctx context.Context, times *[]time.Duration, what string) error {
	took, err := e.obs.recovered(ctx, time.Now(), e.h.patience(quietMax), nil)
	*times = append(*times, took)
	e.h.say("%s; recovery %.1fs", what, took.Seconds())
	e.h.note("step", map[string]any{"what": what, "recovery": took.Seconds()})
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// preparePrevious builds the earlier program. The app's processes start with it.
func preparePrevious(ctx context.Context, h *harness) error {
	built, err := program.BuildCommit(ctx, h.set.previous, filepath.Join(h.dir, "previous"), "-tags", "failpoints")
	if errors.Is(err, program.ErrNoCommit) {
		return fmt.Errorf("%w: %w; fetch it (git fetch --unshallow), or name another by -previous", errLeftOut, err)
	}
	if err == nil {
		h.say("the program of %s is built; the app starts with it", h.set.previous)
		h.current, h.binary = h.binary, built
	}
	return err
}

// playPrevious (row u1) updates one process after the other from the earlier program to this program, then back, and
// then forth again. In between, processes of both versions run in one app, and tasks move between them, either with
// their state from the changelog or with the same local state. Then playPrevious raises the level of the app, after
// which the earlier program must refuse to start.
func playPrevious(ctx context.Context, e *epoch, _ int) ([]time.Duration, error) {
	earlier := e.h.binary
	var times []time.Duration
	for _, way := range []struct{ name, binary string }{{"forth", e.h.current}, {"back", earlier}, {"forth again", e.h.current}} {
		for i, s := range e.base {
			goOn, err := e.changeVersion(ctx, s, way.name, way.binary, &times)
			if err != nil || !goOn {
				return times, err
			}
			if i == len(e.base)-1 {
				continue
			}
			// A crash moves the tasks of this process to processes of both versions.
			if err := errors.Join(kafkatest.Pause(ctx, mixedTime), s.kill(), s.start(ctx), s.awaitReady(ctx)); err != nil {
				return times, err
			}
			if err := e.step(ctx, &times, fmt.Sprintf("%s: process %s killed and started", way.name, s.name)); err != nil {
				return times, err
			}
		}
	}
	err := e.finalize(ctx, earlier, &times)
	return times, err
}

// finalize raises the level of the app while its processes run, and kills one of them. Then it starts the earlier
// program once, which must refuse to run.
func (e *epoch) finalize(ctx context.Context, earlier string, times *[]time.Duration) error {
	s := e.base[0]
	cmd := exec.CommandContext(ctx, e.h.current, "finalize")
	cmd.Env = s.environ(nil)
	out, err := cmd.CombinedOutput()
	e.h.say("finalize: %s", bytes.TrimSpace(out))
	if err != nil {
		return fmt.Errorf("finalize: %w", err)
	}
	if err := errors.Join(e.step(ctx, times, "finalize"), s.kill()); err != nil {
		return err
	}
	s.binary = earlier
	err = e.startVersion(ctx, s)
	s.binary = e.h.current
	if !errors.Is(err, errRefused) {
		return fmt.Errorf("the earlier program must refuse an app of a higher level: %w", cmp.Or(err, errStarted))
	}
	e.h.say("process %s, %v", s.name, err)
	return errors.Join(s.start(ctx), s.awaitReady(ctx), e.step(ctx, times, "after the earlier program refused"))
}

// changeVersion restarts a process with another program. If that program refuses to start, changeVersion returns
// false, and the process runs as before.
func (e *epoch) changeVersion(ctx context.Context, s *slot, way, binary string, times *[]time.Duration) (bool, error) {
	if err := s.stop(); err != nil {
		return false, err
	}
	was := s.binary
	s.binary = binary
	err := e.startVersion(ctx, s)
	switch {
	case err == nil:
		return true, e.step(ctx, times, fmt.Sprintf("%s: process %s", way, s.name))
	case !errors.Is(err, errRefused) || e.h.set.previous == program.PreviousCommit:
		return false, fmt.Errorf("%s, process %s: %w", way, s.name, err)
	}
	s.binary = was
	what := fmt.Sprintf("%s, process %s: %v; it runs as before", way, s.name, err)
	// The check at the end of the epoch needs records of each kind, so the app runs for some time.
	err = errors.Join(s.start(ctx), s.awaitReady(ctx), kafkatest.Pause(ctx, refusedTime), e.step(ctx, times, what))
	return false, err
}

// startVersion starts a process of another version. The process becomes ready or refuses to run.
func (e *epoch) startVersion(ctx context.Context, s *slot) error {
	s.doomed = true
	ctx, cancel := context.WithTimeout(ctx, e.h.patience(quietMax))
	defer cancel()
	err := errors.Join(s.start(ctx), s.awaitReady(ctx))
	s.doomed = false
	if err == nil {
		s.expectNoEnd()
		return nil
	}
	if !s.alive() {
		return fmt.Errorf("%w: %s", errRefused, s.current().Log.Failure())
	}
	return fmt.Errorf("it does not become ready: %w", err)
}
