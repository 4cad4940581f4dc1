package processor

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/processor/app"
	"oncebus/processor/kafka"
)

const (
	// A source may be ahead of the source that is furthest behind by the retention of a row, divided by
	// roomParts. Records of one partition may be handed out before older ones of another partition if the
	// difference is at most that time, divided by runParts: longer runs of one partition cost less time, but the
	// tasks keep a few more rows.
	roomParts, runParts = 16, 4
	// While other workers have backlogs too, a worker produces records of a span of at most the retention of a
	// row, divided by unsentParts, before it waits for the brokers. The reason is that the records of one worker
	// may arrive some milliseconds after those of another worker, and in a history with few events these
	// milliseconds are hours of event time.
	unsentParts = 4
	// queuedMax is about how many bytes of a worker's records may wait for records of other partitions; each
	// partition may have at least queuedMin of them. queuedRecord is the memory that a record takes in addition
	// to its bytes.
	queuedMax, queuedMin, queuedRecord = 8 << 20, 64 << 10, 200
	// Until the tasks know how many sources there are, they keep all rows. So before the first observation of
	// the inputs, at most unannouncedMax records of a backlog are handed out. The others wait for the
	// observation, but for unannouncedFor at most.
	unannouncedMax, unannouncedFor = 100, 2 * time.Second
)

// atOnce is a nil context: with it a client returns what it has, without waiting.
var atOnce context.Context

// A timeOrder sits between the client of a routing worker and the router, and hands out the polled records of
// backlogs in the order of their timestamps. Without it the partitions of a topic would be read at different
// speeds. The tasks would then have to keep the rows of everything that was read ahead, until the slowest
// partition had caught up. So the timeOrder lets records wait in a queue while another partition with unread
// records is further behind. This applies among partitions with a common stream time, in all workers of the
// process. Example: one partition has records of today, and another one has records from Monday on. The records
// of today wait until the other partition has caught up.
//
// The order is that of the records' timestamps, not of event times. Each record has a timestamp, in the order in
// which the live traffic came, while an event time in a field would have to be parsed first. The order decides
// no verdict: in any order, stream time waits for the source that was read least far.
//
// A partition is live once it has been read to the end of its log. From then on its records are handed out at
// once, until it has a backlog again. The end of the log is not estimated: it was listed at the assignment, or
// came with a fetch. A partition of which the client fetches nothing, or a worker that makes no progress, delays
// others for no longer than stuckAfter.
//
// The client has polled the records in the queues, but nothing has processed them. So the routing stage commits
// the offsets of its marks, and not those of its polls. After an abort, a rebalance or a hold the queues are
// dropped, and the client goes back to the marks (A21).
type timeOrder struct {
	*shared

	rt        *app.App
	wake      func()
	isPaused  func(app.TaskID) bool // the pacer has paused the partition, which still delays others
	oversized *oversized
	room      int64 // ms by which a source may be ahead of others
	madeAt    time.Time
	isHeld    func() bool       // all records of backlogs wait for the first observation of the inputs
	groups    map[string]uint16 // by topic: the group of topics that have a common stream time

	mu     sync.Mutex
	parts  map[app.TaskID]*orderedPartition
	lanes  map[uint16]*lane
	polled time.Time // when the last poll ended
	// highest is the highest timestamp that was handed out. sent is the highest timestamp when mustSend last
	// made the worker send its records.
	highest, sent int64
}

// A lane holds this worker's partitions of one group of topics.
type lane struct {
	group uint16
	parts []*orderedPartition
}

