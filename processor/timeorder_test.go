package processor

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/processor/app"
	"oncebus/processor/kafka"
)

// orderedMS is the time of the first records of these tests; minuteMS is a minute.
const orderedMS, minuteMS = int64(900_000_000_000), int64(60_000)

// orderingBench is the time order of one worker, together with what the order asked the worker to do.
type orderingBench struct {
	*timeOrder
	t      *testing.T
	woken  int
	held   bool
	paused map[int32]bool // by the pacer
	offset map[int32]int64
}

// orderingApp has a route with a window of an hour, without grace: a source may be 7.5 minutes ahead.
func orderingApp() *app.App {
	clock := app.NewBrokerClock()
	clock.Set(orderedMS + 100_000*minuteMS)
	return &app.App{
		Clock: clock, TopicNumbers: map[string]uint16{"raw": 1, "outcomes": 2, "other": 3}, Sources: map[uint8][]uint16{0: {1}, 1: {3}},
		Routes: []*app.Route{{Span: dedup.Window{Size: 60 * minuteMS}}},
	}
}

func newOrderingBench(t *testing.T, s *shared) *orderingBench {
	b := &orderingBench{t: t, paused: map[int32]bool{}, offset: map[int32]int64{}}
	s.pacing.backlog = 5000
	b.timeOrder = newTimeOrder(s, orderingApp(), func() { b.woken++ }, func(id app.TaskID) bool { return b.paused[id.Partition] }, func() bool { return b.held }, newOversized())
	return b
}

// assignAll assigns partitions with a backlog of this number of records each.
func (b *orderingBench) assignAll(backlog int64, partitions ...int32) {
	for _, p := range partitions {
		b.assign(app.TaskID{Topic: "raw", Partition: p}, 0, backlog)
	}
	b.joined()
}

// fetched returns a poll of a partition that has left more records, with records of these minutes.
func (b *orderingBench) fetched(partition int32, left int64, minutes ...int64) kgo.FetchPartition {
	p := kgo.FetchPartition{Partition: partition}
	for _, m := range minutes {
		p.Records = append(p.Records, &kgo.Record{Topic: "raw", Partition: partition, Offset: b.offset[partition], Timestamp: time.UnixMilli(orderedMS + m*minuteMS)})
		b.offset[partition]++
	}
	p.LastStableOffset = b.offset[partition] + left
	return p
}

func pollOf(partitions ...kgo.FetchPartition) kgo.Fetches {
	return kgo.Fetches{{Topics: []kgo.FetchTopic{{Topic: "raw", Partitions: partitions}}}}
}

// want polls, and checks what is handed out: partition and minute of each record, and errors.
func (b *orderingBench) want(when string, fetches kgo.Fetches, n int, want ...string) {
	b.t.Helper()
	b.wantAfter(when, 0, fetches, n, want...)
}

func (b *orderingBench) wantAfter(when string, took time.Duration, fetches kgo.Fetches, n int, want ...string) {
	b.t.Helper()
	var got []string
	b.exchange(fetches, n, took).EachPartition(func(p kgo.FetchTopicPartition) {
		for _, r := range p.Records {
			got = append(got, fmt.Sprintf("%d:%d", p.Partition, (r.Timestamp.UnixMilli()-orderedMS)/minuteMS))
		}
		if p.Err != nil {
			got = append(got, fmt.Sprintf("%d:%v", p.Partition, p.Err))
		}
	})
	if !slices.Equal(got, want) {
		b.t.Errorf("%s: %v handed out, want %v", when, got, want)
	}
}

// nothing returns what a poll returns that ended without records.
func nothing() kgo.Fetches { return kgo.Fetches{{}} }

// pass lets time pass in a synctest bubble.
func pass(d time.Duration) { <-time.After(d) }

