package processor_test

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/wire"
)

// rotten is a word in each batch whose bytes a test changes on their way to a process.
const rotten = "rotten"

// rot returns a dialer whose connections change the bytes of fetched batches behind the word rotten. The function
// change gets the number of the response and the byte, and returns the new byte.
func rot(change func(n int64, b byte) byte) *spoilingDialer {
	var n atomic.Int64
	d := &spoilingDialer{api: kmsg.Fetch, match: "app-one", spoil: func(frame []byte) ([]byte, error) {
		turn := int64(0)
		for rest := frame; ; {
			at := bytes.Index(rest, []byte(rotten))
			if at < 0 {
				return frame, nil
			}
			if turn == 0 {
				turn = n.Add(1)
			}
			rest = rest[at+len(rotten):]
			rest[0] = change(turn, rest[0])
		}
	}}
	d.arm(math.MaxInt)
	return d
}

// onDisk changes a byte in the same way each time, as a disk does that has changed it.
func onDisk(_ int64, b byte) byte { return b ^ 1 }

// awaitCorrupt waits until a partition of the input is refused at a batch with this offset, and checks that there are
// exactly dead dead letters before an operator decides.
func (b *bench) awaitCorrupt(i *instance, offset int64, dead int) app.Refusal {
	b.t.Helper()
	b.wait("a refusal", func() bool {
		if n := len(b.read("dead")); n != dead {
			b.t.Fatalf("%d dead letters before a decision, want %d", n, dead)
		}
		return len(b.refusals()) > 0
	})
	return b.awaitRefused(i, app.TaskID{Topic: "signals.raw", Partition: 1}, &kgo.Record{Topic: "signals.raw", Partition: 1, Offset: offset})
}

// TestBatchWithAWrongChecksumWaits protects that only the partition of a batch with a wrong checksum waits. When an
// operator skips the batch, the batch becomes one dead letter with its offsets, and it stays skipped after a restart.
func TestBatchWithAWrongChecksumWaits(t *testing.T) {
	t.Parallel()
	bothWays(t, benchRoutes, func(t *testing.T, routes string) {
		t.Run("on disk", func(t *testing.T) {
			t.Parallel()
			b := newBench(t, routes)
			b.createTopic("signals.raw", 4)
			raw := rawBatchOf(t, kgo.NoCompression(), 3, 100, func(n int) string { return fmt.Sprint(rotten, "-", n) })
			i := b.ready(b.start(b.config("one"), kgo.Dialer(rot(onDisk).dial)))
			b.produce(signal("before", 1, testTime))
			first := b.produceBatch("signals.raw", 1, raw)
			b.produce(signal("after", 1, testTime))
			refusal := b.awaitCorrupt(i, first, 0)
			for _, part := range []string{
				fmt.Sprintf("the checksum of the batch at signals.raw/1/%d is wrong", first), fmt.Sprintf("the records at offsets %d to %d", first, first+2),
				"another replica", "oncebus accept --task signals.raw/1 --skip",
			} {
				if !strings.Contains(refusal.Text(), part) {
					t.Errorf("refused is %q, want %q in it", refusal.Text(), part)
				}
			}
			if err := i.Ready(); err == nil || !strings.Contains(err.Error(), refusal.Command()) {
				t.Errorf("ready is %v", err)
			}
			b.produce(signal("other", 2, testTime))
			b.wait("the events before it, and of another partition", func() bool { return len(b.read("signals.unique")) == 2 })
			if n := len(b.read("dead")); n != 0 {
				t.Errorf("%d dead letters before a decision", n)
			}
			b.accept([]app.Refusal{refusal}, app.SkipRecord, false)
			b.wait("the dead letter and the event behind it", func() bool { return len(b.read("dead")) == 1 && len(b.read("signals.unique")) == 3 })
			last := b.produceBatch("signals.raw", 1, raw)
			b.produce(signal("last", 1, testTime))
			b.accept([]app.Refusal{b.awaitCorrupt(i, last, 1)}, app.SkipRecord, false)
			b.wait("the second dead letter", func() bool { return len(b.read("dead")) == 2 && len(b.read("signals.unique")) == 4 })
			b.ready(i)
			must(t, i.stop())
			b.produce(signal("end", 1, testTime))
			b.ready(b.start(b.config("one"), kgo.Dialer(rot(onDisk).dial)))
			b.wait("the end", func() bool { return len(b.read("signals.unique")) == 5 })
			want := map[string]string{fmt.Sprint("signals.raw/1/", first): fmt.Sprint("signals.raw/1/", first+2), fmt.Sprint("signals.raw/1/", last): fmt.Sprint("signals.raw/1/", last+2)}
			for _, r := range b.read("dead") {
				source := header(r, wire.HeaderSource)
				if want[source] != header(r, wire.HeaderBatchLast) || !strings.Contains(header(r, wire.HeaderReason), "its checksum is wrong") {
					t.Errorf("dead letter of %s has headers %v", source, r.Headers)
				}
				delete(want, source)
			}
			if len(want) > 0 {
				t.Errorf("no dead letter of %v", want)
			}
		})
	})
}

