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
	// roomParts is the part of a row's life that a source may be ahead of the one that is read least
	// far. runParts is the part of that by which records of one partition go before those of
	// another: longer runs cost less, and need a few more rows.
	roomParts, runParts = 16, 4
	// unsentParts is the part of a row's life that is produced at most before the broker has it, while
	// other workers have backlogs too: what one produces comes some milliseconds later than what
	// another does, and these are hours of a history with few events.
	unsentParts = 4
	// queuedMax is about how many bytes the records of a worker have that wait for those of other
	// partitions, and queuedMin how many those of a partition may have. queuedRecord is what a
	// record takes without its bytes.
	queuedMax, queuedMin, queuedRecord = 8 << 20, 64 << 10, 200
	// unannouncedMax is how many records of a backlog go with the first observation of the inputs.
	// They wait for it for unannouncedFor at most: until the tasks know how many sources there are,
	// they keep all rows.
	unannouncedMax, unannouncedFor = 100, 2 * time.Second
)

// atOnce lets a client return what it has.
var atOnce context.Context

// A timeOrder hands out what a routing worker polls. The partitions of a topic are read at
// different speeds, and the rows of all that is read ahead have to be kept until the last one has
// caught up. So the records of backlogs go in the order of their timestamps, as far as stream time
// is common to them: those of a partition wait in a queue while another one with unread records is
// further behind, in any worker of the process.
//
// A timestamp is in each record, and in the order in which live traffic had come. The event time of
// a field would have to be parsed first. The order decides nothing: stream time waits for the source
// that is read least far, whatever the order is.
//
// A partition is live once it has been read to the end of its log, and its records go at once, until
// it has a backlog again. The end is a fact: of the offsets that were listed at the assignment, or of
// a fetch. A partition of which nothing comes, and a worker that stands, hold others up for no
// longer than stuckAfter.
//
// The client has polled what waits here, but nothing of it is processed: the routing stage commits
// the offsets of its marks. After an abort, a rebalance or a hold the queues are dropped, and the
// client goes back to the marks.
type timeOrder struct {
	*shared

	rt        *app.App
	wake      func()
	isPaused  func(app.TaskID) bool // by a pacer: that is no reason to go on without a partition
	oversized *oversized
	room      int64 // ms by which a source may be ahead of others
	madeAt    time.Time
	isHeld    func() bool       // records wait for the first observation of the inputs
	groups    map[string]uint16 // of the topics whose sources have a common stream time

	mu     sync.Mutex
	parts  map[app.TaskID]*orderedPartition
	lanes  map[uint16]*lane
	polled time.Time // when the last poll ended
	// highest is the highest timestamp that was handed out, sent that up to which it was sent.
	highest, sent int64
}

// A lane has the partitions of a group.
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
		o.alignment.set(group, o, dedup.NoStreamTime, o.room) // it is about to get partitions
	}
	return o
}

// joined notes that the worker has got its assignment.
func (o *timeOrder) joined() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.withdraw()
}

// withdraw lets no other worker wait in groups of which this one has no partition. The caller holds mu.
func (o *timeOrder) withdraw() {
	for _, group := range o.groups {
		if o.lanes[group] == nil {
			o.alignment.set(group, o, math.MaxInt64, o.room)
		}
	}
}

// timeGroups returns the topics that are sources of stream time, with the number of the group of
// those that share one.
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

// assign adds a partition that is read from an offset on, with the end of its log.
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

// drop forgets partitions that the worker no longer has, with what waits.
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
	_ = p.empty() // another worker reads it again
	delete(o.parts, id)
	l.parts = slices.DeleteFunc(l.parts, func(other *orderedPartition) bool { return other == p })
	o.publish(l)
}

// close drops everything: the client ends.
func (o *timeOrder) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for id := range o.parts {
		o.remove(id)
	}
	o.withdraw()
}

// reset drops all that waits, after the client has gone back to offsets of its own. It returns the
// partitions whose offset the client may not have, and those that it fetches again.
func (o *timeOrder) reset() (ahead, full []app.TaskID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for id, p := range o.parts {
		if !p.ahead {
			continue
		}
		if _, ok := errors.AsType[*kgo.ErrDecompressTooLarge](p.empty()); ok {
			o.oversized.announce(id) // the client does not repeat it
		}
		ahead = append(ahead, id)
		if p.full {
			full = append(full, id)
		}
		p.ahead, p.full, p.waited = false, false, 0
		p.next, p.time = 0, dedup.NoStreamTime // its records come again
	}
	for _, l := range o.lanes {
		o.publish(l)
	}
	return ahead, full
}

// poll polls the client, and returns what is to be processed next, at most n records. It may be
// none although the client had some.
func (o *timeOrder) poll(ctx context.Context, client func(context.Context, int) kgo.Fetches, n int) kgo.Fetches {
	if ctx.Err() != nil {
		return client(ctx, n) // only the rebalance lock is wanted
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
			ctx = done // this only takes the rebalance lock
		}
		fetches = client(ctx, n)
	}
	return o.exchange(fetches, n, time.Since(began))
}

// mustSend reports whether what was handed out has to be sent before more is.
func (o *timeOrder) mustSend() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.highest-o.sent <= o.room*roomParts/unsentParts {
		return false
	}
	o.sent = o.highest
	return o.alignment.hasOthers(o)
}

// isActive reports whether a partition has a backlog, or records that wait or waited.
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

// mayGoOn reports whether records that wait may be handed out.
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

// exchange puts the records of backlogs into their queues, and returns those whose turn it is in
// their place. The poll took so long. Without fetches the worker has no rebalance lock.
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

// take takes what was polled of a partition. It returns false for what goes at once. The caller holds
// mu.
func (o *timeOrder) take(t *kgo.FetchTopic, polled *kgo.FetchPartition) bool {
	p := o.parts[app.TaskID{Topic: t.Topic, Partition: polled.Partition}]
	if p == nil || isLoss(polled.Err) { // what waits is dropped with it
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
			other.behind = false // what waits here may be what it has no memory for
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
	p.full = false // the pacer has let the client fetch it
	for _, r := range polled.Records {
		p.bytes += bytesOf(r)
	}
	return true
}

// wait lets partitions go that have stood for too long: those of which nothing comes, and those of
// which all is here, and others are so far behind that their live events would wait for long. The
// caller holds mu.
func (o *timeOrder) wait(took time.Duration) {
	now := time.Now()
	since := min(now.Sub(o.polled), took+holdMax) // a long transaction is no reason
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

// next returns the partition of a lane to hand out next, and up to which timestamp; nil if none may
// go on. The caller holds mu.
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

// isFull reports whether the client does not fetch a partition of which enough waits.
func (o *timeOrder) isFull(id app.TaskID) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	p := o.parts[id]
	return p != nil && p.full
}

// fill returns the partitions of which enough waits, so that the client shall not fetch them, those
// that it shall fetch again, and how many it does not fetch then.
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

// publish tells the other workers of the process how far a lane is. The caller holds mu.
func (o *timeOrder) publish(l *lane) {
	at, now := int64(math.MaxInt64), o.rt.Clock.Now()
	for _, p := range l.parts {
		if p.behind {
			at = min(at, p.least(now))
		}
	}
	o.alignment.set(l.group, o, at, o.room)
}
