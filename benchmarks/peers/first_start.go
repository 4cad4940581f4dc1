//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"oncebus/benchmarks/internal/bench"
	"oncebus/benchmarks/internal/peers"
	"oncebus/processor/kafkatest"
	"oncebus/processor/kafkatest/program"
)

const (
	// readMax limits the time in which a system reads a history. Peers whose watermarks are aligned advance by one
	// window per second.
	readMax = 10 * time.Minute
	// silent is how long the output must not have grown before it is read.
	silent = 10 * time.Second
	// markers is how many records at the end of a partition of a repartition topic may be something other than
	// events.
	markers = 10
	// firstStartGuess estimates how long one system takes for one history.
	firstStartGuess = 30 * time.Second
)

// firstStart is the result of one system that was started on a history for the first time.
type firstStart struct {
	shape
	tally

	System string
	Events int
}

// runHistories starts each system for the first time, on each history.
func runHistories(ctx context.Context, s settings) (err error) {
	machine := bench.ThisMachine()
	all := []system{{name: "oncebus"}}
	for _, peer := range peers.InEventTime() {
		all = append(all, system{name: peer.Name, peer: &peer})
	}
	all, err = peers.Choose(ctx, all, s.only, func(s system) (string, *peers.Peer) { return s.name, s.peer })
	if err != nil {
		return err
	}
	progress, err := bench.StartProgress(len(all)*len(s.histories), firstStartGuess)
	if err != nil {
		return err
	}
	broker, err := bench.StartBroker(ctx, "peers")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, broker.Close()) }()
	var results []firstStart
	for i, shape := range s.histories {
		h := history{settings: s, shape: shape, broker: broker, name: fmt.Sprintf("history%d", i), events: pasts(shape, s.seed, s.ids, s.partitions)}
		if err := h.fill(ctx); err != nil {
			return err
		}
		for _, system := range all {
			r := firstStart{shape: shape, System: system.name, Events: len(h.events)}
			if r.tally, err = h.start(ctx, system); err != nil {
				return fmt.Errorf("%s on %s: %w", system.name, shape.Name, err)
			}
			progress.Done("%s, %s: %+v", shape.Name, system.name, r.tally)
			results = append(results, r)
		}
		if err := broker.DeleteApp(ctx, h.name); err != nil {
			return err
		}
	}
	return machine.Publish(s.results, bench.Report{
		Title: "Peers, first start on a topic with history", Name: "peers", File: "peers-history", Text: historyTable(s, results), Result: results,
	})
}

// history is a topic whose events reach far into the past.
type history struct {
	settings
	shape

	broker *bench.Broker
	name   string
	events []past
}

func (h history) input() string { return h.name + "-input" }

// create creates topics that keep records of any age.
func (h history) create(ctx context.Context, topics ...string) error {
	if err := h.broker.CreateTopics(ctx, h.partitions, topics...); err != nil {
		return err
	}
	forever := "-1"
	altered, err := h.broker.Admin().AlterTopicConfigs(ctx, []kadm.AlterConfig{{Name: "retention.ms", Value: &forever}}, topics...)
	for _, topic := range altered {
		err = errors.Join(err, topic.Err)
	}
	return err
}

// fill creates the topic and fills it. The history ends at the current time.
func (h history) fill(ctx context.Context) error {
	if err := h.create(ctx, h.input()); err != nil {
		return err
	}
	return produce(ctx, h.broker.Seeds(), h.input(), h.events, h.ids, time.Now().Add(-h.Span))
}