// TestChecksumThatIsRightByThenIsRead lets a replica that has the batch intact become the leader before an operator
// decides. The events of the batch are emitted, and there is no dead letter.
func TestChecksumThatIsRightByThenIsRead(t *testing.T) {
	t.Parallel()
	bothWays(t, benchRoutes, func(t *testing.T, routes string) {
		t.Run("moved", func(t *testing.T) {
			t.Parallel()
			b := newBench(t, routes)
			b.createTopic("signals.raw", 4)
			events := []*kgo.Record{signal("before", 1, testTime), signal(rotten+"-", 1, testTime), signal("after", 1, testTime)}
			d := rot(onDisk)
			i := b.ready(b.start(b.config("one"), kgo.Dialer(d.dial)))
			for _, r := range events {
				b.produce(r)
			}
			refusal := b.awaitCorrupt(i, events[1].Offset, 0)
			d.arm(0)
			b.accept([]app.Refusal{refusal}, app.SkipRecord, false)
			b.drain(b.ready(i), "signals.raw")
			assertOut(t, b, events)
			if n := len(b.read("dead")); n != 0 {
				t.Errorf("%d dead letters", n)
			}
		})
	})
}

// TestDamagedEndOfABatchTakesNoEvent damages the last offset of a batch, so that a skip to that offset would take
// later events with it. These events are emitted, and the dead letter names only the offsets before them.
func TestDamagedEndOfABatchTakesNoEvent(t *testing.T) {
	t.Parallel()
	bothWays(t, benchRoutes, func(t *testing.T, routes string) {
		t.Run("end", func(t *testing.T) {
			t.Parallel()
			b := newBench(t, routes)
			b.createTopic("signals.raw", 4)
			raw := rawBatchOf(t, kgo.NoCompression(), 1, 100, func(int) string { return rotten })
			const lastByteOfTheDelta = 26
			back := bytes.Index(raw, []byte(rotten)) - lastByteOfTheDelta
			d := &spoilingDialer{api: kmsg.Fetch, match: "app-one", spoil: func(frame []byte) ([]byte, error) {
				if at := bytes.Index(frame, []byte(rotten)); at >= 0 {
					frame[at-back] |= 4
				}
				return frame, nil
			}}
			d.arm(math.MaxInt)
			events := []*kgo.Record{signal("a", 1, testTime), signal("b", 1, testTime), signal("c", 1, testTime), signal("d", 1, testTime), signal("e", 1, testTime)}
			i := b.ready(b.start(b.config("one"), kgo.Dialer(d.dial)))
			b.produce(events[0])
			first := b.produceBatch("signals.raw", 1, raw)
			for _, r := range events[1:] {
				b.produce(r)
			}
			b.accept([]app.Refusal{b.awaitCorrupt(i, first, 0)}, app.SkipRecord, false)
			b.drain(b.ready(i), "signals.raw")
			assertOut(t, b, events)
			dead := b.read("dead")
			if at := fmt.Sprint("signals.raw/1/", first); len(dead) != 1 || header(dead[0], wire.HeaderSource) != at || header(dead[0], wire.HeaderBatchLast) != at {
				t.Errorf("dead letters %v", dead)
			}
		})
	})
}

// TestFaultsOfTheNetworkStopNoPartition changes bytes on their way, once or in another way each time. The worker
// reads them again until they are right.
func TestFaultsOfTheNetworkStopNoPartition(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(n int64, b byte) byte{
		"once":  func(n int64, b byte) byte { return b ^ byte(1/n) },
		"twice": func(n int64, b byte) byte { return b ^ byte(2/n) },
		"in other ways": func(n int64, b byte) byte {
			if n < 10 {
				return b ^ byte(n)
			}
			return b
		},
	} {
		bothWays(t, benchRoutes, func(t *testing.T, routes string) {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				b := newBench(t, routes)
				b.createTopic("signals.raw", 4)
				events := []*kgo.Record{signal("before", 1, testTime), signal(rotten+"-", 1, testTime), signal("after", 1, testTime)}
				for _, r := range events {
					b.produce(r)
				}
				i := b.ready(b.start(b.config("one"), kgo.Dialer(rot(change).dial)))
				whole := func() {
					if n := len(b.read("dead")) + len(b.refusals()); n != 0 {
						t.Fatalf("%d dead letters and refusals", n)
					}
				}
				b.wait("the events", func() bool { whole(); return len(b.read("signals.unique")) == len(events) })
				b.drain(i, "signals.raw")
				assertOut(t, b, events)
				whole()
			})
		})
	}
}

