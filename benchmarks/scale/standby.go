//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"oncebus/benchmarks/internal/bench"
	"oncebus/processor/kafkatest"
	"oncebus/processor/kafkatest/program"
)

// takeover has the measurements of a kill -9 of one process under load, with or without standbys, and of the return
// of this process.
type takeover struct {
	Keys    int
	Standby bool
	Died    move
	Read    int // changelog rows that the other processes read during the takeover
	Back    move
	Again   int     // changelog rows that the process read when it came back
	Disk    int64   // bytes of the local state of one process at the kill
	RSS     int64   // resident bytes of one process at the kill
	CPU     float64 // before the kill, of all processes, in us per event
}

// metricStandbyLag has a value for each task; only standbys have this metric.
const metricStandbyLag = "oncebus_standby_lag_records"

// measureTakeovers kills a process of an app with the given number of keys, first without standbys and then with
// standbys.
func measureTakeovers(ctx context.Context, b *bed) (all []takeover, err error) {
	for _, keys := range b.s.standbyKeys {
		for _, standby := range []bool{false, true} {
			r, err := takeoverOnce(ctx, b, keys, standby)
			if err != nil {
				return all, fmt.Errorf("%d keys, standby %v: %w", keys, standby, err)
			}
			b.progress.Done("%d keys, standby %v: %d rows read at the takeover, balanced after %.1f s; %d rows at the return", keys, standby, r.Read, r.Died.Balanced, r.Again)
			all = append(all, r)
		}
	}
	return all, nil
}

func takeoverOnce(ctx context.Context, b *bed, keys int, standby bool) (r takeover, err error) {
	b.progress.Next("takeover with %d keys, standby %v", keys, standby)
	a, err := b.newApp(ctx, fmt.Sprintf("takeover-%d-%v", keys, standby), b.s.standbyShape, true, manyKeys)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, a.close()) }()
	a.standby = standby
	services, err := a.startAll(ctx)
	defer func() { err = errors.Join(err, end(services...)) }()
	if err != nil {
		return r, err
	}
	if err := a.fill(ctx, keys, services...); err != nil {
		return r, err
	}
	r.Keys, r.Standby = a.load.keys, standby
	stopTraffic := a.traffic(ctx, b.s.rate)
	err = a.takeOver(ctx, services, &r)
	if err := errors.Join(err, stopTraffic()); err != nil {
		return r, err
	}
	if err := a.watch.drained(ctx, services...); err != nil {
		return r, err
	}
	for _, s := range services {
		err = errors.Join(err, s.Stop())
	}
	return r, errors.Join(err, a.verify(ctx))
}

// takeOver kills the last of the services and starts it again. The new process replaces the last element of the list.
func (a *app) takeOver(ctx context.Context, services []*program.Process, r *takeover) (err error) {
	if err := a.keepUp(ctx, services); err != nil {
		return err
	}
	if err := a.steadyCosts(ctx, services, r); err != nil {
		return err
	}
	last := len(services) - 1
	stay := services[:last]
	before, err := restoredRows(ctx, stay...)
	if err != nil {
		return err
	}
	if r.Died, _, err = a.move(ctx, processDies, stay, services[last]); err != nil {
		return err
	}
	after, err := restoredRows(ctx, stay...)
	if err != nil {
		return err
	}
	r.Read = after - before
	back, comes, err := a.move(ctx, processStarts, stay, nil)
	if comes != nil {
		services[last] = comes
	}
	if err != nil {
		return err
	}
	r.Back = back
	r.Again, err = restoredRows(ctx, comes)
	return err
}

