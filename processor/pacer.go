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
	paceInterval, paceFor = 50 * time.Millisecond, time.Second
	// backlogMin is the number of unread records from which on a partition has a backlog. A live partition
	// has fewer after a poll: 100,000 events a second on four partitions are 2,500 for each in a commit
	// interval.
	backlogMin = 5000
	// leftMin is a number of unprocessed records that is negligible: the tasks judge so many at once.
	leftMin = 5000
	// firstRoom is how many records of backlogs may be routed while the rate of the tasks is not known. It is
	// low, because tasks that have just started are slow.
	firstRoom = 10_000
	// roomMax is more than any router routes between two looks.
	roomMax = 1 << 30
	// aheadMin is the least value of the time by which the tasks may be behind the routing stage; otherwise that
	// time is aheadIntervals commit intervals. With less than two commit intervals the tasks would wait for
	// records, because the records of the open transactions of both stages count as not judged, too. With half
	// of the present value a backlog took 6 to 9 % longer with two workers, because the rate of the workers
	// varies (benchmarks/throughput, 2026-11-25). If the tasks are behind by more than pauseFactor times the
	// value, the pacer pauses backlogs.
	aheadMin, aheadIntervals, pauseFactor = 500 * time.Millisecond, 5, 2
	// liveShare is the part of that time that remains while the process has live events, because a live event
	// waits until the tasks have judged what was routed before. With so little room the tasks sometimes wait for
	// records.
	liveShare = 0.175
	// holdMax bounds how long a poll waits for room. Events that arrive meanwhile in live partitions wait, too.
	holdMax = 100 * time.Millisecond
	// liveFor is how long after its last record a live partition still counts as live.
	liveFor = time.Second
	// routeFetchMax is about how many bytes a fetch response of the routing stage has: some 16,000 events of 230
	// bytes, and several times as many if they are compressed. Each partition has an equal share of it, between
	// routeFetchMin and routeFetchMost. So a response has room for most partitions, and a live partition is not
	// left out of several responses because partitions with a backlog fill them. A share of 64 KiB with 4
	// partitions costs the broker 0.5 µs more for each event.
	routeFetchMax, routeFetchMin, routeFetchMost = 1 << 20, 64 << 10, 256 << 10
	// While there are live events and a backlog, liveFetchMax takes the place of routeFetchMax, and liveFetchMin
	// that of routeFetchMin. There are two reasons: a live event waits until the records of the response before
	// it are routed and committed, and a pause makes the client drop a response. With a response of 36,000
	// events p99 was 500 ms. With a response of 8,000 events it was 280 ms, and the backlog took 15 % longer
	// (benchmarks/growth, 2026-11-24).
	liveFetchMax, liveFetchMin = 256 << 10, 16 << 10
	// routeFetchWait bounds how long a resumed partition waits for the fetch in progress, if all partitions of
	// that fetch are idle.
	routeFetchWait = 150 * time.Millisecond
	// rateWindow is the time over which the rate of the tasks is averaged.
	rateWindow = 500 * time.Millisecond
	// boostUp and boostDown are the factors by which a look raises or lowers the boost of a taskPace, which
	// is at most boostMax.
	boostUp, boostDown, boostMax = 1.25, 0.99, 4
	// stuckAfter is the time after which the pacer leaves out a task without a commit. A task that restores, or
	// waits for a route, must not keep the events of all other tasks waiting.
	stuckAfter = 2 * time.Second
)

// pacing holds the values by which a pacer decides. Tests set values of their own.
type pacing struct {
	backlog, room int64         // backlogMin, firstRoom
	ahead         time.Duration // see aheadMin; 0 to compute it from the commit interval
	interval      time.Duration // paceInterval
}