// TestBacklogsGoInTheOrderOfTime protects that a record is handed out only when no other partition may have an
// earlier record, apart from a fraction of a row's life. A partition at the end of its log makes no other partition
// wait.
func TestBacklogsGoInTheOrderOfTime(t *testing.T) {
	t.Parallel()
	b := newOrderingBench(t, &shared{})
	b.assignAll(1000, 0, 1, 2)
	b.want("the first fetch of the first partition", pollOf(b.fetched(0, 900, 10, 20, 30, 40)), 99)
	b.want("one is not fetched yet", pollOf(b.fetched(1, 900, 0, 15, 16, 25, 60)), 99)
	b.want("all are fetched", pollOf(b.fetched(2, 0, 5, 70)), 99, "1:0", "2:5", "0:10", "1:15", "1:16", "0:20", "1:25", "0:30", "0:40")
	b.want("one has nothing more yet", nothing(), 99)
	b.want("it has", pollOf(b.fetched(0, 0, 50)), 99, "0:50", "1:60")
	b.want("the last records of the log", pollOf(b.fetched(1, 0, 80)), 99, "2:70", "1:80")
	if b.isActive() {
		t.Error("order is kept without a backlog")
	}
	b.want("a live record", pollOf(b.fetched(1, 0, 5)), 99, "1:5")
}

// TestNoMoreIsHandedOutThanWanted protects that a transaction with room for fewer records gets the earliest ones.
func TestNoMoreIsHandedOutThanWanted(t *testing.T) {
	t.Parallel()
	b := newOrderingBench(t, &shared{})
	b.assignAll(1000, 0, 1)
	b.want("two of four", pollOf(b.fetched(0, 0, 10, 30), b.fetched(1, 0, 20, 40)), 2, "0:10", "1:20")
	if !b.mayGoOn() {
		t.Error("what waits may not go on")
	}
	b.held = true
	if b.want("the inputs are not observed yet", nothing(), 2); b.mayGoOn() {
		t.Error("what is held may go on")
	}
	b.held = false
	b.want("the others", nothing(), 2, "0:30", "1:40")
}

// TestLiveRecordsWaitForNoBacklog protects that live records go after a bounded time, also those of a partition that
// had a backlog while other partitions are still far behind.
func TestLiveRecordsWaitForNoBacklog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newOrderingBench(t, &shared{})
		b.assignAll(1000, 0, 2)
		b.assign(app.TaskID{Topic: "raw", Partition: 1}, 0, newestMax)
		b.want("a live partition", pollOf(b.fetched(1, 0, 500)), 99, "1:500")
		b.want("one that has some to catch up with", pollOf(b.fetched(0, 900, 0), b.fetched(2, 0, 400)), 99, "0:0")
		began := time.Now()
		for time.Since(began) <= stuckAfter {
			b.want("the other one goes on", pollOf(b.fetched(0, 900, 1)), 99, "0:1")
			pass(100 * time.Millisecond)
		}
		b.want("after a bounded time", pollOf(b.fetched(2, 0, 401)), 99, "2:400", "2:401")
		b.want("a backlog again", pollOf(b.fetched(2, 5000, 402)), 99)
	})
}

// TestLiveRecordsCostNothing protects that, without a backlog, a poll is handed out unchanged.
func TestLiveRecordsCostNothing(t *testing.T) {
	b := newOrderingBench(t, &shared{})
	b.assignAll(0, 0, 1)
	live := pollOf(b.fetched(0, 10, 3), b.fetched(1, 10, 1))
	if cost := testing.AllocsPerRun(100, func() { b.exchange(live, 99, 0) }); cost > 0 {
		t.Errorf("%v allocations", cost)
	}
	if live.NumRecords() != 2 {
		t.Errorf("%d of 2 records", live.NumRecords())
	}
}

