//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"oncebus/benchmarks/internal/bench"
)

// lightRun has the measurements of a kill -9 during light traffic.
type lightRun struct {
	Keys    int // keys that were committed before the kill
	Restart restart
}

// measureRestarts measures what a process reads again after kill -9. This should be the rows since its last flush,
// whatever number of keys it has.
func measureRestarts(ctx context.Context, b *bed) (runs []lightRun, err error) {
	for _, keys := range b.s.restartKeys {
		r, err := restartOnce(ctx, b, keys)
		if err != nil {
			return runs, fmt.Errorf("%d keys: %w", keys, err)
		}
		b.progress.Done("%d keys: %d rows in memory at the kill, %d rows read from the changelog, ready after %.2f s", r.Keys, r.Restart.Unflushed, r.Restart.Read, r.Restart.Ready)
		runs = append(runs, r)
	}
	return runs, nil
}

func restartOnce(ctx context.Context, b *bed, keys int) (r lightRun, err error) {
	b.progress.Next("restart with %d keys", keys)
	a, err := b.newApp(ctx, fmt.Sprintf("restart-%d", keys), shape{1, 1, restartPartitions}, true, manyKeys)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, a.close()) }()
	ctx, cancel := context.WithCancel(ctx) // ends the memory samples, also after an error
	defer cancel()
	l := &live{app: a, memory: new(memory)}
	defer func() { err = errors.Join(err, end(l.service)) }()
	if _, err := l.begin(ctx); err != nil {
		return r, err
	}
	if err := l.fill(ctx, keys, l.service); err != nil {
		return r, err
	}
	more := int(l.s.restartTraffic.Seconds() * float64(l.s.restartRate))
	if err := l.load.stream(ctx, l.load.keys+more, l.load.pace(l.s.restartRate*100/(100-l.s.duplicates))); err != nil {
		return r, err
	}
	if err := l.watch.drained(ctx, l.service); err != nil {
		return r, err
	}
	r.Keys = l.load.keys
	if err := l.kill(ctx, &r.Restart); err != nil {
		return r, err
	}
	if err := l.again(ctx, &r.Restart); err != nil {
		return r, err
	}
	if err := l.halt(); err != nil {
		return r, err
	}
	return r, a.verify(ctx)
}

// restartPartitions is the number of tasks that the one process has.
const restartPartitions = 4

func (r *result) restartTable(b *strings.Builder) {
	if len(r.Restarts) == 0 {
		return
	}
	fmt.Fprintf(b, "## Restart in light traffic\n\nOne process, %d tasks; %d new keys a second for %v, then kill -9 and a start at once. The flush age is %v.\n\n"+
		"| keys | rows in memory at the kill | keys of the last flush age | rows read from the changelog | start to ready, s |\n| ---: | ---: | ---: | ---: | ---: |\n",
		restartPartitions, r.s.restartRate, r.s.restartTraffic, r.s.flushAge)
	for _, run := range r.Restarts {
		since := min(run.Keys, int(min(r.s.restartTraffic, r.s.flushAge).Seconds()*float64(r.s.restartRate)))
		fmt.Fprintf(b, "| %d | %d | %d | %d | %.2f |\n", run.Keys, run.Restart.Unflushed, since, run.Restart.Read, run.Restart.Ready)
	}
	b.WriteString("\n")
}

// restartGoals returns the goals of the part restart: the rows in memory limit what a process reads again, and
// the number of keys does not. A run in which no rows were in memory does not prove this.
func (r *result) restartGoals() (goals []bench.Goal) {
	for _, run := range r.Restarts {
		of := run.Restart
		goals = append(goals, bench.NewGoal(fmt.Sprintf("rows read after kill -9 in light traffic, %d keys", run.Keys), fmt.Sprintf("1 to %d, as in memory", of.Unflushed),
			fmt.Sprint(of.Read), of.Unflushed > 0 && of.Read <= of.Unflushed))
	}
	return goals
}

// restartGuess estimates the time of a run.
func (s settings) restartGuess(keys int) time.Duration {
	return appTime + s.restartTraffic + time.Duration(keys)*time.Second/eventRate
}