// A pacer keeps the routing stage of a worker from running far ahead of the tasks. While a route catches up, the
// worker can route the backlog faster than the tasks judge the records. The live events of all routes would then
// wait in the repartition topic behind the backlog. So the pacer grants room: the number of records of backlogs
// that may be routed. It is the number that the tasks judge in a certain time.
//
// Without live records a poll waits until there is room, but not for long. With live records a poll must not
// wait. Instead the pacer then pauses the fetching of partitions that have a backlog. That costs more, because
// the client drops what it has fetched of a paused partition, and fetches it again. The pacer also pauses
// backlogs if the tasks are too far behind. It never pauses topics of outcomes, because a lease may end if its
// outcome is late. A pause changes no offset. If the pacer cannot find out how far the tasks are, it delays
// nothing.
//
// The pacer also bounds the size of a fetch response, because a live event waits until the response before it is
// processed. A new pacer assumes that there are both live events and a backlog.
type pacer struct {
	*shared
	*edition

	client *kgo.Client // the worker's client
	ahead  time.Duration

	madeAt  time.Time
	granted chan struct{} // has a value after a look that has found room

	mu        sync.Mutex
	fetched   int       // partitions that the client fetches
	behind    bool      // backlogs are paused
	room      int64     // records of backlogs until the next look
	backlogAt time.Time // when a partition last had a backlog
	liveAt    time.Time // when this worker last polled records of a partition without a backlog
	// backlogs holds the partitions that had a backlog when they were last polled. The value is true if the
	// pacer has paused the partition.
	backlogs map[app.TaskID]bool
}

func newPacer(s *shared, on *edition, client *kgo.Client) *pacer {
	ahead := s.pacing.ahead
	if ahead == 0 {
		ahead = max(aheadMin, time.Duration(aheadIntervals*float64(s.cfg.CommitInterval)))
	}
	now := time.Now()
	s.anyLiveAt.Store(now.UnixNano())
	return &pacer{shared: s, edition: on, client: client, ahead: ahead, room: s.pacing.room, madeAt: now, backlogs: map[app.TaskID]bool{}, granted: make(chan struct{}, 1)}
}

// assigned sets the number of partitions that the client fetches from now on.
func (p *pacer) assigned(partitions int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fetched = partitions
	p.boundFetches()
}

// boundFetches divides a fetch response among the partitions. The caller holds p.mu.
func (p *pacer) boundFetches() {
	most, least, all := int32(routeFetchMax), int32(routeFetchMin), int32(kafka.FetchMaxBytes)
	if (time.Since(p.backlogAt) < paceFor || time.Since(p.madeAt) < paceFor) && p.anyLive() {
		most, least, all = liveFetchMax, liveFetchMin, liveFetchMax
	}
	share := most / int32(max(1, p.fetched))
	p.client.UpdateFetchMaxBytes(all, min(max(share, least), routeFetchMost))
}

// anyLive reports whether a worker of the process has polled live records within liveFor.
func (p *pacer) anyLive() bool {
	return time.Since(time.Unix(0, p.anyLiveAt.Load())) < liveFor
}

// await waits until there is room for records of backlogs, for holdMax, or until ctx is done.
func (p *pacer) await(ctx context.Context) {
	if !p.full() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, holdMax)
	defer cancel()
	for p.full() {
		select {
		case <-p.granted:
		case <-ctx.Done():
			return
		}
	}
}

// full reports whether there is no room for records of backlogs, while the backlogs are not paused.
func (p *pacer) full() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.room < 0 && !p.behind
}

