package processor_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/processor"
	"oncebus/processor/app"
	"oncebus/processor/kafka"
)

// batch makes n events whose ids begin with name, spread over the partitions of signals.raw.
func batch(name string, n int) []*kgo.Record {
	var records []*kgo.Record
	for at := range n {
		records = append(records, signal(fmt.Sprint(name, "-", at), int32(at%4), testTime))
	}
	return records
}

// assertOut checks that exactly these batches were emitted, each event once.
func assertOut(t *testing.T, b *bench, want ...[]*kgo.Record) {
	t.Helper()
	var got, keys []string
	for _, r := range b.read("signals.unique") {
		got = append(got, string(r.Key))
	}
	for _, records := range want {
		for _, r := range records {
			keys = append(keys, string(r.Key))
		}
	}
	slices.Sort(got)
	slices.Sort(keys)
	if !slices.Equal(got, keys) {
		t.Errorf("output holds %v\nwant %v", got, keys)
	}
}

func (b *bench) latest(instance string) processor.Config {
	cfg := b.config(instance)
	cfg.Start = app.StartLatest
	return cfg
}

// TestStartEarliestTakesWhatIsThere protects the default: a first start reads the topics from their beginning.
func TestStartEarliestTakesWhatIsThere(t *testing.T) {
	t.Parallel()
	bothWays(t, benchRoutes, func(t *testing.T, routes string) {
		b := newBench(t, routes)
		b.createTopic("signals.raw", 4)
		before, after := batch("before", 8), batch("after", 8)
		b.produce(before...)
		i := b.ready(b.start(b.config("one")))
		b.produce(after...)
		b.drain(i, "signals.raw")
		assertOut(t, b, before, after)
	})
}

// TestStartLatestTakesOnlyWhatComes protects that "latest" leaves out the events that were in the raw topic before
// the first start.
func TestStartLatestTakesOnlyWhatComes(t *testing.T) {
	t.Parallel()
	bothWays(t, benchRoutes, func(t *testing.T, routes string) {
		b := newBench(t, routes)
		b.createTopic("signals.raw", 4)
		b.produce(batch("before", 8)...)
		i := b.ready(b.start(b.latest("one")))
		after := batch("after", 8)
		b.produce(after...)
		b.drain(i, "signals.raw")
		assertOut(t, b, after)
	})
}

// TestStartLatestIsDecidedOnce protects that the offset at which a first start began is committed when the process is
// ready, and not with the first event. The next "latest" therefore does not skip events that come while the process
// is down.
func TestStartLatestIsDecidedOnce(t *testing.T) {
	t.Parallel()
	bothWays(t, benchRoutes, func(t *testing.T, routes string) {
		b := newBench(t, routes)
		b.createTopic("signals.raw", 4)
		b.produce(batch("before", 8)...)
		cfg := b.latest("one")
		if err := b.ready(b.start(cfg)).stop(); err != nil {
			t.Fatal(err)
		}
		meanwhile := batch("meanwhile", 8)
		b.produce(meanwhile...)
		i := b.ready(b.start(cfg))
		after := batch("after", 8)
		b.produce(after...)
		b.drain(i, "signals.raw")
		assertOut(t, b, meanwhile, after)
	})
}

// TestStartLatestWithSeveralWorkers protects that every worker begins at "latest", whichever worker commits first.
// The group decides the order, so the test starts several times.
func TestStartLatestWithSeveralWorkers(t *testing.T) {
	t.Parallel()
	rounds := 5
	if testing.Short() {
		rounds = 2
	}
	for round := range rounds {
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			b := newBench(t, benchRoutes)
			b.createTopic("signals.raw", 4)
			b.produce(batch("before", 40)...)
			cfg := b.latest("one")
			cfg.Workers = 4
			i := b.ready(b.start(cfg))
			b.wait("all members to have a partition", func() bool {
				info := b.cluster.GroupInfo(app.GroupName("app", processor.StageRoute))
				return info != nil && len(info.Members) == 4 && i.Ready() == nil
			})
			after := batch("after", 8)
			b.produce(after...)
			b.drain(i, "signals.raw")
			assertOut(t, b, after)
		})
	}
}