// TestPartitionOfWhichNothingComes protects that other partitions wait for a silent one only for a bounded time of
// polls in vain. A pause by the pacer does not count as silence (FLIP-471). With a backlog, the partition makes
// others wait again (FLINK-40475).
func TestPartitionOfWhichNothingComes(t *testing.T) {
	t.Parallel()
	b := newOrderingBench(t, &shared{})
	b.assignAll(100_000, 0, 1)
	b.want("others wait", pollOf(b.fetched(0, 90_000, 10)), 99)
	b.paused[1] = true
	b.wantAfter("paused for long", time.Hour, nothing(), 99)
	b.paused[1] = false
	b.wantAfter("not for long enough", stuckAfter, nothing(), 99)
	b.wantAfter("for too long", 1, nothing(), 99, "0:10")
	b.want("others go on", pollOf(b.fetched(0, 90_000, 100, 200)), 99, "0:100", "0:200")
	b.want("it is back", pollOf(b.fetched(0, 90_000, 300), b.fetched(1, 90_000, 20, 30)), 99, "1:20", "1:30")
	b.want("others wait again", pollOf(b.fetched(0, 90_000, 301)), 99)
}

// TestRecordsWithoutAUsableTimestampGoAtOnce covers records from the future, and records without a timestamp.
func TestRecordsWithoutAUsableTimestampGoAtOnce(t *testing.T) {
	t.Parallel()
	b := newOrderingBench(t, &shared{})
	b.assignAll(1000, 0, 1)
	future := b.fetched(0, 900, 10, 11)
	future.Records[0].Timestamp = time.UnixMilli(orderedMS + 200_000*minuteMS)
	var got []int64
	b.exchange(pollOf(future), 99, 0).EachRecord(func(r *kgo.Record) { got = append(got, r.Offset) })
	if !slices.Equal(got, []int64{0}) {
		t.Errorf("offsets %v, want that of the record from the future", got)
	}
	b.want("it moved no time", pollOf(b.fetched(1, 900, 0)), 99, "1:0")
}

// TestCatchUpIsNotCappedByTheRoom protects that a worker alone takes everything it gets, and that a worker that waits
// for another goes on as soon as the other has handed records out (FLINK-37399). A worker without a backlog, or whose
// backlog has ended, holds no other worker back (FLINK-32414, FLINK-37670).
func TestCatchUpIsNotCappedByTheRoom(t *testing.T) {
	t.Parallel()
	s := &shared{}
	one, other, idle := newOrderingBench(t, s), newOrderingBench(t, s), newOrderingBench(t, s)
	idle.joined()
	one.assignAll(1000, 0)
	one.want("the other worker has no partitions yet", pollOf(one.fetched(0, 900, 0)), 99)
	other.assignAll(1000, 1)
	one.want("nothing is fetched of the other's", nothing(), 99)
	other.want("the other one is ahead", pollOf(other.fetched(1, 900, 100, 105, 120)), 99)
	if one.woken == 0 {
		t.Error("not woken although the other one is further")
	}
	one.want("up to the other one and the room", pollOf(one.fetched(0, 900, 50, 106, 110)), 99, "0:0", "0:50", "0:106")
	if other.woken == 0 {
		t.Error("not woken although the other one is further")
	}
	other.want("up to the first one and the room", nothing(), 99, "1:100", "1:105")
	other.close()
	one.want("the other one has ended", pollOf(one.fetched(0, 900, 1000, 9000)), 99, "0:110")
	one.alignment.left = nil // as after stuckAfter
	one.want("no worker has its partition", nothing(), 99, "0:1000", "0:9000")
	if len(s.alignment.workers) != 1 {
		t.Errorf("%d workers with a backlog, want 1", len(s.alignment.workers))
	}
}

// TestMuchIsSentBeforeMoreIsHandedOut protects that a worker sends what it has, once, before it hands out much more,
// and only if other workers have backlogs.
func TestMuchIsSentBeforeMoreIsHandedOut(t *testing.T) {
	t.Parallel()
	s := &shared{}
	one, other := newOrderingBench(t, s), newOrderingBench(t, s)
	one.assignAll(1000, 0)
	other.joined()
	want := func(when string, minute int64, want bool) {
		t.Helper()
		one.exchange(pollOf(one.fetched(0, 900, minute)), 99, 0)
		if got := one.mustSend(); got != want {
			t.Errorf("%s: %v, want %v", when, got, want)
		}
	}
	want("alone", 0, false)
	want("alone, later", 100, false)
	other.assignAll(1000, 1)
	other.exchange(pollOf(other.fetched(1, 900, 200)), 99, 0)
	want("with another one, a quarter of a row's life later", 130, false)
	want("later", 131, true)
	want("once", 132, false)
}