// newTimeOrder returns the order of a worker without partitions.
func newTimeOrder(s *shared, rt *app.App, wake func(), isPaused func(app.TaskID) bool, isHeld func() bool, oversized *oversized) *timeOrder {
	o := &timeOrder{madeAt: time.Now(), shared: s, rt: rt, wake: wake, isPaused: isPaused, isHeld: isHeld, oversized: oversized, groups: timeGroups(rt), parts: map[app.TaskID]*orderedPartition{}, lanes: map[uint16]*lane{}}
	o.room = math.MaxInt64
	for _, r := range rt.Routes {
		if _, follows := rt.Sources[r.NamespaceID]; follows {
			o.room = min(o.room, r.Span.Retention()/roomParts)
		}
	}
	for _, group := range o.groups {
		o.alignment.set(group, o, dedup.NoStreamTime, o.room) // the worker is about to get partitions
	}
	return o
}

// joined notes that the worker has its assignment, which may contain no partition of some group of topics.
func (o *timeOrder) joined() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.withdraw()
}

// withdraw tells the other workers not to wait for this one in the groups of which it has no partition. The
// caller holds mu.
func (o *timeOrder) withdraw() {
	for _, group := range o.groups {
		if o.lanes[group] == nil {
			o.alignment.set(group, o, math.MaxInt64, o.room)
		}
	}
}

// timeGroups returns, for each topic that is a source of stream time, the number of its group. Two topics are in
// one group if they are sources of the same namespace, or if further topics connect them in this way.
func timeGroups(rt *app.App) map[string]uint16 {
	of := map[uint16]uint16{}
	for changed := true; changed; {
		changed = false
		for _, numbers := range rt.Sources {
			least := uint16(math.MaxUint16)
			for _, n := range numbers {
				if _, known := of[n]; !known {
					of[n] = n
				}
				least = min(least, of[n])
			}
			for _, n := range numbers {
				changed = changed || of[n] != least
				of[n] = least
			}
		}
	}
	groups := map[string]uint16{}
	for topic, number := range rt.TopicNumbers {
		if group, ok := of[number]; ok {
			groups[topic] = group
		}
	}
	return groups
}

// assign adds a partition that is read from the offset at on. end is the end of its log.
func (o *timeOrder) assign(id app.TaskID, at, end int64) {
	group, ok := o.groups[id.Topic]
	if !ok {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.remove(id)
	o.alignment.taken(id)
	p := &orderedPartition{id: id, next: at, end: end, behind: end-at > newestMax, time: dedup.NoStreamTime}
	o.parts[id] = p
	l := o.lanes[group]
	if l == nil {
		l = &lane{group: group}
		o.lanes[group] = l
	}
	l.parts = append(l.parts, p)
	o.publish(l)
}

// drop forgets partitions that the worker no longer owns, with their queued records.
func (o *timeOrder) drop(gone map[string][]int32) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for topic, partitions := range gone {
		for _, p := range partitions {
			o.remove(app.TaskID{Topic: topic, Partition: p})
		}
	}
}

// remove forgets a partition. The caller holds mu.
func (o *timeOrder) remove(id app.TaskID) {
	p := o.parts[id]
	if p == nil {
		return
	}
	l := o.lanes[o.groups[id.Topic]]
	if p.behind {
		o.alignment.leave(id, l.group, p.least(o.rt.Clock.Now()))
	}
	_ = p.empty() // another worker reads the records again
	delete(o.parts, id)
	l.parts = slices.DeleteFunc(l.parts, func(other *orderedPartition) bool { return other == p })
	o.publish(l)
}

// close drops everything, because the client ends.
func (o *timeOrder) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for id := range o.parts {
		o.remove(id)
	}
	o.withdraw()
}

// reset drops all queued records, after the client has been set back to other offsets. It returns as ahead the
// partitions whose offset in the client may be too high, and as full those that the client may fetch again.
func (o *timeOrder) reset() (ahead, full []app.TaskID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for id, p := range o.parts {
		if !p.ahead {
			continue
		}
		if _, ok := errors.AsType[*kgo.ErrDecompressTooLarge](p.empty()); ok {
			o.oversized.announce(id) // because the client does not repeat the announcement of a batch
		}
		ahead = append(ahead, id)
		if p.full {
			full = append(full, id)
		}
		p.ahead, p.full, p.waited = false, false, 0
		p.next, p.time = 0, dedup.NoStreamTime // the client fetches its records again
	}
	for _, l := range o.lanes {
		o.publish(l)
	}
	return ahead, full
}