// TestAddedPartitionStartsAtItsBeginning protects that an added partition is read from its beginning: it has events
// before the process knows of it, and "latest" was meant for the events before the first start.
func TestAddedPartitionStartsAtItsBeginning(t *testing.T) {
	t.Parallel()
	for _, start := range []string{app.StartEarliest, app.StartLatest} {
		t.Run(start, func(t *testing.T) {
			b := newBench(t, benchRoutes)
			b.createTopic("signals.raw", 4)
			b.produce(batch("before", 8)...)
			cfg := b.config("one")
			cfg.Start = start
			// By default a client looks for new partitions every few minutes; here it looks at once.
			i := b.ready(b.start(cfg, kgo.MetadataMaxAge(300*time.Millisecond)))
			b.grow("signals.raw")
			added := []*kgo.Record{signal("added-1", 4, testTime), signal("added-2", 4, testTime)}
			client := b.newClient() // the bench's own knows four partitions
			if err := client.ProduceSync(t.Context(), added...).FirstErr(); err != nil {
				t.Fatal(err)
			}
			b.wait("the added partition to be read", func() bool {
				offsets, err := b.admin.FetchOffsets(t.Context(), app.GroupName("app", processor.StageRoute))
				if err != nil {
					return false
				}
				at, ok := offsets.Lookup("signals.raw", 4)
				return ok && at.At == 2
			})
			b.drain(i, "signals.raw")
			var before []*kgo.Record
			if start == app.StartEarliest {
				before = batch("before", 8)
			}
			assertOut(t, b, added, before)
		})
	}
}

// TestAddedPartitionIsNoticed protects that a process notices an added partition early. Only the clients' own
// metadata requests show the partition, and franz-go by itself makes one in 5 minutes, which is longer than this test
// waits.
func TestAddedPartitionIsNoticed(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	b.ready(b.start(b.config("one")))
	b.grow("signals.raw")
	if err := b.newClient().ProduceSync(t.Context(), signal("added", 4, testTime)).FirstErr(); err != nil {
		t.Fatal(err)
	}
	b.wait("the event of the added partition", func() bool { return len(b.read("signals.unique")) == 1 })
}

// TestPartitionAddedToTheRepartitionTopic protects that the process stops with the same advice that its next start
// gives. A second, contradicting advice would send the operator in a circle.
func TestPartitionAddedToTheRepartitionTopic(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	cfg := b.config("one")
	i := b.ready(b.start(cfg, kgo.MetadataMaxAge(300*time.Millisecond)))
	b.grow("app-repartition")
	b.stops(i)
	const advice = "topic app-repartition has got partition 4, the app began with 4 partitions"
	if !errors.Is(i.err, kafka.ErrOperator) || !strings.Contains(i.err.Error(), advice) {
		t.Errorf("the process stopped with %v", i.err)
	}
	b.refused(cfg, advice)
	b.grow("app-repartition-changelog") // what somebody might try
	b.refused(cfg, advice)
}

// stops waits until an instance ends by itself.
func (b *bench) stops(i *instance) {
	b.t.Helper()
	b.wait("the process to stop", func() bool {
		select {
		case <-i.done:
			return true
		default:
			return false
		}
	})
}

// TestRestartTakesOverAtOnce protects that a process which comes back under its name gets its partitions from the
// group without waiting until its former member expires.
func TestRestartTakesOverAtOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	cfg := b.config("one")
	cfg.SessionTimeout = 4 * time.Minute // far beyond the patience of this test
	members := func() (all []string) {
		for _, stage := range []string{processor.StageRoute, processor.StageDedup} {
			for _, m := range b.cluster.GroupInfo(app.GroupName("app", stage)).Members {
				all = append(all, *m.InstanceID) // nil, and a panic, for a member that is not static
			}
		}
		return all
	}
	first, second, third := batch("first", 8), batch("second", 8), batch("third", 8)
	for n, records := range [][]*kgo.Record{first, second, third} {
		i := b.ready(b.start(cfg))
		b.produce(records...)
		b.drain(i, "signals.raw")
		if got, want := members(), []string{"app-one-route-0", "app-one-dedup-0"}; !slices.Equal(got, want) {
			t.Errorf("start %d: members %v, want %v", n, got, want)
		}
		if err := i.stop(); err != nil {
			t.Fatal(err)
		}
	}
	assertOut(t, b, first, second, third)
}

// TestStartGoesOnAfterARefusedProducerID refuses once to give the client of the start a producer id. An idempotent
// client never works after that, and would keep the process from ever starting. The simulation found this.
func TestStartGoesOnAfterARefusedProducerID(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	fault := b.cluster.Fault(kfake.Fault{
		Keys: []kmsg.Key{kmsg.InitProducerID}, Err: kerr.UnknownServerError,
		When: func(req kmsg.Request) bool { return req.(*kmsg.InitProducerIDRequest).TransactionalID == nil },
	})
	i := b.ready(b.start(b.config("one")))
	fault.Remove()
	b.produce(signal("a", 0, testTime))
	b.drain(i, "signals.raw")
	if out := b.read("signals.unique"); len(out) != 1 {
		t.Errorf("%d records in the output, want 1", len(out))
	}
}