// TestWrongChecksumInTheRepartitionTopic protects that a wrong checksum in the repartition topic waits for an
// operator who skips the batch, while the other tasks go on.
func TestWrongChecksumInTheRepartitionTopic(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	i := b.ready(b.start(b.config("one"), kgo.Dialer(rot(onDisk).dial)))
	first := b.produceBatch("app-repartition", 3, rawBatchOf(t, kgo.NoCompression(), 3, 100, func(n int) string { return fmt.Sprint(rotten, "-", n) }))
	b.skipInRepartition(i, first, fmt.Sprintf("app-repartition/3/%d is wrong; it has the records at offsets %d to %d", first, first, first+2))
}

// TestWrongChecksumWithoutAnEndIsShown covers a batch with a wrong checksum of which nothing shows where it ends.
// Then no operator is asked; the process is not ready, and says why, until the bytes are right.
func TestWrongChecksumWithoutAnEndIsShown(t *testing.T) {
	t.Parallel()
	bothWays(t, benchRoutes, func(t *testing.T, routes string) {
		t.Run("no end", func(t *testing.T) {
			t.Parallel()
			b := newBench(t, routes)
			b.createTopic("signals.raw", 4)
			d := rot(onDisk)
			i := b.ready(b.start(b.config("one"), kgo.Dialer(d.dial)))
			events := []*kgo.Record{signal("before", 1, testTime), signal(rotten+"-1", 1, testTime), signal(rotten+"-2", 1, testTime)}
			for _, r := range events {
				b.produce(r)
			}
			why := fmt.Sprintf("batch of signals.raw/1 at offset %d or behind it: its checksum is wrong, and no whole batch behind it", events[1].Offset)
			b.wait("the reason", func() bool { err := i.Ready(); return err != nil && strings.Contains(err.Error(), why) })
			if s := i.State(); !strings.Contains(s.Reason, why) {
				t.Errorf("the state has the reason %q", s.Reason)
			}
			for _, task := range i.State().Tasks {
				if task.Task == "signals.raw/1" && (!strings.Contains(task.Reason, why) || task.Lag == 0 || task.LagSeconds == 0) {
					t.Errorf("task %+v, want the reason in it, and a lag", task)
				}
			}
			if n := len(b.refusals()); n != 0 {
				t.Errorf("%d refusals", n)
			}
			d.arm(0)
			b.drain(b.ready(i), "signals.raw")
			assertOut(t, b, events)
		})
	})
}

// TestTheClientNamesAWrongChecksum pins the text of franz-go's error that kafka.IsCorrupt looks for.
func TestTheClientNamesAWrongChecksum(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	b.createTopic("signals.raw", 4)
	b.produce(signal(rotten+"-", 3, testTime))
	client := b.newClient(kgo.ClientID("app-one"), kgo.ConsumeTopics("signals.raw"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.Dialer(rot(onDisk).dial))
	polled := client.PollFetches(t.Context())
	var found error
	polled.EachError(func(_ string, _ int32, err error) { found = err })
	if !kafka.IsCorrupt(found) {
		t.Errorf("polled %v", found)
	}
}

// TestCommandsReadAroundAWrongChecksum protects that the reader of a command returns the records before a batch with
// a wrong checksum, and then an error with the offsets of the batch, as for a batch that is too large. The command
// can then go on behind the batch.
func TestCommandsReadAroundAWrongChecksum(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	b.createTopic("signals.raw", 4)
	b.produce(signal("before", 3, testTime))
	first := b.produceBatch("signals.raw", 3, rawBatchOf(t, kgo.NoCompression(), 3, 100, func(n int) string { return fmt.Sprint(rotten, "-", n) }))
	b.produce(signal("after", 3, testTime))
	meta, err := b.admin.Metadata(t.Context(), "signals.raw")
	must(t, err)
	client := b.newClient(kgo.ClientID("app-one"), kgo.Dialer(rot(onDisk).dial))
	reader := kafka.NewReader(client, "signals.raw", meta.Topics["signals.raw"].ID, 3)
	var keys []string
	each := func(records []*kgo.Record, _ int64) error {
		for _, r := range records {
			keys = append(keys, string(r.Key))
		}
		return nil
	}
	var batch *kgo.ErrDecompressTooLarge
	if err := reader.Read(t.Context(), 0, first+4, each); !errors.As(err, &batch) || batch.Offset != first || batch.NextOffset != first+3 {
		t.Fatalf("reading ended with %v", err)
	}
	must(t, reader.Read(t.Context(), batch.NextOffset, first+4, each))
	if want := []string{string(signal("before", 3, testTime).Key), string(signal("after", 3, testTime).Key)}; !slices.Equal(keys, want) {
		t.Errorf("read %q, want %q", keys, want)
	}
}