// steadyCosts measures the processes in traffic before the kill.
func (a *app) steadyCosts(ctx context.Context, services []*program.Process, r *takeover) error {
	began, events := time.Now(), a.watch.total()
	cpu, _, err := a.costs(services)
	if err != nil {
		return err
	}
	if err := kafkatest.Pause(ctx, a.s.standbyPause); err != nil {
		return err
	}
	cpuAfter, _, err := a.costs(services)
	if err != nil {
		return err
	}
	if n := a.watch.total() - events; n > 0 {
		r.CPU = float64((cpuAfter - cpu).Microseconds()) / float64(n)
	}
	usage, err := services[0].Usage()
	if err != nil {
		return err
	}
	r.RSS = usage.RSS
	r.Disk, err = bench.DiskBytes(a.stateDir(0))
	note("%v of traffic at %d events/s: %.1f us of CPU an event", time.Since(began).Round(time.Second), a.s.rate, r.CPU)
	return err
}

// keepUp waits until each task has a standby whose lag is less than a second of traffic.
func (a *app) keepUp(ctx context.Context, services []*program.Process) error {
	if !a.standby {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, readyMax)
	defer cancel()
	return kafkatest.Await(ctx, "the standbys keep up", func(ctx context.Context) error {
		followed, behind := 0, 0
		for _, s := range services {
			m, err := s.Metrics(ctx)
			if err != nil {
				return err
			}
			for _, lag := range m.Counts(metricStandbyLag) {
				followed++
				if lag > a.s.rate {
					behind++
				}
			}
		}
		if followed != a.shape.Partitions || behind > 0 {
			return fmt.Errorf("%d of %d tasks are followed, %d standbys are behind", followed, a.shape.Partitions, behind)
		}
		return nil
	})
}

func restoredRows(ctx context.Context, services ...*program.Process) (sum int, err error) {
	for _, s := range services {
		m, err := s.Metrics(ctx)
		if err != nil {
			return 0, err
		}
		sum += int(m.Sum(metricRestored))
	}
	return sum, nil
}

func (r *result) takeoverTable(b *strings.Builder) {
	if len(r.Takeovers) == 0 {
		return
	}
	fmt.Fprintf(b, "## Takeover with and without standbys\n\n%v (processes x workers x partitions) at %d events a second. The last process is killed with kill -9, and starts again when the others run its tasks. "+
		"Balanced counts from the kill, so it includes the session timeout of %v.\n\n"+
		"| keys | standby | rows read at the takeover | balanced, s | silent, ms | rows read at the return | balanced, s | silent, ms | disk of a process, MiB | resident, MiB | CPU us an event |\n"+
		"| ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n", r.s.standbyShape, r.s.rate, r.s.sessionTimeout)
	for _, t := range r.Takeovers {
		fmt.Fprintf(b, "| %d | %v | %d | %.1f | %.0f | %d | %.1f | %.0f | %.0f | %.0f | %.1f |\n", t.Keys, t.Standby, t.Read, t.Died.Balanced, t.Died.Silence.Median,
			t.Again, t.Back.Balanced, t.Back.Silence.Median, float64(t.Disk)/mib, float64(t.RSS)/mib, t.CPU)
	}
	b.WriteString("\n")
}

// takeoverGoals returns the goals: with standbys, a takeover reads only a small part of the rows that it reads
// without them.
func (r *result) takeoverGoals() (goals []bench.Goal) {
	for i, t := range r.Takeovers {
		if t.Standby && i > 0 {
			without := r.Takeovers[i-1]
			goals = append(goals, bench.NewGoal(fmt.Sprintf("rows read at a takeover with standbys, %d keys", t.Keys), fmt.Sprintf("at most a fifth of the %d without", without.Read),
				fmt.Sprint(t.Read), t.Read <= without.Read/5))
		}
	}
	return goals
}

// takeoverGuesses estimates the times of the runs.
func (s settings) takeoverGuesses() (all []time.Duration) {
	for _, keys := range s.standbyKeys {
		fill := time.Duration(keys) * time.Second / eventRate
		all = append(all, slices.Repeat([]time.Duration{appTime + fill + s.standbyPause + 2*s.sessionTimeout + time.Duration(keys)*time.Second/restoreRate}, 2)...)
	}
	return all
}
