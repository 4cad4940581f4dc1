//go:build unix

package main_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/cmd/oncebus/cli"
	"oncebus/processor/kafkatest"
	"oncebus/processor/kafkatest/program"
)

// realMirror copies the input topic to another cluster. It repeats a share of the records, as a
// mirror does that goes on from its last commit.
type realMirror struct {
	from, to *world
	mu       sync.Mutex
	next     map[int32]int64 // offset to copy, by partition
	repeated int
	err      error
}

func (m *realMirror) run(ctx context.Context) {
	client, err := kgo.NewClient(kgo.SeedBrokers(m.from.seeds...), kgo.ConsumeTopics(m.from.topic("signals.raw")),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	if err != nil {
		m.fail(err)
		return
	}
	defer client.Close()
	recent := map[int32][]*kgo.Record{}
	for polls := 1; ctx.Err() == nil; polls++ {
		records := client.PollFetches(ctx).Records()
		var copies []*kgo.Record
		for _, r := range records {
			one := mirrored(r)
			copies = append(copies, one)
			recent[r.Partition] = append(recent[r.Partition], r)
		}
		if polls%50 == 0 {
			for p, all := range recent {
				repeat := all[max(0, len(all)-50-rand.IntN(450)):]
				for _, r := range repeat {
					copies = append(copies, mirrored(r))
				}
				m.repeated += len(repeat)
				recent[p] = all[max(0, len(all)-500):]
			}
		}
		// Not the mirror's context: a cancelled record may be written.
		if err := m.to.producer.ProduceSync(context.Background(), copies...).FirstErr(); err != nil {
			m.fail(err)
			return
		}
		m.mu.Lock()
		for _, r := range records {
			m.next[r.Partition] = r.Offset + 1
		}
		m.mu.Unlock()
	}
}

// mirrored returns the copy of a record.
func mirrored(r *kgo.Record) *kgo.Record {
	return &kgo.Record{Topic: r.Topic, Partition: r.Partition, Key: r.Key, Value: r.Value, Headers: r.Headers, Timestamp: r.Timestamp}
}

func (m *realMirror) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.err = errors.Join(m.err, err)
}