// polled takes note of the polled records of a partition. It pauses all backlogs if the tasks are behind,
// or if there is no room left while other partitions have live records. The caller holds the rebalance
// lock.
func (p *pacer) polled(fetched *kgo.FetchTopicPartition) {
	id := app.TaskID{Topic: fetched.Topic, Partition: fetched.Partition}
	next := fetched.Records[len(fetched.Records)-1].Offset + 1
	isBacklog := fetched.LastStableOffset-next >= p.pacing.backlog && p.rt.Outcomes[fetched.Topic] == nil
	p.mu.Lock()
	defer p.mu.Unlock()
	if !isBacklog {
		p.liveAt = time.Now()
		p.anyLiveAt.Store(p.liveAt.UnixNano())
		if !p.backlogs[id] { // otherwise the pause for an earlier partition of this poll has paused this one
			delete(p.backlogs, id)
		}
		return
	}
	p.backlogAt = time.Now()
	if _, known := p.backlogs[id]; !known {
		p.backlogs[id] = false
	}
	p.room -= int64(len(fetched.Records))
	if p.room < 0 && time.Since(p.liveAt) < liveFor {
		p.behind = true
	}
	if p.behind {
		p.pause()
	}
}

// pause pauses all backlogs.
func (p *pacer) pause() {
	pause := map[string][]int32{}
	for id, paused := range p.backlogs {
		if !paused {
			pause[id.Topic] = append(pause[id.Topic], id.Partition)
			p.backlogs[id] = true
			p.metrics.backlogs.Inc()
		}
	}
	if len(pause) > 0 {
		p.client.PauseFetchPartitions(pause)
	}
}

// isPaused reports whether the pacer has paused a partition.
func (p *pacer) isPaused(id app.TaskID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.backlogs[id]
}

// drop forgets partitions that the worker no longer owns. The client keeps them paused. If the worker gets them
// again, adjustOffsets resumes them.
func (p *pacer) drop(gone map[string][]int32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for topic, partitions := range gone {
		for _, partition := range partitions {
			p.forget(app.TaskID{Topic: topic, Partition: partition})
		}
	}
}

// forget removes a partition, paused or not.
func (p *pacer) forget(id app.TaskID) {
	if p.backlogs[id] {
		p.metrics.backlogs.Dec()
	}
	delete(p.backlogs, id)
}

// run looks at the tasks every interval until ctx is done, and grants room.
func (p *pacer) run(ctx context.Context) {
	defer p.set(0, p.pacing.room)
	var tasks taskPace
	failed := false
	for kafka.Pause(ctx, p.pacing.interval) == nil {
		if !p.active() {
			tasks = taskPace{}
			p.set(0, p.pacing.room)
			continue
		}
		ends, committed, err := p.look(ctx)
		if err != nil {
			if !failed && ctx.Err() == nil {
				p.log.Warn("reading how far the tasks are failed, so no backlog is paused until it succeeds", "error", err)
			}
			failed, tasks = true, taskPace{}
			p.set(0, math.MaxInt64)
			continue
		}
		failed = false
		tasks.look(time.Now(), ends, committed)
		p.set(tasks.behind(), tasks.grant(p.pacing.room, p.roomTime())/int64(max(1, p.cfg.Workers)))
	}
}

// active reports whether a partition is paused, or had a backlog shortly before.
func (p *pacer) active() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.backlogAt) < paceFor {
		return true
	}
	for _, paused := range p.backlogs {
		if paused {
			return true
		}
	}
	return false
}

// look reads the end offsets of the repartition topic, including open transactions, and the offsets that the
// tasks of all processes have committed.
func (p *pacer) look(ctx context.Context) (ends, committed map[int32]int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.TransactionTimeout)
	defer cancel()
	topic := p.rt.Topology.Repartition
	ends, committed = map[int32]int64{}, map[int32]int64{}
	listed, err := p.admin.ListEndOffsets(ctx, topic)
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

// roomTime is the time for which room is granted: as many records as the tasks judge in it.
func (p *pacer) roomTime() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, near := p.limits()
	return near
}

// limits returns two times. most is the time by which the tasks may be behind before backlogs are paused, and
// near is the time for which room is granted. All workers of the process route to the same tasks, so the live
// events of one worker wait behind the backlogs of all workers. The caller holds p.mu.
func (p *pacer) limits() (most, near time.Duration) {
	near = p.ahead
	if p.anyLive() {
		near = time.Duration(liveShare * float64(near))
	}
	if time.Since(p.liveAt) < liveFor {
		return near, near
	}
	return pauseFactor * near, near
}