// TestWorkerThatStandsIsLeftOut protects that the others leave out a worker that stands still for stuckAfter, and a
// partition that no worker has taken since its owner gave it up.
func TestWorkerThatStandsIsLeftOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &shared{}
		one, other := newOrderingBench(t, s), newOrderingBench(t, s)
		one.assignAll(1000, 0)
		other.assignAll(1000, 1, 2)
		one.want("the other one has not begun", pollOf(one.fetched(0, 900, 5, 50)), 99)
		other.want("it has begun", pollOf(other.fetched(1, 900, 0, 100), other.fetched(2, 900, 0)), 99, "1:0", "2:0")
		one.want("the room", nothing(), 99, "0:5")
		pass(stuckAfter - time.Millisecond)
		one.want("it stands for a time", nothing(), 99)
		pass(time.Millisecond)
		one.want("for too long", nothing(), 99, "0:50")
		other.drop(map[string][]int32{"raw": {2}})
		other.want("it goes on", pollOf(other.fetched(1, 900, 101)), 99)
		other.want("no worker has what it gave up", nothing(), 99)
		pass(stuckAfter)
		other.want("not for long", nothing(), 99, "1:100", "1:101")
	})
}

// TestErrorFollowsTheRecordsBeforeIt protects that an error of a partition is handed out behind the records before
// it, which then wait for no other partition. After a reset, the client announces a batch that is too large again.
func TestErrorFollowsTheRecordsBeforeIt(t *testing.T) {
	t.Parallel()
	b := newOrderingBench(t, &shared{})
	b.assignAll(1000, 0, 1)
	id := app.TaskID{Topic: "raw", Partition: 0}
	b.want("records wait", pollOf(b.fetched(0, 900, 10, 11, 12)), 99)
	tooLarge := &kgo.ErrDecompressTooLarge{Topic: "raw"}
	b.oversized.announce(id)
	b.want("the error waits for them", pollOf(kgo.FetchPartition{Partition: 0, Err: tooLarge}), 2, "0:10", "0:11")
	if n, _ := b.oversized.announcements(); n != 0 {
		t.Error("the client is replaced before the batch is skipped")
	}
	if ahead, _ := b.reset(); !slices.Equal(ahead, []app.TaskID{id}) {
		t.Errorf("%v go back, want %v", ahead, id)
	}
	if n, _ := b.oversized.announcements(); n != 1 {
		t.Error("the batch is forgotten")
	}
	b.want("an error with records", pollOf(b.fetched(0, 900, 12), kgo.FetchPartition{Partition: 0, Err: errors.New("broken")}), 99, "0:12", "0:broken")
	lost := &kgo.ErrDataLoss{Topic: "raw", ConsumedTo: 13, ResetTo: 5}
	b.want("records wait again", pollOf(b.fetched(0, 900, 15)), 99)
	b.want("a loss waits for nothing", pollOf(kgo.FetchPartition{Partition: 0, Err: lost}), 0, "0:"+lost.Error())
	b.want("no memory for what is not here", pollOf(b.fetched(0, 900, 20), kgo.FetchPartition{Partition: 1, Err: kafka.ErrBudgetExhausted}), 99, "1:"+kafka.ErrBudgetExhausted.Error(), "0:15", "0:20")
}

