package processor

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/app"
)

// SetPacing sets how many records are a backlog, the room for backlogs between two looks, the time by which tasks
// count as behind, and the time between two looks.
func (p *Processor) SetPacing(backlog, room int64, ahead, interval time.Duration) {
	p.pacing = pacing{backlog: backlog, room: room, ahead: ahead, interval: interval}
}

// polledUpTo returns a poll of a partition up to the offset next, while the log reaches to end.
func polledUpTo(topic string, partition int32, next, end int64) *kgo.FetchTopicPartition {
	return &kgo.FetchTopicPartition{Topic: topic, FetchPartition: kgo.FetchPartition{
		Partition: partition, LastStableOffset: end, HighWatermark: end, Records: []*kgo.Record{{Offset: next - 1}},
	}}
}

// unusedClient returns a client that connects to nothing.
func unusedClient(t *testing.T) *kgo.Client {
	t.Helper()
	client, err := kgo.NewClient()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

// noLive makes the last live records of the process and of the worker old.
func noLive(p *pacer) {
	p.liveAt = time.Time{}
	p.anyLiveAt.Store(0)
}

// TestBacklogsArePausedWhileTheTasksAreBehind protects that a pacer never pauses a live partition or outcomes, and
// resumes all that it paused.
func TestBacklogsArePausedWhileTheTasksAreBehind(t *testing.T) {
	t.Parallel()
	client := unusedClient(t)
	synctest.Test(t, func(t *testing.T) {
		p := newPacer(&shared{
			log: slog.New(slog.DiscardHandler), metrics: newMetrics(prometheus.NewRegistry()), pacing: pacing{backlog: 100, room: 10, ahead: time.Second},
		}, &edition{rt: &app.App{Outcomes: map[string][]*app.Route{"outcomes": {}}}}, client)
		poll := func() {
			p.polled(polledUpTo("raw", 0, 50, 149)) // 99 left
			p.polled(polledUpTo("raw", 1, 50, 150))
			p.polled(polledUpTo("raw", 2, 1, 1_000_000))
			p.polled(polledUpTo("outcomes", 3, 1, 1_000_000))
		}
		wantPaused := func(when string, partitions int) {
			t.Helper()
			paused := client.PauseFetchPartitions(nil)
			if len(paused["raw"]) != partitions || len(paused) > 1 {
				t.Errorf("%s: %v paused, want %d partitions of raw", when, paused, partitions)
			}
			for _, partition := range paused["raw"] {
				if partition == 0 {
					t.Errorf("%s: a partition without a backlog is paused", when)
				}
			}
		}
		const near = 175 * time.Millisecond // liveShare of a second
		poll()
		wantPaused("tasks not behind", 0)
		p.set(near, 10)
		poll()
		wantPaused("tasks behind by no more than allowed", 0)
		p.set(near+1, 10)
		wantPaused("tasks behind", 2)
		poll()
		wantPaused("polled again", 2)
		p.set(near*2/3+1, 10)
		wantPaused("tasks less behind", 2)
		p.drop(map[string][]int32{"raw": {2}})
		p.set(near*2/3, 1)
		wantPaused("tasks no longer behind, and one partition gone", 1) // adjustOffsets resumes it
		p.polled(polledUpTo("raw", 1, 50, 150))
		p.polled(polledUpTo("raw", 1, 51, 150))
		wantPaused("room used up", 1)
		p.polled(polledUpTo("raw", 1, 52, 152))
		wantPaused("no room", 2)
		p.set(0, 2)
		p.polled(polledUpTo("raw", 1, 52, 152))
		p.polled(polledUpTo("raw", 1, 60, 152))
		p.set(time.Hour, 2)
		wantPaused("the backlog is gone", 1)
		p.set(0, 0)
		p.polled(polledUpTo("raw", 1, 50, 150))
		p.polled(polledUpTo("raw", 1, 150, 150)) // of the same poll
		wantPaused("paused with the last records of its backlog", 2)
		p.set(0, 0)
		wantPaused("resumed", 1)
		noLive(p)
		p.set(pauseFactor*time.Second, 0)
		p.polled(polledUpTo("raw", 1, 50, 150))
		wantPaused("no room, and no live records", 1)
		p.set(pauseFactor*time.Second+1, 0)
		wantPaused("slow tasks, and no live records", 2)
	})
}

// TestLiveEventsOfOneWorkerBoundTheBacklogsOfAll protects workers that have the same tasks. Only a worker that has
// live events itself pauses its backlogs early; the polls of other workers wait for room.
func TestLiveEventsOfOneWorkerBoundTheBacklogsOfAll(t *testing.T) {
	t.Parallel()
	client := unusedClient(t)
	synctest.Test(t, func(t *testing.T) {
		s, on := &shared{metrics: newMetrics(prometheus.NewRegistry()), pacing: pacing{backlog: 100, ahead: time.Second}}, &edition{rt: &app.App{}}
		of, other := newPacer(s, on, client), newPacer(s, on, client)
		want := func(when string, p *pacer, most, near time.Duration) {
			t.Helper()
			if gotMost, gotNear := p.limits(); gotMost != most || gotNear != near {
				t.Errorf("%s: limits %v and %v, want %v and %v", when, gotMost, gotNear, most, near)
			}
		}
		const live = 175 * time.Millisecond
		want("a new pacer", of, pauseFactor*live, live)
		noLive(of)
		want("no live events", of, pauseFactor*time.Second, time.Second)
		of.polled(polledUpTo("raw", 0, 50, 149))
		want("live events", of, live, live)
		want("live events of another worker", other, pauseFactor*live, live)
	})
}

// TestFetchesAreSmallWithLiveEventsAndABacklog protects the delay of a live event, which waits for the response
// before it. A new pacer does not know yet what its partitions hold.
func TestFetchesAreSmallWithLiveEventsAndABacklog(t *testing.T) {
	t.Parallel()
	client := unusedClient(t)
	synctest.Test(t, func(t *testing.T) {
		p := newPacer(&shared{metrics: newMetrics(prometheus.NewRegistry()), pacing: pacing{backlog: 100}}, &edition{rt: &app.App{}}, client)
		want := func(when string, bytes, partitionBytes int32) {
			t.Helper()
			gotBytes, gotPartition := client.OptValue(kgo.FetchMaxBytes), client.OptValue(kgo.FetchMaxPartitionBytes)
			if gotBytes != bytes || gotPartition != partitionBytes {
				t.Errorf("%s: a fetch has %v bytes at most, of a partition %v, want %d and %d", when, gotBytes, gotPartition, bytes, partitionBytes)
			}
		}
		p.assigned(8)
		want("a new pacer", 256<<10, 32<<10)
		p.assigned(100)
		want("many partitions", 256<<10, 16<<10)
		p.madeAt = time.Time{}
		p.set(0, 0)
		want("no backlog", 2<<20, 64<<10)
		p.assigned(8)
		want("fewer partitions", 2<<20, 128<<10)
		p.polled(polledUpTo("raw", 1, 50, 150))
		p.set(0, 0)
		want("a backlog", 256<<10, 32<<10)
		noLive(p)
		p.set(0, 0)
		want("a backlog without live events", 2<<20, 128<<10)
	})
}

// TestPollsWaitForRoom protects that a poll waits while backlogs have used up their room: until a look finds room, or
// for a bounded time. A poll does not wait while the backlogs are paused.
func TestPollsWaitForRoom(t *testing.T) {
	t.Parallel()
	client := unusedClient(t)
	synctest.Test(t, func(t *testing.T) {
		p := &pacer{
			client:  client,
			shared:  &shared{metrics: newMetrics(prometheus.NewRegistry()), pacing: pacing{backlog: 100}},
			edition: &edition{rt: &app.App{}},
			ahead:   time.Second, room: 1, backlogs: map[app.TaskID]bool{}, granted: make(chan struct{}, 1),
		}
		wantWait := func(ctx context.Context, when string, want time.Duration) {
			t.Helper()
			began := time.Now()
			p.await(ctx)
			if got := time.Since(began); got != want {
				t.Errorf("%s: the poll waited for %v, want %v", when, got, want)
			}
		}
		always := t.Context()
		p.polled(polledUpTo("raw", 0, 50, 149))
		p.polled(polledUpTo("raw", 0, 50, 149))
		wantWait(always, "live records", 0)
		noLive(p)
		p.polled(polledUpTo("raw", 1, 50, 150))
		wantWait(always, "room used up, none needed yet", 0)
		p.polled(polledUpTo("raw", 1, 50, 150))
		wantWait(always, "no room", holdMax)
		short, cancel := context.WithTimeout(always, holdMax/4)
		defer cancel()
		wantWait(short, "a poll for a shorter time", holdMax/4)
		look := func(room int64) { time.AfterFunc(holdMax/5, func() { p.set(0, room) }) }
		look(-1)
		wantWait(always, "a look that finds no room", holdMax)
		look(0)
		wantWait(always, "a look that finds room", holdMax/5)
		p.set(0, -1)
		wantWait(always, "a look after one that found room", holdMax)
		p.behind = true
		wantWait(always, "backlogs are paused", 0)
	})
}

// TestPaceOfTasks protects that the pacer measures how long tasks need only by tasks that commit, and while they have
// records. Otherwise a task that restores or waits would hold back the backlogs of all others.
func TestPaceOfTasks(t *testing.T) {
	t.Parallel()
	const first, ahead = 1000, time.Second
	now := time.Unix(1_700_000_000, 0)
	var tasks taskPace
	ends, committed := map[int32]int64{0: 0, 1: 0, 2: 1_000_000}, map[int32]int64{0: 0, 1: 0, 2: 7}
	look := func(routed, judged [2]int64) {
		now = now.Add(100 * time.Millisecond)
		committed = map[int32]int64{0: committed[0] + judged[0], 1: committed[1] + judged[1], 2: 7}
		ends[0] += routed[0]
		ends[1] += routed[1]
		tasks.look(now, ends, committed)
	}
	want := func(when string, behind time.Duration, room int64) {
		t.Helper()
		if got := tasks.behind(); got.Round(time.Millisecond) != behind {
			t.Errorf("%s: behind by %v, want %v", when, got, behind)
		}
		if got := tasks.grant(first, ahead); got != room {
			t.Errorf("%s: room for %d, want %d", when, got, room)
		}
	}
	look([2]int64{10_000, 0}, [2]int64{})
	want("rate unknown", time.Hour, first-10_000-999_993)
	for range 20 { // 20,000 a second
		look([2]int64{1000, 2000}, [2]int64{1000, 1000})
	}
	want("partition 2 stands", 1500*time.Millisecond, 20_000-30_000)
	if tasks.boost != 1 {
		t.Errorf("boost %v of tasks that always had records", tasks.boost)
	}
	look([2]int64{}, [2]int64{10_000, 20_000})
	if tasks.rate < 50_000 || tasks.rate > 100_000 {
		t.Errorf("rate %.0f after 0.1 s with 300,000 a second, 20,000 before", tasks.rate)
	}
	rate := tasks.rate
	want("nothing left", 0, first)
	look([2]int64{}, [2]int64{})
	want("nothing left again", 0, 2*first)
	if tasks.rate != rate || tasks.capacity() < 1.5*rate {
		t.Errorf("rate %.0f and capacity %.0f without records, rate %.0f before", tasks.rate, tasks.capacity(), rate)
	}
	look([2]int64{0, 60_000}, [2]int64{})
	for range 21 {
		look([2]int64{60_000, 0}, [2]int64{60_000, 0})
	}
	want("partition 1 stands too", 0, 4*first)
}

// PausedBacklogs returns the metric of how many partitions the pacers have paused.
func (p *Processor) PausedBacklogs() prometheus.Gauge { return p.metrics.backlogs }
