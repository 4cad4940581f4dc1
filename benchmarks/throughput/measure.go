//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"oncebus/benchmarks/internal/bench"
	"oncebus/benchmarks/internal/server"
	"oncebus/processor/kafkatest/program"
)

// benchmark has the parts that all measurements share.
type benchmark struct {
	settings

	broker   *bench.Broker
	input    bench.Input
	progress *bench.Progress
}

// measurement has the figures of one contender in one round, measured from the end of the warm-up to the last output.
type measurement struct {
	Rate            float64 // events a second
	CPUMicros       float64 // user and system time of the contender's process per event
	BrokerCPUMicros float64 // the same for the broker
	RSSMaxMiB       float64 // highest resident memory of the contender's process
	ServerCPUMicros float64 // CPU time per event of the server in which a peer stores its keys
	ServerMiB       float64 // memory of that server at the end; shared pages count once
	DiskMiB         float64 // local state at the end, including that of the peer's server, but not Kafka's topics
}

// measure runs one contender as a separate process until its output is complete, and
// reads the output back.
func (b benchmark) measure(ctx context.Context, c contender, workers, round int) (m measurement, err error) {
	task := bench.Task{
		Role: c.role, App: fmt.Sprintf("r%d-w%d-%s", round, workers, fileName(c.name)), Brokers: b.broker.Seeds(), Input: b.input.Topic,
		Partitions: b.partitions, Workers: workers, Commit: b.commit,
	}
	task.StateDir = filepath.Join(b.broker.Dir, task.App)
	if b.profiles != "" {
		task.Profile = filepath.Join(b.profiles, fmt.Sprintf("%s-%d.pprof", fileName(c.name), workers))
	}
	if err := b.broker.CreateTopics(ctx, b.partitions, task.Topics()...); err != nil {
		return m, err
	}
	defer func() {
		err = errors.Join(err, b.broker.DeleteApp(context.WithoutCancel(ctx), task.App), os.RemoveAll(task.StateDir))
	}()
	keys, err := c.startServer(ctx)
	if err != nil {
		return m, err
	}
	if keys != nil {
		defer func() { err = errors.Join(err, keys.Close()) }()
	}
	cmd, err := c.command(ctx, task, keys)
	if err != nil {
		return m, err
	}
	process, err := program.Start(c.name, cmd, "")
	if err != nil {
		return m, err
	}
	m, err = b.watch(ctx, running{process, keys}, task, c.dedups)
	if err := errors.Join(err, m.addSizes(keys, task), process.Stop()); err != nil {
		return m, err
	}
	tally, err := bench.ReadTally(ctx, b.broker.Seeds(), task.Output(), b.input)
	if err != nil {
		return m, err
	}
	return m, tally.Check(b.input, c.dedups)
}

// addSizes adds the memory and disk sizes at the end of a measurement.
func (m *measurement) addSizes(keys *server.Server, task bench.Task) error {
	disk, err := bench.DiskBytes(task.StateDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // a passthrough has no state
		return err
	}
	if keys != nil {
		files, filesErr := keys.Disk()
		memory, memoryErr := keys.Memory()
		if err := errors.Join(filesErr, memoryErr); err != nil {
			return err
		}
		disk += files
		m.ServerMiB = float64(memory) / (1 << 20)
	}
	m.DiskMiB = float64(disk) / (1 << 20)
	return nil
}

func fileName(contender string) string {
	return strings.ToLower(strings.NewReplacer(" ", "-", "+", "-", "(", "", ")", "").Replace(contender))
}

// moment is one sample.
type moment struct {
	at                time.Time
	input, output     int64 // sums of offsets: of the input that the first stage has committed, and of the output
	contender, broker program.Usage
	server            time.Duration // CPU time of the server in which a peer stores its keys
}

// running is the process of a contender; for a peer with a server also that server, else nil.
type running struct {
	process *program.Process
	keys    *server.Server
}