// start starts a system on the history. When the system is done, start counts what it has written.
func (h history) start(ctx context.Context, s system) (t tally, err error) {
	app := h.name + "-" + strings.ToLower(strings.ReplaceAll(s.name, " ", "-"))
	task := bench.Task{
		App: app, Brokers: h.broker.Seeds(), Input: h.input(), Partitions: h.partitions, Workers: 1, Commit: h.commit,
		StateDir: filepath.Join(h.broker.Dir, app), Window: h.Window, Payload: true,
	}
	if s.peer == nil {
		task.Role, task.Route = bench.Role{Oncebus: true, Routed: true}, "    time:\n      field: ts\n"
	}
	if err := errors.Join(h.create(ctx, task.Topics()...), os.MkdirAll(task.StateDir, 0o755)); err != nil {
		return t, err
	}
	defer func() {
		err = errors.Join(err, h.broker.DeleteApp(context.WithoutCancel(ctx), app), os.RemoveAll(task.StateDir))
	}()
	if err := h.read(ctx, s, task); err != nil {
		return t, err
	}
	out, err := idsIn(ctx, h.broker.Seeds(), task.Output(), h.ids)
	if err != nil {
		return t, err
	}
	late, err := idsIn(ctx, h.broker.Seeds(), task.Side(), h.ids)
	if err != nil {
		return t, err
	}
	return tallyOf(out, late), nil
}

// read runs one process of the system until it has read the whole input and its output does not grow any more.
func (h history) read(ctx context.Context, s system, task bench.Task) (err error) {
	var cmd *exec.Cmd
	if s.peer == nil {
		cmd, err = task.Command(context.WithoutCancel(ctx))
	} else {
		cmd, err = s.peer.Command(context.WithoutCancel(ctx), task, nil)
	}
	if err != nil {
		return err
	}
	process, err := program.Start(s.name, cmd, filepath.Join(task.StateDir, "process.log"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, process.Stop()) }()
	ctx, cancel := context.WithTimeout(ctx, readMax)
	defer cancel()
	ctx, end := bench.While(ctx, process)
	defer end(nil)
	written, since := int64(-1), time.Now()
	return kafkatest.AwaitEvery(ctx, 500*time.Millisecond, s.name+" has read the history", func(ctx context.Context) error {
		unread, err := h.unread(ctx, task)
		if err != nil {
			return err
		}
		out, err := h.broker.Ends(ctx, task.Output())
		if err != nil {
			return err
		}
		if out != written {
			written, since = out, time.Now()
		}
		if unread > 0 || time.Since(since) < silent {
			return fmt.Errorf("%d records are not read, %d are out", unread, out)
		}
		return nil
	})
}

// unread returns how many records of the input, and of a repartition topic, the system has not committed. In all
// systems the group that judges has the same name.
func (h history) unread(ctx context.Context, task bench.Task) (int64, error) {
	done, err := h.broker.Committed(ctx, task.Group(), task.Input)
	if err != nil {
		return 0, err
	}
	unread := int64(len(h.events)) - done
	topics, err := h.broker.Admin().ListTopics(ctx)
	if err != nil {
		return 0, err
	}
	for _, topic := range topics.Names() {
		if !strings.HasPrefix(topic, task.App+"-") || !strings.HasSuffix(topic, "-repartition") {
			continue
		}
		end, err := h.broker.Ends(ctx, topic)
		if err != nil {
			return 0, err
		}
		done, err := h.broker.Committed(ctx, bench.Task{App: task.App}.Group(), topic)
		if err != nil {
			return 0, err
		}
		// The last records of the partition are transaction markers and the progress records of oncebus.
		unread += max(0, end-done-int64(markers*h.partitions))
	}
	return unread, nil
}

// historyTable has a line for each system and history.
func historyTable(s settings, results []firstStart) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d ids, a fifth of them with a duplicate within %v, in %d partitions, seed %d. The events of each partition are in the order of their times. "+
		"A history is the time that it spans, and the window. Each partition has half of the events of the one before; `equal`: as many. "+
		"One process of each system was started for the first time after the history was written. Right is that each id comes out once. "+
		"Late are records that a system wrote to a topic of their own in place of the output.\n\n", s.ids, copyWithin, s.partitions, s.seed)
	b.WriteString("| history | system | events | out | ids once | ids doubled | ids that never came out | late |\n| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |\n")
	for _, r := range results {
		fmt.Fprintf(&b, "| %s | %s | %d | %d | %d | %d | %d | %d |\n", r.Name, r.System, r.Events, r.Out, r.Once, r.Doubled, r.Never, r.Late)
	}
	return b.String()
}