// awaitAll waits until all records of the input are copied.
func (m *realMirror) awaitAll() {
	eventually(m.from.t, "the mirror to copy all records", func(ctx context.Context) error {
		ends, err := m.from.admin.ListEndOffsets(ctx, m.from.topic("signals.raw"))
		if err != nil {
			return err
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		behind := m.err
		ends.Each(func(o kadm.ListedOffset) {
			if m.next[o.Partition] < o.Offset {
				behind = fmt.Errorf("%s/%d is copied to %d of %d", o.Topic, o.Partition, m.next[o.Partition], o.Offset)
			}
		})
		return behind
	})
}

// killed starts a command, kills it with SIGKILL after a time, and reports whether it had ended.
func (w *world) killed(name string, after time.Duration, args ...string) (ended bool) {
	w.t.Helper()
	p := w.command(name, args...)
	ctx, cancel := context.WithTimeout(w.t.Context(), after)
	defer cancel()
	_, err := p.ExitCode(ctx)
	if err := p.Kill(); err != nil {
		w.t.Fatal(err)
	}
	return err == nil
}

// runKilled kills a command at several times after its start, and then runs it to its end.
func (w *world) runKilled(args ...string) (stdout string) {
	w.t.Helper()
	ended := 0
	for n, after := range []time.Duration{60 * time.Millisecond, 120 * time.Millisecond, 250 * time.Millisecond} {
		if w.killed(fmt.Sprintf("%s-%d", args[0], n), after, args...) {
			ended++
		}
	}
	stdout, stderr, code := w.oncebus("", args...)
	if code != cli.ExitStopped {
		w.t.Fatalf("oncebus %v: exit code %d\n%s%s", args, code, stdout, stderr)
	}
	w.t.Logf("oncebus %v, killed %d times before:\n%s", args, 3-ended, stdout)
	return stdout
}

// TestRealCluster moves an app from one Kafka to another under load, with a mirror that repeats
// records. Each command of the page is killed with SIGKILL, and so is a process at each step.
// Every key is emitted once by both clusters together.
func TestRealCluster(t *testing.T) {
	t.Parallel()
	rate := int(loadRate)
	brokers := []*kafkatest.Broker{kafkatest.Start(t), kafkatest.Start(t)}
	app := fmt.Sprintf("cluster-%06x", rand.N(1<<24))
	old := newWorldOf(t, app, seedRoutes, brokers[0].Seeds(), brokers[0].Admin(), false)
	fresh := newWorldOf(t, app, seedRoutes, brokers[1].Seeds(), brokers[1].Admin(), false)
	for _, w := range []*world{old, fresh} {
		w.binary = program.Release
		w.createTopics(nil, seedInputs...)
	}
	a, b := old.start("a"), old.start("b")
	a.awaitReady()
	b.awaitReady()

	running, stopAll := context.WithCancel(t.Context())
	var all sync.WaitGroup
	m := &realMirror{from: old, to: fresh, next: map[int32]int64{}}
	all.Go(func() { m.run(running) })
	pauses := newOutputPauses()
	for _, w := range []*world{old, fresh} {
		consumer, err := kgo.NewClient(kgo.SeedBrokers(w.seeds...), kgo.ConsumeTopics(w.topic("signals.unique")), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.MetadataMinAge(100*time.Millisecond), kgo.UnknownTopicRetries(-1))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(consumer.Close)
		all.Go(func() { pauses.watch(running, consumer) })
	}
	traffic := &seedTraffic{w: old, keys: 1}
	sending, stopSending := context.WithCancel(t.Context())
	var senders sync.WaitGroup
	senders.Go(func() { traffic.run(sending, rate) })
	old.awaitOutputs(pauses)
	pauses.begin("in the old cluster")
	old.awaitEnds("signals.raw", int64(5*rate))
	a.kill()
	a = old.start("a")
	a.awaitReady()

	pauses.begin("moving")
	file := filepath.Join(old.dir, "app.obx1")
	b.kill()
	b = old.start("b")
	old.runKilled("hold", "--leaving", "--reason", "a test")
	a.kill()
	old.runKilled("export", "--leaving", "--force", file)
	for n, after := range []time.Duration{60 * time.Millisecond, 200 * time.Millisecond, 400 * time.Millisecond} {
		fresh.killed(fmt.Sprint("arrive-first-", n), after, "arrive", file)
	}
	eventually(t, "the mirror to come to the held offsets", func(context.Context) error {
		stdout, stderr, code := fresh.oncebus("", "arrive", file)
		if code != cli.ExitStopped {
			return errors.New(stderr)
		}
		t.Log(stdout)
		return nil
	})
	fresh.runKilled("arrive", file) // again
	if _, stderr, code := fresh.oncebus("", "release"); code == cli.ExitStopped || !strings.Contains(stderr, "does not have all of its keys yet") {
		t.Errorf("release before the seed: exit code %d, %s", code, stderr)
	}
	c, d := fresh.start("a"), fresh.start("b")
	c.awaitReady()
	d.awaitReady()
	fresh.killed("seed-first", 300*time.Millisecond, "seed", file)
	c.kill()
	c = fresh.start("a")
	c.awaitReady()
	fresh.runKilled("seed", file)
	fresh.runKilled("verify", file)
	fresh.killed("release-first", 60*time.Millisecond, "release")
	d.kill()
	if _, stderr, code := fresh.oncebus("", "release"); code != cli.ExitStopped {
		t.Fatalf("release: exit code %d, %s", code, stderr)
	}
	old.runKilled("hold", "--left")
	d = fresh.start("b")
	d.awaitReady()
	fresh.awaitEnds("signals.unique", int64(rate))
	pauses.begin("in the new cluster")
	fresh.awaitEnds("signals.unique", int64(3*rate))
	pauses.begin("")

	stopSending()
	senders.Wait()
	if traffic.err != nil {
		t.Fatal(traffic.err)
	}
	m.awaitAll()
	fresh.drained(seedInputs, seedOutputs)
	stopAll()
	all.Wait()
	if m.err != nil {
		t.Fatal(m.err)
	}
	checkMoved(t, traffic.next, old, fresh)
	t.Logf("%d records were repeated by the mirror", m.repeated)
	pauses.log(t)
	b.stop()
	c.stop()
	d.stop()
}

// awaitEnds waits until the ends of a topic add up to a number of offsets.
func (w *world) awaitEnds(name string, least int64) {
	w.t.Helper()
	eventually(w.t, fmt.Sprintf("%d offsets in %s", least, name), func(ctx context.Context) error {
		ends, err := w.admin.ListCommittedOffsets(ctx, w.topic(name))
		if err != nil {
			return err
		}
		n := int64(0)
		ends.Each(func(o kadm.ListedOffset) { n += o.Offset })
		if n < least {
			return fmt.Errorf("there are %d", n)
		}
		return nil
	})
}

// checkMoved compares the outputs of both clusters with the ids that were sent.
func checkMoved(t *testing.T, sent int, old, fresh *world) {
	t.Helper()
	before, after := old.output("signals.unique"), fresh.output("signals.unique")
	checkEmitted(t, "t", sent, before, after)
	t.Logf("%d emitted in the old cluster, %d in the new one", len(before), len(after))
	if len(before) == 0 || len(after) == 0 {
		t.Error("a cluster emitted nothing")
	}
	for _, w := range []*world{old, fresh} {
		if dead := w.output("dead-letter"); len(dead) > 0 {
			t.Errorf("%d dead letters", len(dead))
		}
	}
}
