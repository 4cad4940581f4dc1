package processor

import (
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/app"
)

// SetPacing sets the records that are a backlog, the time by which tasks are behind, and the
// time between two looks.
func (p *Processor) SetPacing(backlog int64, ahead, interval time.Duration) {
	p.pacing = pacing{backlog: backlog, ahead: ahead, interval: interval}
}

// polledUpTo returns a poll of a partition up to an offset, of which the log has more.
func polledUpTo(topic string, partition int32, next, end int64) *kgo.FetchTopicPartition {
	return &kgo.FetchTopicPartition{Topic: topic, FetchPartition: kgo.FetchPartition{
		Partition: partition, LastStableOffset: end, HighWatermark: end, Records: []*kgo.Record{{Offset: next - 1}},
	}}
}

// TestBacklogsArePausedWhileTheTasksAreBehind: a live partition and outcomes are never paused,
// and all that is paused is resumed.
func TestBacklogsArePausedWhileTheTasksAreBehind(t *testing.T) {
	t.Parallel()
	client, err := kgo.NewClient()
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	p := newPacer(&shared{
		log: slog.New(slog.DiscardHandler), metrics: newMetrics(prometheus.NewRegistry()),
		rt: &app.App{Outcomes: map[string][]*app.Route{"outcomes": {}}}, pacing: pacing{backlog: 100, ahead: time.Second},
	}, client)
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
	poll()
	wantPaused("tasks not behind", 0)
	p.set(time.Second)
	poll()
	wantPaused("tasks behind by no more than allowed", 0)
	p.set(time.Second + 1)
	poll()
	poll()
	wantPaused("tasks behind", 2)
	p.set(time.Second/2 + 1)
	wantPaused("tasks less behind", 2)
	p.drop(map[string][]int32{"raw": {2}})
	p.set(time.Second / 2)
	wantPaused("tasks no longer behind, and one partition gone", 1) // adjustOffsets resumes it
	p.set(2 * time.Second)
	p.polled(polledUpTo("raw", 1, 50, 150))
	wantPaused("tasks behind again", 2)
}

// TestTasksThatStandAreNotBehind: how long the tasks need is measured by those that commit.
// One that restores, or waits, would else keep backlogs from all others.
func TestTasksThatStandAreNotBehind(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_700_000_000, 0)
	var tasks taskPace
	ends, committed := map[int32]int64{0: 0, 1: 0, 2: 1_000_000, 3: 50}, map[int32]int64{0: 0, 1: 0, 2: 7}
	var behind time.Duration
	for n := range 30 { // 3 s: 1,000 records a second on each of 0 and 1
		ends[0] += 100
		ends[1] += 150
		committed = map[int32]int64{0: committed[0] + 100, 1: committed[1] + 100, 2: 7}
		behind = tasks.behind(now, ends, committed)
		if n == 0 && behind != 0 {
			t.Errorf("behind by %v at the first look", behind)
		}
		now = now.Add(100 * time.Millisecond)
	}
	if want := 750 * time.Millisecond; behind < want-time.Millisecond || behind > want+time.Millisecond { // 30 * 50 of 2,000 a second
		t.Errorf("behind by %v, want %v", behind, want)
	}
	for range 30 { // partition 1 stands
		ends[1] += 150
		committed = map[int32]int64{0: committed[0] + 100, 1: committed[1], 2: 7}
		behind = tasks.behind(now, ends, committed)
		now = now.Add(100 * time.Millisecond)
	}
	if behind != 0 {
		t.Errorf("behind by %v while the only task that commits has nothing left", behind)
	}
}

// PausedBacklogs returns the metric of how many partitions the pacers pause.
func (p *Processor) PausedBacklogs() prometheus.Gauge { return p.metrics.backlogs }
