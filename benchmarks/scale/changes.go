//go:build unix

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"oncebus/benchmarks/internal/bench"
	"oncebus/processor/kafkatest/program"
)

// changesRun has the measurements of one app with a given number of seeded keys. The app is changed in several steps
// while events arrive.
type changesRun struct {
	Keys     int
	SeedFile int64 // size in bytes of the file of seeds
	// Seed, Export and Verify are the commands. The exported file has Exported keys.
	Seed, Export, Verify commandUse
	Exported, File       int64
	// Changelog and Repartition are the sizes of these topics in bytes after the seed.
	Changelog, Repartition int64
	Rebuilds               []rebuildRun
	Move                   partitionMove
	Steps                  []observed
}

// rebuildRun has the measurements of a kill -9 of one of the processes, whose state directory is then deleted.
// Other processes take over its tasks; then the killed process starts again.
type rebuildRun struct {
	Standby  bool
	Tasks    int          // tasks that the killed process had
	Read     int          // changelog rows that the other process read
	Balanced float64      // seconds from the kill until all tasks ran in the other process
	Silent   bench.Spread // ms during which a task of the killed process committed nothing
	Return   rebuildBack
}

// rebuildBack has the measurements of the new start of the killed process, without its state.
type rebuildBack struct {
	Read     int
	Balanced float64
	Silent   bench.Spread // ms, of the tasks that the process got back
}

// partitionMove has the measurements of a move to another number of partitions. Times are in seconds.
type partitionMove struct {
	From, To int
	// Phases has when each phase began, counted from the start of the command. The command ended after Seconds.
	Phases  map[string]float64
	Command commandUse
	Running float64 // seconds until all new tasks ran
	Copied  int64   // keys that the app had then, according to the committed events
	// Changelog is the bytes of the new changelog, Finished the bytes of the disk after 'move --finish' and the deletion of
	// the old state directories.
	Changelog, Finished int64
}

const (
	// changesTo is the number of partitions after the move.
	changesTo = 48
	// moveStep is the name of the step that moves the keys; the names of steps with a kill begin with killStep.
	moveStep, killStep = "move", "kill -9 with the state, "
	// moveLimit is how long the input may be held.
	moveLimit = 10 * time.Minute
)

// measureChanges changes a running app, once for each number of keys.
func measureChanges(ctx context.Context, b *bed) (runs []changesRun, err error) {
	for _, keys := range b.s.changesKeys {
		began := time.Now()
		r, err := changesOnce(ctx, b, keys)
		runs = append(runs, r) // also after an error, with what was measured until then
		if err != nil {
			return runs, fmt.Errorf("%d keys: %w", keys, err)
		}
		b.progress.Done("%d keys: seeded in %.1f s, exported in %.1f s, moved in %.1f s; took %v", keys, r.Seed.Seconds, r.Export.Seconds, r.Move.Command.Seconds, time.Since(began).Round(time.Second))
	}
	return runs, nil
}

// changes is the state of the current run.
type changes struct {
	*app

	run      *changesRun
	observer *observer
	services []*program.Process
	lines    string // path of the file with the seeds
	file     string // path of the exported file
}

func changesOnce(ctx context.Context, b *bed, keys int) (r changesRun, err error) {
	r.Keys = keys
	b.progress.Next("changes with %d keys", keys)
	a, err := b.newApp(ctx, fmt.Sprintf("changes-%d", keys), b.s.changesShape, false, manyKeys)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, a.close()) }()
	// The processes end with this context, so it has to last until they are stopped.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	dir := filepath.Join(b.broker.Dir, a.name)
	c := &changes{app: a, run: &r, lines: filepath.Join(dir, "ids.tsv"), file: filepath.Join(dir, "keys.obx1")}
	c.services, err = a.startAll(ctx)
	defer func() { err = errors.Join(err, end(c.services...)) }()
	if err != nil {
		return r, err
	}
	if err := c.withTraffic(ctx, cancel); err != nil {
		return r, errors.Join(err, context.Cause(ctx))
	}
	if err := a.awaitOutput(ctx, c.services...); err != nil {
		return r, err
	}
	for _, s := range c.services {
		err = errors.Join(err, s.Stop())
	}
	return r, errors.Join(err, a.verify(ctx))
}

// withTraffic takes all steps while events arrive, and then waits until these events are processed. cancel ends the
// context.
func (c *changes) withTraffic(ctx context.Context, cancel context.CancelCauseFunc) error {
	defer c.keepPurging(ctx, cancel)()
	stopTraffic := c.traffic(ctx, c.s.rate)
	c.observer = observe(ctx, c.app)
	c.observer.follow(c.services...)
	err := c.steps(ctx)
	c.observer.stop()
	if err := errors.Join(err, stopTraffic()); err != nil {
		return err
	}
	return c.watch.drained(ctx, c.services...)
}