// set takes new values: behind is how long the tasks need for the records that were routed, and room is how many
// records of backlogs may be routed. It pauses backlogs if behind is too long, and resumes them once it is
// short.
func (p *pacer) set(behind time.Duration, room int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.boundFetches()
	if p.room = room; room >= 0 {
		select {
		case p.granted <- struct{}{}:
		default:
		}
	}
	switch most, near := p.limits(); {
	case behind > most:
		p.behind = true
		p.pause()
	case behind <= near*2/3:
		p.behind = false
		resume := map[string][]int32{}
		for id, paused := range p.backlogs {
			if paused {
				resume[id.Topic] = append(resume[id.Topic], id.Partition)
				p.forget(id)
			}
		}
		if len(resume) > 0 {
			p.client.ResumeFetchPartitions(resume)
		}
	}
}

// A taskPace measures how fast the tasks of all processes commit. The zero value has
// measured nothing.
type taskPace struct {
	at        time.Time // time of the last look
	committed map[int32]int64
	moved     map[int32]time.Time // when the offset was last seen to move
	left      int64               // records not committed yet, without those of tasks that stand still
	rate      float64             // records a second of all partitions, measured while records were left
	boost     float64             // factor by which the tasks could perhaps commit more than rate; at least 1
	room      int64               // the room that the last look granted
}

// look measures what the tasks committed since the last look, and how many of the records below ends they have
// not committed.
func (t *taskPace) look(now time.Time, ends, committed map[int32]int64) {
	if t.moved == nil {
		t.moved = map[int32]time.Time{}
	}
	busy := t.left >= leftMin
	var done int64
	t.left = 0
	for partition, at := range committed {
		before, known := t.committed[partition]
		if known {
			done += max(0, at-before)
		}
		if !known || at > before {
			t.moved[partition] = now
		}
		if now.Sub(t.moved[partition]) < stuckAfter {
			t.left += max(0, ends[partition]-at)
		}
	}
	if elapsed := now.Sub(t.at).Seconds(); busy && elapsed > 0 {
		share := 1 - math.Exp(-elapsed/rateWindow.Seconds())
		if t.rate == 0 {
			share = 1
		}
		t.rate += share * (float64(done)/elapsed - t.rate)
	}
	if t.left < leftMin {
		t.boost = min(t.boost*boostUp, boostMax)
	} else {
		t.boost = max(t.boost*boostDown, 1)
	}
	t.at, t.committed = now, committed
}

// capacity estimates the rate that the tasks can reach. The measured rate may be too low: tasks that wait for
// records commit only what was routed, however fast they are. So each look that finds no records left raises the
// estimate, and each other look lowers it a little.
func (t *taskPace) capacity() float64 { return t.rate * t.boost }

// behind returns how long the tasks need for the records that are left; the constant stalled while their rate is
// unknown.
func (t *taskPace) behind() time.Duration {
	seconds := float64(t.left) / t.capacity()
	switch {
	case t.left < leftMin:
		return 0
	case seconds < stalled.Seconds():
		return time.Duration(seconds * float64(time.Second))
	}
	return stalled
}

// grant returns how many records of backlogs may be routed until the next look: as many as the tasks judge in
// the time ahead, less the records that are left. While fewer than leftMin records are left, the tasks
// have no backlog that shows their rate, and grant returns twice what it returned before.
func (t *taskPace) grant(first int64, ahead time.Duration) int64 {
	if t.left < leftMin {
		t.room = min(max(first, 2*t.room), roomMax)
	} else {
		t.room = max(first, int64(ahead.Seconds()*t.capacity())) - t.left
	}
	return t.room
}

// stalled is the longest time by which tasks count as behind.
const stalled = time.Hour
