package processor

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/app"
	"oncebus/processor/kafka"
)

const (
	// paceInterval is the time between two looks at the tasks, while a partition has a
	// backlog or had one in the last paceFor.
	paceInterval, paceFor = 100 * time.Millisecond, time.Second
	// backlogMin is how many records are a backlog. A live partition has fewer after a
	// poll: 100,000 events a second on four partitions are 2,500 in a commit interval.
	backlogMin = 5000
	// aheadMin is the least time by which the tasks may be behind the routing stage. It
	// must be some commit intervals of both: the tasks would wait for records else.
	aheadMin, aheadIntervals = 300 * time.Millisecond, 3
	// rateWindow is over what time the rate of the tasks is averaged.
	rateWindow = 500 * time.Millisecond
	// stuckAfter is after what time a task without a commit no longer counts: one that
	// restores, or waits for a route, must not keep events from all others.
	stuckAfter = 2 * time.Second
)

// pacing is how a pacer decides. Tests set other values.
type pacing struct {
	backlog  int64         // backlogMin
	ahead    time.Duration // 0 for the value that the commit interval gives
	interval time.Duration // paceInterval
}

// A pacer keeps the routing stage of a worker from running far ahead of the tasks. While a
// route catches up, its backlog is routed faster than the tasks judge it. The live events
// of all routes then wait in the repartition topic, behind the backlog. So the pacer pauses
// the fetching of partitions that have a backlog while the tasks are behind. Outcomes are
// never paused: a lease may depend on them.
//
// A pause changes no offset: the client fetches the records later. If the pacer cannot see
// the tasks, it pauses nothing.
type pacer struct {
	*shared

	client *kgo.Client // of the worker
	ahead  time.Duration

	mu        sync.Mutex
	behind    bool
	backlogAt time.Time // when a partition last had a backlog
	paused    map[app.TaskID]bool
}

func newPacer(s *shared, client *kgo.Client) *pacer {
	ahead := s.pacing.ahead
	if ahead == 0 {
		ahead = max(aheadMin, aheadIntervals*s.cfg.CommitInterval)
	}
	return &pacer{shared: s, client: client, ahead: ahead, paused: map[app.TaskID]bool{}}
}

// polled pauses a partition if it has a backlog after these records and the tasks are
// behind. The caller holds the rebalance lock.
func (p *pacer) polled(fetched *kgo.FetchTopicPartition) {
	next := fetched.Records[len(fetched.Records)-1].Offset + 1
	if fetched.LastStableOffset-next < p.pacing.backlog || p.rt.Outcomes[fetched.Topic] != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.backlogAt = time.Now()
	id := app.TaskID{Topic: fetched.Topic, Partition: fetched.Partition}
	if p.behind && !p.paused[id] {
		p.paused[id] = true
		p.metrics.backlogs.Inc()
		p.client.PauseFetchPartitions(map[string][]int32{id.Topic: {id.Partition}})
	}
}

// drop forgets partitions that the worker no longer has. They stay paused in the client:
// adjustOffsets resumes them if they come back.
func (p *pacer) drop(gone map[string][]int32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for topic, partitions := range gone {
		for _, partition := range partitions {
			p.forget(app.TaskID{Topic: topic, Partition: partition})
		}
	}
}

// forget removes a partition from those that are paused.
func (p *pacer) forget(id app.TaskID) {
	if p.paused[id] {
		delete(p.paused, id)
		p.metrics.backlogs.Dec()
	}
}

// run looks at the tasks until ctx is done.
func (p *pacer) run(ctx context.Context) {
	defer p.set(0)
	var tasks taskPace
	failed := false
	for kafka.Pause(ctx, p.pacing.interval) == nil {
		if !p.active() {
			tasks = taskPace{}
			continue
		}
		ends, committed, err := p.look(ctx)
		if err != nil {
			if !failed && ctx.Err() == nil {
				p.log.Warn("reading how far the tasks are failed, so no backlog is paused until it succeeds", "error", err)
			}
			failed, tasks = true, taskPace{}
			p.set(0)
			continue
		}
		failed = false
		p.set(tasks.behind(time.Now(), ends, committed))
	}
}

// active reports whether a partition is paused, or had a backlog shortly before.
func (p *pacer) active() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.paused) > 0 || time.Since(p.backlogAt) < paceFor
}

// look reads the ends of the repartition topic, and the offsets that the tasks of all
// processes have committed.
func (p *pacer) look(ctx context.Context) (ends, committed map[int32]int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.TransactionTimeout)
	defer cancel()
	topic := p.rt.Topology.Repartition
	ends, committed = map[int32]int64{}, map[int32]int64{}
	listed, err := p.admin.ListCommittedOffsets(ctx, topic)
	if err == nil {
		err = listed.Error()
	}
	var offsets kadm.OffsetResponses
	if err == nil {
		offsets, err = p.admin.FetchOffsets(ctx, app.GroupName(p.cfg.AppID, app.StageDedup))
	}
	if err == nil {
		err = offsets.Error()
	}
	for partition, o := range listed[topic] {
		ends[partition] = o.Offset
	}
	for partition, o := range offsets[topic] {
		committed[partition] = o.At
	}
	return ends, committed, err
}

// set takes a new value for how long the tasks need for what was routed, and resumes what
// is paused if it is short.
func (p *pacer) set(behind time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case behind > p.ahead:
		p.behind = true
	case behind <= p.ahead/2:
		p.behind = false
		resume := map[string][]int32{}
		for id := range p.paused {
			resume[id.Topic] = append(resume[id.Topic], id.Partition)
			p.forget(id)
		}
		if len(resume) > 0 {
			p.client.ResumeFetchPartitions(resume)
		}
	}
}

// A taskPace measures how fast the tasks of all processes commit. The zero value has
// measured nothing.
type taskPace struct {
	at        time.Time // of the last look
	committed map[int32]int64
	moved     map[int32]time.Time // when the offset was last seen to move
	rate      float64             // records a second, of all partitions
}

// behind returns how long the tasks take for the records up to ends that they have not
// committed. Tasks that stand are left out.
func (t *taskPace) behind(now time.Time, ends, committed map[int32]int64) time.Duration {
	if t.moved == nil {
		t.moved = map[int32]time.Time{}
	}
	var done, left int64
	for partition, at := range committed {
		if before, known := t.committed[partition]; known && at > before {
			t.moved[partition] = now
			done += at - before
		}
		if now.Sub(t.moved[partition]) < stuckAfter {
			left += max(0, ends[partition]-at)
		}
	}
	if elapsed := now.Sub(t.at).Seconds(); t.committed != nil && elapsed > 0 {
		share := 1 - math.Exp(-elapsed/rateWindow.Seconds())
		if t.rate == 0 {
			share = 1
		}
		t.rate += share * (float64(done)/elapsed - t.rate)
	}
	t.at, t.committed = now, committed
	if left == 0 || t.rate == 0 {
		return 0
	}
	return time.Duration(float64(left) / t.rate * float64(time.Second))
}