// poll polls the client, and returns at most n records that are to be processed next. It may return no
// record although the client had some.
func (o *timeOrder) poll(ctx context.Context, client func(context.Context, int) kgo.Fetches, n int) kgo.Fetches {
	if ctx.Err() != nil {
		return client(ctx, n) // the caller only wants the rebalance lock
	}
	if !o.isActive() {
		return o.exchange(client(ctx, n), n, 0)
	}
	began := time.Now()
	fetches := client(atOnce, n)
	if len(fetches) == 0 {
		if o.mayGoOn() {
			done, cancel := context.WithCancel(ctx)
			cancel()
			ctx = done // so that the second poll only takes the rebalance lock
		}
		fetches = client(ctx, n)
	}
	return o.exchange(fetches, n, time.Since(began))
}

// mustSend reports whether the records handed out so far have to be sent before more are handed out.
func (o *timeOrder) mustSend() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.highest-o.sent <= o.room*roomParts/unsentParts {
		return false
	}
	o.sent = o.highest
	return o.alignment.hasOthers(o)
}

// isActive reports whether any partition has a backlog or queued records, or is not fetched because many of its
// records are queued.
func (o *timeOrder) isActive() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.orders()
}

// orders is isActive for a caller that holds mu.
func (o *timeOrder) orders() bool {
	for _, p := range o.parts {
		if p.behind || p.full || len(p.queue) > 0 {
			return true
		}
	}
	return false
}

// mayGoOn reports whether queued records may be handed out now.
func (o *timeOrder) mayGoOn() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := o.rt.Clock.Now()
	for _, l := range o.lanes {
		if p, _ := o.next(l, now); p != nil && !o.isHeld() {
			return true
		}
	}
	return false
}

