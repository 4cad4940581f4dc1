//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"oncebus/processor/kafkatest"
	"oncebus/state/failpoint"
)

const (
	// restartMax limits the time from a kill with an immediate restart until the app processes events.
	restartMax = 5 * time.Second
	// takeOverMax limits the time until other processes have taken over the tasks of a dead process.
	takeOverMax = sessionTimeout + transactionTimeout + 5*time.Second
	// pointMax limits how long an armed process may take until it reaches its fault point.
	pointMax = 20 * time.Second
)

// processFaults are rows p1 to p8 and g1: faults of processes.
var processFaults = slices.Concat(pointFaults(), []*fault{
	{row: "p1", name: "kill", weight: 6, slots: 1, apply: killRestart},
	{row: "p2", name: "kill-stay-down", weight: 2, slots: 1, apply: killStayDown},
	{row: "p3", name: "freeze", weight: 4, slots: 1, apply: freeze},
	{row: "p3", name: "freeze-bursts", weight: 2, slots: 1, apply: freezeBursts},
	{row: "p4", name: "zombie-session", weight: 2, slots: 1, apply: zombie(sessionTimeout, transactionTimeout)},
	{row: "p5", name: "zombie-transaction", weight: 2, slots: 1, apply: zombie(transactionTimeout+time.Second, transactionTimeout+4*time.Second)},
	{row: "p6", name: "rolling-restart", weight: 2, all: true, apply: rollingRestart},
	{row: "p6", name: "scale-1-4-1", all: true, spare: true, apply: scale},
	{row: "p7", name: "same-instance-twice", slots: 1, apply: twins},
	{row: "p8", name: "cpu-starved", slots: 1, apply: starve},
	{row: "p8", name: "memory-limit", slots: 1, apply: memoryLimit},
	{row: "g1", name: "join-leave-storm", spare: true, apply: storm},
})

// killPrefix begins the names of the faults that kill a process at a fault point.
const killPrefix = "kill-"

// isPoint reports whether a fault with this name kills at a fault point.
func isPoint(name string) bool {
	point, ok := strings.CutPrefix(name, killPrefix)
	return ok && slices.Contains(failpoint.Names, point)
}

// pointFaults are row p1: one fault for every fault point at which a process can kill itself.
func pointFaults() []*fault {
	var faults []*fault
	for _, point := range failpoint.Names {
		faults = append(faults, &fault{row: "p1", name: killPrefix + point, slots: 1, apply: killAt(point)})
	}
	return faults
}

// killRestart kills a process at a random moment and restarts it at once.
func killRestart(ctx context.Context, k *strike) error {
	s := k.slots[0]
	if err := s.kill(); err != nil {
		return err
	}
	killed := time.Now()
	if err := s.start(ctx); err != nil {
		return err
	}
	return k.recovers(ctx, killed, restartMax)
}

// killAt returns a fault that starts a process which kills itself when it reaches a fault point for the n-th time,
// and then restarts it.
func killAt(point string) func(context.Context, *strike) error {
	return func(ctx context.Context, k *strike) error {
		s := k.slots[0]
		if err := s.stop(); err != nil {
			return err
		}
		if err := k.liveUntil(ctx, point); err != nil {
			return errors.Join(err, s.kill(), s.start(ctx))
		}
		died := time.Now()
		if err := s.start(ctx); err != nil {
			return err
		}
		return k.recovers(ctx, died, restartMax)
	}
}

// liveUntil starts the stopped process armed for a fault point, and waits until the process has killed itself there.
func (k *strike) liveUntil(ctx context.Context, point string) error {
	s, passes := k.slots[0], 1+k.rng.IntN(passesMax)
	switch point {
	case failpoint.AfterOutput:
		passes = 1 + k.rng.IntN(25*passesMax)
	case failpoint.RestoreStart, failpoint.RestoreChunk, failpoint.FlushWritten, failpoint.FlushCommitted:
		passes = 1 + k.rng.IntN(2)
		if err := loseStores(s); err != nil {
			return err
		}
	case failpoint.BeforeQuarantine, failpoint.AfterQuarantine:
		passes = 1
		if err := damageStores(k.rng, s); err != nil {
			return err
		}
	}
	k.note("pass %d", passes)
	s.doomed = true
	err := s.start(ctx, fmt.Sprintf("FAILPOINT=%s:%d", point, passes))
	s.doomed = false
	return dieAt(ctx, s, point, err)
}