// steps takes the steps one after the other. Each step begins when the app has caught up after the previous step.
func (c *changes) steps(ctx context.Context) error {
	flows := int64(float64(c.s.rate) * c.s.changesTraffic.Seconds())
	if err := c.watch.await(ctx, c.services, func() bool { return c.watch.total() > flows }); err != nil {
		return err
	}
	if _, err := c.observer.catchUp(ctx, 0); err != nil {
		return err
	}
	note("    writing %d lines", c.run.Keys)
	if err := c.writeLines(); err != nil {
		return err
	}
	for _, s := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"seed", c.seed},
		{"export", c.export},
		{killStep + "no standby", func(ctx context.Context) error { return c.takeOver(ctx, false) }},
		{"its return, no standby", c.comeBack},
		{"restart of both with standbys", func(ctx context.Context) error { return c.restartAll(ctx, true) }},
		{killStep + "standby", func(ctx context.Context) error { return c.takeOver(ctx, true) }},
		{"its return, standby", c.comeBack},
		{"restart of both without standbys", func(ctx context.Context) error { return c.restartAll(ctx, false) }},
		{moveStep, c.moveAll},
		{"move --finish", c.finish},
		{"verify", c.compare},
	} {
		note("  %d keys: %s", c.run.Keys, s.name)
		step, err := c.observer.step(ctx, s.name, s.do)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		c.run.Steps = append(c.run.Steps, step)
	}
	return nil
}

// writeLines writes the file of seeds. Their first seen times are within one window before the traffic.
func (c *changes) writeLines() error {
	if err := writeIDs(c.lines, c.run.Keys, c.load.start.Add(-window), c.load.start); err != nil {
		return err
	}
	info, err := os.Stat(c.lines)
	if err == nil {
		c.run.SeedFile = info.Size()
	}
	return err
}

func (c *changes) seed(ctx context.Context) (err error) {
	var seeded struct{ Taken int }
	if c.run.Seed, err = c.command(ctx, &seeded, "seed", "--route", "signals", c.lines); err != nil {
		return err
	}
	if seeded.Taken != c.run.Keys {
		return fmt.Errorf("%d of %d keys were taken", seeded.Taken, c.run.Keys)
	}
	if c.run.Changelog, err = c.topicBytes(ctx, c.name+"-repartition-changelog"); err != nil {
		return err
	}
	if c.run.Repartition, err = c.topicBytes(ctx, c.name+"-repartition"); err != nil {
		return err
	}
	return os.Remove(c.lines)
}

func (c *changes) export(ctx context.Context) (err error) {
	var exported struct{ Rows, Bytes int64 }
	if c.run.Export, err = c.command(ctx, &exported, "export", c.file); err != nil {
		return err
	}
	if exported.Rows < int64(c.run.Keys) {
		return fmt.Errorf("%d keys were exported, %d were seeded", exported.Rows, c.run.Keys)
	}
	c.run.Exported, c.run.File = exported.Rows, exported.Bytes
	return nil
}

// compare checks, after all changes, that the app still has every exported key.
func (c *changes) compare(ctx context.Context) (err error) {
	var verified struct{ Compared struct{ There int64 } }
	if c.run.Verify, err = c.command(ctx, &verified, "verify", c.file); err == nil && verified.Compared.There != c.run.Exported {
		err = fmt.Errorf("the app has %d of %d exported keys", verified.Compared.There, c.run.Exported)
	}
	return errors.Join(err, os.Remove(c.file))
}

// takeOver kills the last process and deletes its state. The other processes take its tasks over.
func (c *changes) takeOver(ctx context.Context, standby bool) error {
	last := len(c.services) - 1
	stay, dies := c.services[:last], c.services[last]
	lost, err := tasks(ctx, dies)
	if err != nil {
		return err
	}
	before, err := restoredRows(ctx, stay...)
	if err != nil {
		return err
	}
	c.observer.follow(stay...)
	began := time.Now()
	if err := errors.Join(dies.Kill(), os.RemoveAll(c.stateDir(last))); err != nil {
		return err
	}
	if err := c.allRun(ctx, stay...); err != nil {
		return err
	}
	r := rebuildRun{Standby: standby, Tasks: len(lost), Balanced: time.Since(began).Seconds()}
	after, err := restoredRows(ctx, stay...)
	if err != nil {
		return err
	}
	r.Read = after - before
	if _, err := c.observer.catchUp(ctx, 0); err != nil {
		return err
	}
	r.Silent = c.silent(lost)
	c.run.Rebuilds = append(c.run.Rebuilds, r)
	return nil
}