// exchange puts the polled records of backlogs into their queues, and returns the queued records that come next
// in the order of time. took is how long the poll took. If fetches is empty, the worker has no rebalance lock,
// so exchange returns nothing.
func (o *timeOrder) exchange(fetches kgo.Fetches, n int, took time.Duration) kgo.Fetches {
	if len(fetches) == 0 {
		return fetches
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	active := o.orders()
	for i := range fetches {
		for j := range fetches[i].Topics {
			t := &fetches[i].Topics[j]
			t.Partitions = slices.DeleteFunc(t.Partitions, func(p kgo.FetchPartition) bool {
				waits := o.take(t, &p)
				if !waits {
					n -= len(p.Records)
				}
				return waits
			})
		}
	}
	if !active && !o.orders() {
		return fetches
	}
	o.wait(took)
	now := o.rt.Clock.Now()
	var out kgo.Fetch
	for _, l := range o.lanes {
		for n > 0 && !o.isHeld() {
			p, until := o.next(l, now)
			if p == nil {
				break
			}
			n -= p.handOut(&out, until, now, n)
			o.highest = max(o.highest, p.time)
		}
		o.publish(l)
	}
	if len(out.Topics) > 0 {
		fetches = append(fetches, out)
	}
	return fetches
}

// take puts what was polled of a partition into the partition's queue. It returns false if the records are to be
// processed at once instead. The caller holds mu.
func (o *timeOrder) take(t *kgo.FetchTopic, polled *kgo.FetchPartition) bool {
	p := o.parts[app.TaskID{Topic: t.Topic, Partition: polled.Partition}]
	if p == nil || isLoss(polled.Err) { // a loss drops the queue, too
		return false
	}
	if polled.Err == nil {
		p.end = polled.LastStableOffset
	}
	if n := len(polled.Records); n > 0 {
		p.next = polled.Records[n-1].Offset + 1
		if len(p.queue) == 0 {
			p.waited = 0
		}
		p.behind = p.behind || p.end-p.next >= o.pacing.backlog
	}
	if errors.Is(polled.Err, kafka.ErrBudgetExhausted) {
		for _, other := range o.parts {
			other.behind = false // the queued records may hold the memory that the client lacks
		}
	}
	if !p.behind && len(p.queue) == 0 {
		return false
	}
	if len(polled.Records) == 0 && polled.Err == nil {
		p.isThrough()
		return false
	}
	if _, ok := errors.AsType[*kgo.ErrDecompressTooLarge](polled.Err); ok {
		o.oversized.dropAnnouncement(p.id)
	}
	p.queue, p.topicID, p.ahead = append(p.queue, *polled), t.TopicID, true
	p.full = false // the pacer has resumed the partition
	for _, r := range polled.Records {
		p.bytes += bytesOf(r)
	}
	return true
}

// wait makes partitions live that have waited for too long, so that they no longer delay others or wait for
// them. These are partitions of which the client fetches nothing. They also are partitions that have been polled
// to the end, while others are so far behind that the live events of the former would wait for long. The caller
// holds mu.
func (o *timeOrder) wait(took time.Duration) {
	now := time.Now()
	since := min(now.Sub(o.polled), took+holdMax) // the time of a long transaction does not count
	o.polled = now
	if o.isHeld() {
		return
	}
	for id, p := range o.parts {
		switch {
		case !p.behind || o.isPaused(id):
		case len(p.queue) == 0:
			p.waited += took
		case p.end-p.next <= newestMax:
			p.waited += since
		}
		if p.waited > stuckAfter {
			p.behind, p.waited = false, 0
		}
	}
}

// next returns the partition of a lane whose records are to be handed out next, and up to which timestamp; nil
// if all of them have to wait. The caller holds mu.
func (o *timeOrder) next(l *lane, now int64) (first *orderedPartition, until int64) {
	least, second := int64(math.MaxInt64), int64(math.MaxInt64)
	until = math.MaxInt64
	for _, p := range l.parts {
		switch {
		case len(p.queue) > 0 && (!p.behind || p.queue[len(p.queue)-1].Err != nil):
			return p, math.MaxInt64
		case !p.behind:
		case len(p.queue) == 0:
			until = min(until, later(p.time, o.room))
		default:
			if at := p.head(now); at < least || first == nil {
				first, least, second = p, at, least
			} else {
				second = min(second, at)
			}
		}
	}
	if first == nil {
		return nil, 0
	}
	if until = min(until, later(o.alignment.least(l.group, o, least, o.room), o.room)); least > until {
		return nil, 0
	}
	return first, min(until, later(second, o.room/runParts))
}

// isFull reports whether the client does not fetch a partition because enough of its records are queued.
func (o *timeOrder) isFull(id app.TaskID) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	p := o.parts[id]
	return p != nil && p.full
}

// fill returns as full the partitions that the client shall stop fetching, because enough of their records are
// queued, and as low those that it shall fetch again. paused is how many partitions the client does not fetch
// afterwards.
func (o *timeOrder) fill() (full, low []app.TaskID, paused int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	most := max(queuedMax/int64(max(1, len(o.parts))), queuedMin)
	for id, p := range o.parts {
		switch {
		case !p.full && p.bytes > most:
			p.full, full = true, append(full, id)
		case p.full && p.bytes < most/2:
			p.full, low = false, append(low, id)
		}
		if p.full {
			paused++
		}
	}
	return full, low, paused
}

// publish tells the other workers of the process up to which time this worker has read the partitions of a lane.
// The caller holds mu.
func (o *timeOrder) publish(l *lane) {
	at, now := int64(math.MaxInt64), o.rt.Clock.Now()
	for _, p := range l.parts {
		if p.behind {
			at = min(at, p.least(now))
		}
	}
	o.alignment.set(l.group, o, at, o.room)
}