// dieAt waits until the process has killed itself at its fault point.
func dieAt(ctx context.Context, s *slot, point string, startErr error) error {
	ctx, cancel := context.WithTimeout(ctx, pointMax)
	defer cancel()
	proc := s.current()
	code, err := proc.ExitCode(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %s was not reached in %v", errNotStruck, point, pointMax)
	case code != -1 || proc.Log.Count("failpoint "+point) == 0:
		return fmt.Errorf("process %s, armed for %s, ended with exit code %d: %s: %w", s.name, point, code, proc.Log.Failure(), startErr)
	}
	return nil
}

// killStayDown kills a process and restarts it only after other processes have taken over its tasks.
func killStayDown(ctx context.Context, k *strike) error {
	s := k.slots[0]
	if err := s.kill(); err != nil {
		return err
	}
	err := k.recovers(ctx, time.Now(), takeOverMax)
	return errors.Join(err, s.start(ctx), s.awaitReady(ctx))
}

// freeze stops a process for a moment, which may or may not cause a rebalance.
func freeze(ctx context.Context, k *strike) error {
	d := k.between(200*time.Millisecond, 3*time.Second)
	k.note("%v", d.Round(time.Millisecond))
	if err := k.slots[0].freeze(ctx, d); err != nil {
		return err
	}
	return k.recovers(ctx, time.Now(), takeOverMax)
}

func freezeBursts(ctx context.Context, k *strike) error {
	for range 3 + k.rng.IntN(5) {
		if err := k.slots[0].freeze(ctx, k.between(100*time.Millisecond, 800*time.Millisecond)); err != nil {
			return err
		}
		if err := kafkatest.Pause(ctx, k.between(50*time.Millisecond, 400*time.Millisecond)); err != nil {
			return err
		}
	}
	return k.recovers(ctx, time.Now(), takeOverMax)
}

// zombie returns a fault that stops a process for longer than a timeout and resumes it while other processes
// have its tasks. The process must rejoin the group without help.
func zombie(low, high time.Duration) func(context.Context, *strike) error {
	return func(ctx context.Context, k *strike) error {
		s := k.slots[0]
		d := k.between(low, high)
		k.note("%v", d.Round(time.Millisecond))
		if err := s.freeze(ctx, d); err != nil {
			return err
		}
		woken := time.Now()
		if err := k.recovers(ctx, woken, takeOverMax); err != nil {
			return err
		}
		if !s.alive() {
			return fmt.Errorf("the zombie %s did not survive", s.name)
		}
		if k.crowded.Load() {
			return nil
		}
		ctx, cancel := context.WithTimeout(ctx, quietMax)
		defer cancel()
		return s.awaitReady(ctx)
	}
}

// rollingRestart stops and restarts one process after the other.
func rollingRestart(ctx context.Context, k *strike) error {
	for _, s := range k.slots {
		if err := s.stop(); err != nil {
			return err
		}
		if err := errors.Join(s.start(ctx), s.awaitReady(ctx)); err != nil {
			return err
		}
	}
	return k.recovers(ctx, time.Now(), restartMax)
}

// scale changes the number of processes to one, then to four, then to one. It starts or stops one process every few
// seconds.
func scale(ctx context.Context, k *strike) error {
	step := func(do func(context.Context, *slot) error, slots ...*slot) error {
		for _, s := range slots {
			if err := errors.Join(do(ctx, s), kafkatest.Pause(ctx, k.between(500*time.Millisecond, 2*time.Second))); err != nil {
				return err
			}
		}
		return nil
	}
	stop := func(_ context.Context, s *slot) error { return s.stop() }
	start := func(ctx context.Context, s *slot) error { return s.start(ctx) }
	err := errors.Join(
		step(stop, k.slots[1:]...),
		step(start, append(k.spare[:1:1], k.slots[1:]...)...),
		step(stop, append(k.spare[:1:1], k.slots[1:]...)...),
		step(start, k.slots[1:]...))
	if err != nil {
		return err
	}
	return k.recovers(ctx, time.Now(), takeOverMax)
}

// twins starts a second process with the instance id of a running process. The two processes must not fence
// each other more often than their backoff allows.
func twins(ctx context.Context, k *strike) error {
	s := k.slots[0]
	twin := newSlot(k.app, s.name)
	twin.label = s.name + "-twin"
	if err := twin.start(ctx); err != nil {
		return err
	}
	// Either of the two processes may have ended. The twin must be ended here, because the epoch does not know
	// the twin and would not stop it, and the final reading needs topics to which no process writes.
	if err := errors.Join(k.together(ctx, s, twin), twin.kill()); err != nil {
		return err
	}
	return k.recovers(ctx, time.Now(), takeOverMax)
}

