//go:build unix

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"oncebus/processor/kafkatest"
)

// fault is something that happens to one of the programs. Its context ends with the run. If a program is still
// stopped when the run ends, heal starts it.
type fault struct {
	name   string
	strike func(ctx context.Context, f *faults) error
}

var faultList = []fault{
	{"an executor is killed", func(ctx context.Context, f *faults) error {
		return f.restart(ctx, f.one(f.system.executors), (*unit).kill, f.upTo(2*time.Second))
	}},
	{"an executor is paused for longer than the lease", func(ctx context.Context, f *faults) error {
		return f.one(f.system.executors).freeze(ctx, 2*lease+f.upTo(4*lease))
	}},
	{"an executor is paused until its group goes on without it", func(ctx context.Context, f *faults) error {
		return f.one(f.system.executors).freeze(ctx, executorSession+2*lease)
	}},
	{"all executors are redeployed, away for longer than the lease", func(ctx context.Context, f *faults) error {
		return f.redeploy(ctx, 2*lease+f.upTo(4*lease))
	}},
	{"all executors are killed and start again", func(ctx context.Context, f *faults) error {
		for _, u := range f.system.executors {
			if err := u.kill(); err != nil {
				return err
			}
		}
		return f.startExecutors(ctx)
	}},
	{"a process of oncebus is killed", func(ctx context.Context, f *faults) error {
		return f.restart(ctx, f.one(f.system.oncebus), (*unit).kill, f.upTo(3*time.Second))
	}},
	{"a process of oncebus is stopped and started", func(ctx context.Context, f *faults) error {
		return f.restart(ctx, f.one(f.system.oncebus), (*unit).stop, f.upTo(3*time.Second))
	}},
	{"a process of oncebus is paused for longer than its session", func(ctx context.Context, f *faults) error {
		return f.one(f.system.oncebus).freeze(ctx, sessionTimeout+f.upTo(sessionTimeout))
	}},
	{"the ingress is killed", func(ctx context.Context, f *faults) error {
		return f.restart(ctx, f.system.ingress, (*unit).kill, f.upTo(2*time.Second))
	}},
	{"the broker is killed", func(ctx context.Context, f *faults) error {
		broker := f.system.kafka.Brokers()[0]
		if err := broker.Kill(); err != nil {
			return err
		}
		if err := kafkatest.Pause(ctx, downMin+f.upTo(lease)); err != nil {
			return err
		}
		return broker.Restart(ctx)
	}},
}

// executorSession is the session timeout of deployments/executor.
const executorSession = 45 * time.Second

// awayName is the name of the fault that happens exactly once, in the middle of a run.
const awayName = "all executors are away"

// faults draws one fault after another, each kind equally often.
type faults struct {
	system   *system
	settings settings
	rng      *rand.Rand
	struck   map[string]int
}

func newFaults(y *system, s settings, rng *rand.Rand) faults {
	return faults{system: y, settings: s, rng: rng, struck: map[string]int{}}
}

// run causes faults until ctx is done. It returns an error if a fault could not be caused.
func (f *faults) run(ctx context.Context) error {
	away := time.Now().Add((f.settings.duration - f.settings.away) / 2)
	var drawn []int
	for ctx.Err() == nil {
		pause := f.settings.interval/2 + f.upTo(f.settings.interval)
		if err := kafkatest.Pause(ctx, pause); err != nil {
			return nil //nolint:nilerr // the run is over
		}
		next := fault{awayName, func(ctx context.Context, f *faults) error { return f.redeploy(ctx, f.settings.away) }}
		if f.settings.away == 0 || f.struck[awayName] > 0 || time.Now().Before(away) {
			if len(drawn) == 0 {
				drawn = f.rng.Perm(len(faultList))
			}
			next, drawn = faultList[drawn[0]], drawn[1:]
		}
		fmt.Fprintln(os.Stderr, next.name)
		if err := next.strike(ctx, f); err != nil && ctx.Err() == nil {
			return fmt.Errorf("%s: %w", next.name, err)
		}
		f.struck[next.name]++
	}
	return nil
}

func (f *faults) one(units []*unit) *unit { return units[f.rng.IntN(len(units))] }

func (f *faults) upTo(d time.Duration) time.Duration { return time.Duration(f.rng.Int64N(int64(d))) }

// restart ends a process and starts it again after a while.
func (f *faults) restart(ctx context.Context, u *unit, end func(*unit) error, after time.Duration) error {
	if err := end(u); err != nil {
		return err
	}
	if err := kafkatest.Pause(ctx, after); err != nil {
		return err
	}
	return u.running(f.base(ctx))
}

// redeploy stops all executors, and starts them after a while.
func (f *faults) redeploy(ctx context.Context, after time.Duration) error {
	if err := f.system.stopExecutors(); err != nil {
		return err
	}
	if err := kafkatest.Pause(ctx, after); err != nil {
		return err
	}
	return f.startExecutors(ctx)
}

func (f *faults) startExecutors(ctx context.Context) error {
	for _, u := range f.system.executors {
		if err := u.running(f.base(ctx)); err != nil {
			return err
		}
	}
	return nil
}

// base returns a context that does not end with the faults, because processes outlive the fault that starts them.
func (f *faults) base(ctx context.Context) context.Context { return context.WithoutCancel(ctx) }
