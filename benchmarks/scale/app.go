//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"oncebus/benchmarks/internal/bench"
	"oncebus/processor/kafkatest"
	"oncebus/processor/kafkatest/program"
)

// bed has what all apps of one run share.
type bed struct {
	s        settings
	broker   *bench.Broker
	binary   string
	progress *bench.Progress
}

// An app is one application of oncebus: its topics, its processes, its input
// and its output.
type app struct {
	*bed
	name   string
	shape  shape
	keyed  bool
	routes string // path of the app's routes file
	group  *group // the cgroup of its processes; nil if memory has no limit
	// standby is the value of ONCEBUS_STANDBY.
	standby bool

	admin *kadm.Client
	load  *load
	out   *reader
	watch *watch
}

// newApp creates an app's topics. The event times of its input are such that at most horizon keys are live at a time.
func (b *bed) newApp(ctx context.Context, name string, sh shape, keyed bool, horizon int) (*app, error) {
	a := &app{bed: b, name: name, shape: sh, keyed: keyed, routes: filepath.Join(b.broker.Dir, name+".yaml"), admin: b.broker.Admin()}
	if err := a.writeRoutes(); err != nil {
		return nil, err
	}
	if err := b.broker.CreateTopics(ctx, sh.Partitions, a.input(), a.output(), a.dead()); err != nil {
		return nil, err
	}
	// Retention is switched off, because it would delete the records, whose event times are long ago. Segments
	// are small, so that records that the benchmark deletes soon free their disk space.
	configs := []kadm.AlterConfig{setConfig("retention.ms", "-1"), setConfig("segment.bytes", strconv.Itoa(64<<20)), setConfig("file.delete.delay.ms", "1000")}
	altered, err := a.admin.AlterTopicConfigs(ctx, configs, a.input(), a.output(), a.dead())
	for _, r := range altered {
		err = errors.Join(err, r.Err)
	}
	if err != nil {
		return nil, fmt.Errorf("configure the topics of %s: %w", name, err)
	}
	if a.load, err = newLoad(b.broker.Seeds(), a.input(), sh.Partitions, horizon, b.s); err != nil {
		return nil, err
	}
	if a.out, err = newReader(b.broker.Seeds(), a.output(), sh.Partitions); err != nil {
		a.load.close()
		return nil, err
	}
	group := name + "-dedup"
	if !keyed {
		group = name + "-route"
	}
	a.watch = startWatch(ctx, a.admin, group, a.load)
	return a, nil
}

func setConfig(name, value string) kadm.AlterConfig {
	return kadm.AlterConfig{Op: kadm.SetConfig, Name: name, Value: &value}
}

func (a *app) input() string  { return a.name + "-input" }
func (a *app) output() string { return a.name + "-output" }
func (a *app) dead() string   { return a.name + "-dead" }

func (a *app) writeRoutes() error {
	return os.WriteFile(a.routes, fmt.Appendf(nil, `routes:
  - name: signals
    topics: [%s]
    prepartitioned: %v
    key:
      - field: traceId
    window: %v
    grace: 0s
    output: %s
    dead_letter: %s
`, a.input(), a.keyed, window, a.output(), a.dead()), 0o644)
}

// close removes the app's topics and files.
func (a *app) close() error {
	a.watch.stop()
	a.out.close()
	a.load.close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return errors.Join(a.broker.DeleteApp(ctx, a.name), os.RemoveAll(filepath.Join(a.broker.Dir, a.name)))
}

// start starts process i of the app. If the process ran before, it has its former state.
func (a *app) start(ctx context.Context, i int) (*program.Process, error) {
	return spec{
		binary: a.binary, brokers: a.broker.Seeds(), app: a.name, instance: "p" + strconv.Itoa(i), routes: a.routes,
		stateDir: a.stateDir(i), log: filepath.Join(a.broker.Dir, fmt.Sprintf("%s-p%d.log", a.name, i)), partitions: a.shape.Partitions, workers: a.shape.Workers, group: a.group, standby: a.standby, s: a.s,
	}.start(ctx)
}

func (a *app) stateDir(i int) string { return filepath.Join(a.broker.Dir, a.name, "p"+strconv.Itoa(i)) }

// startAll starts all processes and waits until every task runs in one.
func (a *app) startAll(ctx context.Context) (all []*program.Process, err error) {
	for i := range a.shape.Processes {
		s, err := a.start(ctx, i)
		if err != nil {
			return all, err
		}
		all = append(all, s)
	}
	return all, a.allRun(ctx, all...)
}

// allRunEvery is the interval in which allRun checks the processes. It is long, because a process reads figures
// of every store for each response.
const allRunEvery = 50 * time.Millisecond

// allRun waits until the processes are ready and run all tasks, and until the last process, which may have
// started later, has some of the tasks.
func (a *app) allRun(ctx context.Context, services ...*program.Process) error {
	ctx, cancel := context.WithTimeout(ctx, readyMax)
	defer cancel()
	members := max(1, a.shape.Workers) * len(services)
	share := max(1, a.shape.Workers) * (a.shape.Partitions / members)
	for {
		running, last := 0, 0
		for _, s := range services {
			if err := s.Ended(); err != nil {
				return err
			}
			last = 0
			if _, err := s.Page(ctx, "/readyz"); err != nil {
				continue
			}
			tasks, err := tasks(ctx, s)
			if err != nil {
				return err
			}
			last = len(tasks)
			running += last
		}
		if running == a.shape.Partitions && last >= share {
			return nil
		}
		if err := kafkatest.Pause(ctx, allRunEvery); err != nil {
			return fmt.Errorf("%d of %d tasks run: %w; %s", running, a.shape.Partitions, err, why(context.WithoutCancel(ctx), services))
		}
	}
}