// together waits for some time while two processes with one instance id run.
func (k *strike) together(ctx context.Context, s, twin *slot) error {
	log, twinLog := s.current().Log, twin.current().Log
	before := log.Count(rebuildMessage)
	began := time.Now()
	noticeCtx, cancel := context.WithTimeout(ctx, k.h.patience(takeOverMax))
	defer cancel()
	err := kafkatest.Await(noticeCtx, "the processes of instance "+s.name+" notice each other", func(context.Context) error {
		if log.Count(rebuildMessage)+twinLog.Count(rebuildMessage) == before {
			return errors.New("no client was replaced")
		}
		return nil
	})
	if err != nil && ctx.Err() == nil && k.crowded.Load() {
		return fmt.Errorf("%w: another fault kept the broker away: %w", errNotStruck, err)
	}
	if err != nil {
		return err
	}
	if err := kafkatest.Pause(ctx, k.between(3*time.Second, 8*time.Second)); err != nil {
		return err
	}
	took, rebuilt, twinRebuilt := time.Since(began), log.Count(rebuildMessage)-before, twinLog.Count(rebuildMessage)
	k.note("%v together, clients rebuilt %d and %d times", took.Round(time.Second), rebuilt, twinRebuilt)
	// Each process has four clients. A client's backoff begins at 25 ms and doubles up to 5 s, so a client is
	// replaced about ten times in the first 8 s, and after that once every 5 s.
	if limit := 4 * (12 + int(took/(5*time.Second))); rebuilt > limit || twinRebuilt > limit {
		return fmt.Errorf("processes of instance %s rebuilt their clients %d and %d times in %v", s.name, rebuilt, twinRebuilt, took)
	}
	return nil
}

// rebuildMessage is what a worker logs when it replaces its client.
const rebuildMessage = "building a new client"

// starve runs a process with the lowest CPU priority while other processes use all CPU.
func starve(ctx context.Context, k *strike) error {
	s := k.slots[0]
	// Priorities belong to threads. Setting it for the process group covers all threads of the process.
	if err := syscall.Setpriority(syscall.PRIO_PGRP, s.current().PID(), 19); err != nil {
		return fmt.Errorf("lower the priority of process %s: %w", s.name, err)
	}
	burners, err := startBurners(ctx, 3)
	if err != nil {
		return err
	}
	err = kafkatest.Pause(ctx, k.between(4*time.Second, 10*time.Second))
	for _, b := range burners {
		err = errors.Join(err, b.Kill())
	}
	if err != nil {
		return err
	}
	if err := k.recovers(ctx, time.Now(), takeOverMax); err != nil {
		return err
	}
	// Only root may raise a priority again, so a new process replaces the one with the low priority.
	return errors.Join(s.stop(), s.start(ctx), s.awaitReady(ctx))
}

// memoryLimit runs a process with a low memory limit.
func memoryLimit(ctx context.Context, k *strike) error {
	s := k.slots[0]
	if err := errors.Join(s.stop(), s.start(ctx, "GOMEMLIMIT=48MiB")); err != nil {
		return err
	}
	started := time.Now()
	if err := kafkatest.Pause(ctx, k.between(4*time.Second, 10*time.Second)); err != nil {
		return err
	}
	if err := k.recovers(ctx, started, takeOverMax); err != nil {
		return err
	}
	return errors.Join(s.stop(), s.start(ctx), s.awaitReady(ctx))
}

// storm makes members join and leave the groups every two seconds. Some members leave without a LeaveGroup request.
func storm(ctx context.Context, k *strike) error {
	var did []string
	for range 4 + k.rng.IntN(4) {
		s := k.spare[k.rng.IntN(len(k.spare))]
		var err error
		switch {
		case !s.alive():
			err = s.start(ctx)
			did = append(did, "+"+s.name)
		case k.rng.IntN(2) == 0:
			err = s.kill()
			did = append(did, "x"+s.name)
		default:
			err = s.stop()
			did = append(did, "-"+s.name)
		}
		if err := errors.Join(err, kafkatest.Pause(ctx, k.between(time.Second, 3*time.Second))); err != nil {
			return err
		}
	}
	k.note("%s", strings.Join(did, " "))
	for _, s := range k.spare {
		if err := s.stop(); err != nil {
			return err
		}
	}
	return k.recovers(ctx, time.Now(), takeOverMax)
}