// silent returns, for each of the tasks, the longest time in ms during which the task committed nothing.
func (c *changes) silent(partitions []int) bench.Spread {
	var silent []float64
	all := c.observer.silentTasks()
	for _, p := range partitions {
		silent = append(silent, all[fmt.Sprintf("%s-repartition/%d", c.name, p)])
	}
	return bench.SpreadOf(silent)
}

// comeBack starts the killed process, whose state was deleted.
func (c *changes) comeBack(ctx context.Context) error {
	last := len(c.services) - 1
	began := time.Now()
	comes, err := c.start(ctx, last)
	if err != nil {
		return err
	}
	c.services[last] = comes
	c.observer.follow(c.services...)
	if err := c.allRun(ctx, c.services...); err != nil {
		return err
	}
	back := rebuildBack{Balanced: time.Since(began).Seconds()}
	if back.Read, err = restoredRows(ctx, comes); err != nil {
		return err
	}
	got, err := tasks(ctx, comes)
	if err != nil {
		return err
	}
	if _, err := c.observer.catchUp(ctx, 0); err != nil {
		return err
	}
	back.Silent = c.silent(got)
	c.run.Rebuilds[len(c.run.Rebuilds)-1].Return = back
	return nil
}

// restartAll restarts one process after the other, with or without standbys, and waits until the standbys have caught
// up.
func (c *changes) restartAll(ctx context.Context, standby bool) error {
	c.standby = standby
	for i, s := range c.services {
		if err := s.Stop(); err != nil {
			return err
		}
		comes, err := c.start(ctx, i)
		if err != nil {
			return err
		}
		c.services[i] = comes
		c.observer.follow(c.services...)
		if err := c.allRun(ctx, c.services...); err != nil {
			return err
		}
	}
	return c.keepUp(ctx, c.services)
}

// moveAll moves the keys to a larger number of partitions, and waits until all new tasks run.
func (c *changes) moveAll(ctx context.Context) error {
	m := &c.run.Move
	m.From, m.To, m.Phases = c.shape.Partitions, changesTo, map[string]float64{}
	began := time.Now()
	var err error
	m.Command, err = useOf(c.oncebus(ctx, "move", "--limit", moveLimit.String(), "--partitions", strconv.Itoa(changesTo)), func(out io.Reader) error {
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			phase, _, _ := strings.Cut(lines.Text(), ":")
			m.Phases[phase] = time.Since(began).Seconds()
			note("    %.1f s: %s", time.Since(began).Seconds(), lines.Text())
		}
		return lines.Err()
	})
	if err != nil {
		return err
	}
	c.shape.Partitions, c.observer.repartition = changesTo, c.name+"-repartition-2"
	if err := c.allRun(ctx, c.services...); err != nil {
		return err
	}
	m.Running = time.Since(began).Seconds()
	m.Copied = int64(c.run.Keys) + c.watch.total()*int64(100-c.s.duplicates)/100
	m.Changelog, err = c.topicBytes(ctx, c.observer.repartition+"-changelog")
	return err
}

// finish deletes the old topics, and the local state of the old tasks.
func (c *changes) finish(ctx context.Context) error {
	var finished struct{ Deleted []string }
	if _, err := c.command(ctx, &finished, "move", "--finish"); err != nil {
		return err
	}
	if len(finished.Deleted) == 0 {
		return errors.New("no topic was deleted")
	}
	old, err := filepath.Glob(filepath.Join(c.broker.Dir, c.name, "*", c.name, c.name+"-repartition-*"))
	if err != nil {
		return err
	}
	for _, dir := range old {
		// The directories of the new tasks stay: in their names another number precedes the partition.
		if _, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(dir), c.name+"-repartition-")); err == nil {
			if err := os.RemoveAll(dir); err != nil {
				return err
			}
		}
	}
	c.run.Move.Finished, err = bench.DiskBytes(c.broker.Dir)
	return err
}

// topicBytes returns the bytes of a topic on the broker's disk.
func (c *changes) topicBytes(ctx context.Context, topic string) (sum int64, err error) {
	dirs, err := filepath.Glob(filepath.Join(c.broker.Dir, "kafka", "data", topic+"-[0-9]*"))
	if err != nil {
		return 0, err
	}
	for _, dir := range dirs {
		n, err := bench.DiskBytes(dir)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	if sum == 0 {
		return 0, fmt.Errorf("no files of topic %s below %s", topic, c.broker.Dir)
	}
	return sum, ctx.Err()
}