// lagMax is how many events the generator may be ahead of the app. It is large enough that the app never waits for
// events, and bounds the space on the disk.
const lagMax = 1_000_000

// purgeEvery is how often keepPurging deletes processed records.
const purgeEvery = 2 * time.Second

// fill streams events until there is the given number of keys and all events are committed. Meanwhile it reads the
// output and deletes processed records.
func (a *app) fill(ctx context.Context, keys int, services ...*program.Process) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer a.keepPurging(ctx, cancel)()
	err := a.load.stream(ctx, keys, func(ctx context.Context) error {
		return a.watch.await(ctx, services, func() bool { return a.watch.waiting() < lagMax })
	})
	if err == nil {
		err = a.watch.drained(ctx, services...)
	}
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// keepPurging reads the output and deletes processed records until the returned function is called. If reading
// or deleting fails, keepPurging calls failed once.
func (a *app) keepPurging(ctx context.Context, failed func(error)) (stop func()) {
	var purging sync.WaitGroup
	ended := make(chan struct{})
	purging.Go(func() {
		tick := time.NewTicker(purgeEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-ended:
				return
			}
			if err := errors.Join(a.out.catchUp(ctx), a.purge(ctx)); err != nil {
				failed(err)
				return
			}
		}
	})
	return func() {
		close(ended)
		purging.Wait()
	}
}

// purge deletes processed records of the input and read records of the output.
func (a *app) purge(ctx context.Context) error {
	committed := map[int32]int64{}
	for p, o := range a.watch.offsets() {
		committed[int32(p)] = o
	}
	return errors.Join(deleteBelow(ctx, a.admin, a.input(), committed), a.out.purge(ctx))
}

// awaitOutput waits until every key that was sent is in the output. In an app with a repartition topic, this is
// not proved by an input without a backlog, because events may still wait in the repartition topic.
func (a *app) awaitOutput(ctx context.Context, services ...*program.Process) error {
	for found, since := 0, time.Now(); ; {
		if err := a.out.catchUp(ctx); err != nil {
			return err
		}
		switch now := a.out.found.distinct; {
		case now >= a.load.keys:
			return nil
		case now != found:
			found, since = now, time.Now()
		case time.Since(since) > standstillMax:
			return fmt.Errorf("no record was emitted for %v, the output has %d of %d keys: %s", standstillMax, found, a.load.keys, why(ctx, services))
		}
		if err := kafkatest.Pause(ctx, allRunEvery); err != nil {
			return err
		}
	}
}

// verify reads the output to its end. The output must have every sent key exactly once, and the dead-letter topic no
// record.
func (a *app) verify(ctx context.Context) error {
	if err := a.out.catchUp(ctx); err != nil {
		return err
	}
	if err := a.out.found.check(a.load.keys); err != nil {
		return err
	}
	dead, err := a.broker.Ends(ctx, a.dead())
	if err == nil && dead != 0 {
		err = fmt.Errorf("the output is wrong: %d offsets of %s are used", dead, a.dead())
	}
	return err
}

// drainRun has the measurements of an app that processes a backlog.
type drainRun struct {
	Events    int
	Rate      float64      // events a second, from the first commit that was seen to the last
	Slices    bench.Spread // the rates in five parts of equal duration
	CPU       float64      // of all processes, in us per event
	BrokerCPU float64      // of the broker, in us per event
	Gaps      gapFigures
}

const slicesOf = 5

// drain measures how the processes work off a backlog of n events.
func (a *app) drain(ctx context.Context, n int, services ...*program.Process) (drainRun, error) {
	held, err := a.load.hold(ctx, n)
	if err != nil {
		return drainRun{}, err
	}
	a.watch.reset()
	before := a.watch.total()
	if err := held.release(ctx); err != nil {
		return drainRun{}, err
	}
	if err := a.watch.await(ctx, services, func() bool { return a.watch.total() > before }); err != nil {
		return drainRun{}, err
	}
	first := a.watch.newest()
	cpu, brokerCPU, err := a.costs(services)
	if err != nil {
		return drainRun{}, err
	}
	if err := a.watch.drained(ctx, services...); err != nil {
		return drainRun{}, err
	}
	last := a.watch.newest()
	cpuAfter, brokerAfter, err := a.costs(services)
	if err != nil {
		return drainRun{}, err
	}
	events := float64(last.events - first.events)
	if events <= 0 {
		return drainRun{}, fmt.Errorf("a backlog of %d events was processed in one commit: raise -backlog", n)
	}
	m := drainRun{Events: n, Rate: rate(first, last), Gaps: a.watch.gapFigures()}
	m.Slices = bench.SpreadOf(a.watch.rates(first, last, slicesOf))
	m.CPU = float64((cpuAfter - cpu).Microseconds()) / events
	m.BrokerCPU = float64((brokerAfter - brokerCPU).Microseconds()) / events
	return m, errors.Join(a.out.catchUp(ctx), a.purge(ctx))
}

// costs returns the CPU time of all the processes, and the CPU time of the broker.
func (a *app) costs(services []*program.Process) (sum, broker time.Duration, err error) {
	for _, s := range services {
		u, err := s.Usage()
		if err != nil {
			return 0, 0, err
		}
		sum += u.CPU
	}
	u, err := a.broker.Usage()
	return sum, u.CPU, err
}