// TestLossComesBeforeTheRecordsBehindIt covers a client that has gone back to an offset where a new leader has other
// records: it hands out these records, and reports the loss only behind them. The worker must find the loss first.
func TestLossComesBeforeTheRecordsBehindIt(t *testing.T) {
	t.Parallel()
	lost := &kgo.ErrDataLoss{Topic: "raw", Partition: 1, ConsumedTo: 250, ResetTo: 200}
	records := pollOf(kgo.FetchPartition{Partition: 1, Records: []*kgo.Record{{Topic: "raw", Partition: 1, Offset: 200}}}, kgo.FetchPartition{Partition: 2, Err: errors.New("broken")})
	for _, err := range []error{lost, kerr.OffsetOutOfRange} {
		got := lossIn(append(slices.Clone(records), pollOf(kgo.FetchPartition{Partition: 1, Err: err})...))
		if got == nil || got.Partition != 1 || !errors.Is(got.Err, err) {
			t.Errorf("%v: found %v", err, got)
		}
	}
	if got := lossIn(records); got != nil {
		t.Errorf("without a loss: %v", got)
	}
}

// TestWhatWaitsIsDropped protects that a worker drops the waiting records of partitions that are gone, of partitions
// that come back, and of all partitions at a reset, after which others wait until the records come again.
func TestWhatWaitsIsDropped(t *testing.T) {
	t.Parallel()
	b := newOrderingBench(t, &shared{})
	b.assignAll(1000, 0, 1, 2)
	b.want("records wait", pollOf(b.fetched(0, 900, 10), b.fetched(1, 900, 20)), 99)
	b.drop(map[string][]int32{"raw": {1}})
	b.alignment.left = nil // as after stuckAfter
	b.offset[2] = 0
	b.want("one is gone", pollOf(b.fetched(2, 900, 0, 30)), 99, "2:0", "0:10")
	b.assignAll(1000, 1)
	if ahead, full := b.reset(); len(ahead) != 2 || len(full) > 0 {
		t.Errorf("%v go back and %v are fetched again, want two and none", ahead, full)
	}
	b.want("of those that went back nothing is left", pollOf(b.fetched(1, 900, 40)), 99)
	b.want("their records come again", pollOf(b.fetched(0, 900, 10), b.fetched(2, 900, 0)), 99, "2:0")
}

// TestClientFetchesNoMoreThanWaits protects that a partition with enough waiting records is fetched again only when
// fewer wait, also if all of them are handed out at once.
func TestClientFetchesNoMoreThanWaits(t *testing.T) {
	t.Parallel()
	b := newOrderingBench(t, &shared{})
	b.assignAll(1000, 0, 1)
	big := b.fetched(0, 0, 10)
	big.Records[0].Value = make([]byte, queuedMax/2)
	b.want("much waits", pollOf(big), 99)
	if full, low, paused := b.fill(); len(full) != 1 || len(low) != 0 || paused != 1 {
		t.Errorf("%v and %v, %d paused, want one that is full", full, low, paused)
	}
	b.want("it is handed out", pollOf(b.fetched(1, 0, 5)), 99, "1:5", "0:10")
	if full, low, paused := b.fill(); len(full) != 0 || len(low) != 1 || paused != 0 {
		t.Errorf("%v and %v, %d paused, want one that is low", full, low, paused)
	}
	if b.isActive() {
		t.Error("order is kept without a backlog")
	}
}

// TestUnrelatedTopicsDoNotWait covers topics without a common stream time, and topics that have no stream time.
func TestUnrelatedTopicsDoNotWait(t *testing.T) {
	t.Parallel()
	b := newOrderingBench(t, &shared{})
	b.assignAll(1000, 0, 1)
	for _, topic := range []string{"other", "outcomes"} {
		b.assign(app.TaskID{Topic: topic}, 0, math.MaxInt64)
		polled := pollOf(b.fetched(9, 900, 10))
		polled[0].Topics[0].Topic, polled[0].Topics[0].Partitions[0].Partition = topic, 0
		if n := b.exchange(polled, 99, 0).NumRecords(); n != 1 {
			t.Errorf("%s: %d records, want 1", topic, n)
		}
	}
	shares := orderingApp()
	shares.Sources = map[uint8][]uint16{0: {1}, 1: {2, 3}, 2: {1, 3}}
	if groups := timeGroups(shares); groups["raw"] != groups["outcomes"] || groups["raw"] != groups["other"] {
		t.Errorf("groups %v of topics that share stream times", groups)
	}
}