// progress returns the completed share of the work. An event that is between two stages counts half. With one stage
// the input and the output of an event are in one transaction.
func (m moment) progress(events, due int64) float64 {
	return (float64(m.input)/float64(events) + min(1, float64(m.output)/float64(due))) / 2
}

const (
	// lookEvery is the time between two samples, and so the resolution of the measurement.
	lookEvery = 10 * time.Millisecond
	// The output counts as complete if none has come for two commit intervals plus quiet.
	quiet = time.Second
	// stuckAfter is the longest time without progress that a contender may have before its work is done; after
	// it the run fails. The start of Kafka Streams alone takes some seconds.
	stuckAfter = time.Minute
)

// watch samples a contender until it has committed the whole input and its output does not grow any more.
func (b benchmark) watch(ctx context.Context, contender running, task bench.Task, dedups bool) (measurement, error) {
	events, due := int64(b.input.Events), int64(b.input.Events)
	if dedups {
		due = int64(b.input.Distinct())
	}
	s := span{last: moment{at: time.Now()}}
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-contender.process.Exited():
			return measurement{}, fmt.Errorf("the process ended: %w", contender.process.Err())
		case <-ctx.Done():
			return measurement{}, ctx.Err()
		}
		now, err := b.look(ctx, contender, task)
		if err != nil {
			return measurement{}, err
		}
		if s.add(now, now.progress(events, due)*100 >= float64(b.warmUp)) {
			continue
		}
		idle := now.at.Sub(s.last.at)
		if now.input == events && now.output >= due && idle > quiet+2*b.commit {
			return between(s.first, s.end, s.first.progress(events, due), b.input.Events)
		}
		if idle > stuckAfter {
			return measurement{}, fmt.Errorf("stuck: no progress for %v; %d of %d events are read, and the output's offsets end at %d of at least %d",
				stuckAfter, now.input, events, now.output, due)
		}
	}
}

// span is the measured part of a contender's work.
type span struct {
	first moment // the first sample after the warm-up
	end   moment // the sample at the last output
	last  moment // the sample at the last progress
}

// add takes a sample and reports whether it shows progress. Flink commits the offsets of its group up to 10 s
// after its output, so a change of these offsets does not move the end of the measurement.
func (s *span) add(now moment, warm bool) bool {
	if now.input == s.last.input && now.output == s.last.output {
		return false
	}
	if now.output != s.last.output {
		s.end = now
	}
	s.last = now
	if s.first.at.IsZero() && warm {
		s.first = now
	}
	return true
}

func (b benchmark) look(ctx context.Context, contender running, task bench.Task) (m moment, err error) {
	if m.input, err = b.broker.Committed(ctx, task.Group(), task.Input); err != nil {
		return m, err
	}
	if m.output, err = b.broker.Ends(ctx, task.Output()); err != nil {
		return m, err
	}
	m.at = time.Now()
	if m.contender, err = contender.process.Usage(); err != nil {
		return m, err
	}
	if contender.keys != nil {
		if m.server, err = contender.keys.CPU(); err != nil {
			return m, err
		}
	}
	m.broker, err = b.broker.Usage()
	return m, err
}

// between returns the measurement between two samples. At the first sample the share done of the events was
// processed, at the last sample all events.
func between(first, last moment, done float64, events int) (measurement, error) {
	took, passed := last.at.Sub(first.at), (1-done)*float64(events)
	if took <= 0 || passed <= 0 {
		return measurement{}, errors.New("all events were emitted at once: raise -events")
	}
	return measurement{
		Rate:            passed / took.Seconds(),
		CPUMicros:       float64((last.contender.CPU - first.contender.CPU).Microseconds()) / passed,
		BrokerCPUMicros: float64((last.broker.CPU - first.broker.CPU).Microseconds()) / passed,
		RSSMaxMiB:       float64(last.contender.RSSMax) / (1 << 20),
		ServerCPUMicros: float64((last.server - first.server).Microseconds()) / passed,
	}, nil
}
