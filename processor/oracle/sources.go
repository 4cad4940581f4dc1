package oracle

import (
	"math"
	"reflect"
	"slices"
)

// In a namespace that has input topics, stream time is the lowest time that any of its sources has reached. The
// time that a source has reached is the higher of two times: its front and its bound. The front is the highest
// time of the source's events in this task. The bound comes from progress records, which give the highest time
// of the source's events in all tasks, and the broker time up to which the source was read: the source counts
// as having reached the highest event time that this task had met, in any source, by that broker time. If the
// routes say so, the highest event time also advances while no events arrive. In any other namespace, stream
// time is the highest event time.

// never stands for a time that is not known.
const never = math.MinInt64

// A sourceTimes is what a task knows about the sources of a namespace. Times are event times in ms; never if
// there is none.
type sourceTimes struct {
	namespaceID uint8
	highest     int64         // of all sources, and of the events that came by HTTP
	ingress     int64         // of the events that came by HTTP
	samples     []timeSample  // how highest has grown, ascending
	topics      []sourceTopic // ascending by number
}

// A timeSample has the highest event time that was known when the timestamps of the log had reached the broker
// time at. Both are in ms.
type timeSample struct{ at, highest int64 }

// A sourceTopic is an input topic with its number in the manifest. counted is the broker time, in ms, at which
// the topic had the number of partitions that a progress record gives; never if no progress record has given a
// number.
type sourceTopic struct {
	number     uint16
	counted    int64
	partitions []reached
}

// A reached has the time that a source has reached by its events in this task (front), and by progress records
// (bound).
type reached struct{ front, bound int64 }

// samplesMax is how many samples of the highest event time a task keeps. The oracle must keep the same number
// as the product, because stream time depends on it.
const samplesMax = 16

// countHolds is for how long, in ms of the log's timestamps, a task relies on the number of partitions in a
// progress record. After that time the topic may have more partitions.
const countHolds = 60_000

// partitionsMax is the largest number of partitions of a topic that a record may claim.
const partitionsMax = 1 << 20

// ingressSource stands for the topic of an event that came by HTTP, which has no input topic.
const ingressSource = math.MaxUint16 - 1

// source returns the source from which an event came.
func (e *envelope) source() position {
	if e.ingress {
		return position{topic: ingressSource}
	}
	return e.from
}

// newSourceTimes returns the sources of a namespace when nothing is known about them, except for the highest
// event time.
func newSourceTimes(namespaceID uint8, numbers []uint16, highest int64) *sourceTimes {
	s := &sourceTimes{namespaceID: namespaceID, highest: highest, ingress: never}
	for _, number := range slices.Sorted(slices.Values(numbers)) {
		s.topics = append(s.topics, sourceTopic{number: number, counted: never})
	}
	return s
}

// topic returns an input topic of the namespace; nil if the number belongs to another topic.
func (s *sourceTimes) topic(number uint16) *sourceTopic {
	i := slices.IndexFunc(s.topics, func(t sourceTopic) bool { return t.number == number })
	if i < 0 {
		return nil
	}
	return &s.topics[i]
}

// grow adds partitions, about which nothing is known, until there are n.
func (t *sourceTopic) grow(n int) {
	for len(t.partitions) < n {
		t.partitions = append(t.partitions, reached{never, never})
	}
}

// front returns the highest time of the events of a source in this task; never if there were none, or if the
// namespace has no sources.
func (s *sourceTimes) front(from position) int64 {
	switch {
	case s == nil:
		return never
	case from.topic == ingressSource:
		return s.ingress
	}
	if t := s.topic(from.topic); t != nil && int(from.partition) < len(t.partitions) {
		return t.partitions[from.partition].front
	}
	return never
}

// event takes an event that was admitted with its own time.
func (s *sourceTimes) event(from position, time int64) {
	if t := s.topic(from.topic); t != nil && from.partition < partitionsMax {
		t.grow(int(from.partition) + 1)
		p := &t.partitions[from.partition]
		p.front = max(p.front, time)
	}
	if from.topic == ingressSource {
		s.ingress = max(s.ingress, time)
	}
	s.highest = max(s.highest, time)
}

// progress takes the part of a progress record that is about the inputs. The broker stored the record at the
// time stored: no time in the record counts as later than that, except that events may be ahead by skew.
func (s *sourceTimes) progress(inputs []inputProgress, stored, skew int64, goesOn bool) {
	follows := false
	for _, in := range inputs {
		t := s.topic(in.topic)
		if t == nil {
			continue
		}
		follows, t.counted = true, max(t.counted, min(in.counted, stored))
		t.grow(in.partitions)
		for _, r := range in.read {
			p := &t.partitions[r.partition]
			for _, f := range r.fronts {
				if f.namespaceID == s.namespaceID {
					p.bound = max(p.bound, min(f.at, add(stored, skew)))
					s.highest = max(s.highest, p.bound)
				}
			}
			if r.to != never {
				p.bound = max(p.bound, s.highestBy(min(r.to, stored)))
			}
		}
	}
	if follows {
		s.sample(stored, goesOn)
	}
}

// highestBy returns the highest event time as of a broker time; never if it is not known.
func (s *sourceTimes) highestBy(at int64) int64 {
	for _, sample := range slices.Backward(s.samples) {
		if sample.at <= at {
			return sample.highest
		}
	}
	return never
}

// sample adds a sample of the highest event time, unless it equals the last sample. It drops samples whose
// broker time is after at. If there are too many samples, it drops the sample whose neighbours are nearest to
// each other; if several are equal, the first of them. With goesOn, if no event has raised the highest event
// time since the last sample, the highest event time advances by the broker time since that sample. If a sample
// is dropped, the advance up to that sample does not count.
func (s *sourceTimes) sample(at int64, goesOn bool) {
	kept := slices.DeleteFunc(slices.Clone(s.samples), func(one timeSample) bool { return one.at >= at })
	n := len(kept)
	if goesOn && n > 0 && n < len(s.samples) {
		s.highest = max(kept[n-1].highest, s.ingress)
		for _, t := range s.topics {
			for _, p := range t.partitions {
				s.highest = max(s.highest, p.front, p.bound)
			}
		}
	}
	rests := n > 0 && kept[n-1].highest == s.highest
	if rests && goesOn && s.highest != never {
		s.highest = add(s.highest, at-kept[n-1].at)
		rests = false
	}
	if !rests {
		kept = append(kept, timeSample{at, s.highest})
	}
	if len(kept) > samplesMax {
		drop := 1
		for i := 1; i+1 < len(kept); i++ {
			if kept[i+1].at-kept[i-1].at < kept[drop+1].at-kept[drop-1].at {
				drop = i
			}
		}
		kept = slices.Delete(kept, drop, drop+1)
	}
	s.samples = kept
}

// least returns the lowest time that any source has reached, at a broker time of the log. It returns never
// while the time of a source is not known, or while a topic may have a source that is not known.
func (s *sourceTimes) least(now int64) int64 {
	least := s.highest
	for _, t := range s.topics {
		if t.counted < now-countHolds {
			return never
		}
		for _, p := range t.partitions {
			least = min(least, max(p.front, p.bound))
		}
	}
	return least
}

// follow returns the stream time after an event or a progress record that was stored at broker time now, and
// whether there is one. Stream time is the lowest time of the sources, but never lower than before. follow
// drops the samples below stream time, because they can no longer raise it.
func (s *sourceTimes) follow(now, last int64, running bool) (int64, bool) {
	least := s.least(now)
	if least == never || running && least <= last {
		return last, running
	}
	for len(s.samples) > 1 && s.samples[1].highest <= least {
		s.samples = s.samples[1:]
	}
	return least, true
}

// moveTime moves the stream time of a namespace after an event that was admitted with its own time, and stored
// at broker time now.
func (f *fold) moveTime(e *envelope, namespaceID uint8, now int64) {
	last, running := f.times[namespaceID], f.seen[namespaceID]
	if s := f.sources[namespaceID]; s != nil {
		s.event(e.source(), e.time)
		f.times[namespaceID], f.seen[namespaceID] = s.follow(now, last, running)
		return
	}
	if !running || e.time > last {
		f.times[namespaceID], f.seen[namespaceID] = e.time, true
	}
}

// progress moves the stream times after a progress record.
func (c *check) progress(t *task, r *Record) {
	p, err := openProgress(r.Value)
	if err != nil {
		c.add("K2", "%s: %v", at(r), err)
		return
	}
	f := t.fold
	for id, s := range f.sources {
		s.progress(p.inputs, r.Timestamp, c.skewOf(id), c.cfg.GoesOn[id])
		f.times[id], f.seen[id] = s.follow(r.Timestamp, f.times[id], f.seen[id])
	}
}

// skewOf returns the longest time, in ms, by which a route of the namespace allows an event to be ahead of
// broker time.
func (c *check) skewOf(namespaceID uint8) (longest int64) {
	for i := range c.cfg.Routes {
		if r := &c.cfg.Routes[i]; r.NamespaceID == namespaceID {
			longest = max(longest, r.Skew)
		}
	}
	for i := range c.cfg.Claims {
		if r := &c.cfg.Claims[i]; r.NamespaceID == namespaceID {
			longest = max(longest, r.Skew)
		}
	}
	return longest
}

// sourcesOf returns the sources of a namespace in a checkpoint; nil if the checkpoint has no sources of it.
func (c *checkpoint) sourcesOf(namespaceID uint8) *sourceTimes {
	i := slices.IndexFunc(c.sources, func(s sourceTimes) bool { return s.namespaceID == namespaceID })
	if i < 0 {
		return nil
	}
	return &c.sources[i]
}

// followSources begins to follow the sources of those namespaces for which this checkpoint is the first that
// has sources. This is so because the process that judged the transaction was the first process with the routes
// of these namespaces.
func (c *check) followSources(t *task, cp *checkpoint) {
	for id, numbers := range c.cfg.Sources {
		if t.fold.sources[id] != nil || cp.sourcesOf(id) == nil {
			continue
		}
		highest := int64(never)
		if t.fold.seen[id] {
			highest = t.fold.times[id]
		}
		t.fold.sources[id] = newSourceTimes(id, numbers, highest)
	}
}

// followed compares the sources in a checkpoint with the sources of the fold (K5). For routes in claim mode
// only stream time is compared, because whether a late event has moved the front of its source depends on the
// claim of its key.
func (c *check) followed(t *task, r *Record, cp *checkpoint) {
	for id, want := range t.fold.sources {
		claims := slices.ContainsFunc(c.cfg.Claims, func(claims Claims) bool { return claims.NamespaceID == id })
		if got := cp.sourcesOf(id); got == nil || !claims && !reflect.DeepEqual(got, want) {
			c.add("K5", "%s: checkpoint with sequence %d has the sources %+v for namespace id %d, want %+v", at(r), cp.sequence, got, id, *want)
		}
	}
}

// unfollowed finds namespaces whose sources are in no checkpoint of a task, although the task has judged
// something (K5). If routes were added or removed during the run, only the namespaces of route sets that the
// task has used are checked.
func (c *check) unfollowed(t *task) {
	if !t.chain.has || t.cursor == 0 {
		return
	}
	for id := range c.cfg.Sources {
		_, routed := t.fold.spans.of[id]
		if t.fold.sources[id] == nil && (routed || len(c.cfg.Sets) == 0) {
			c.add("K5", "%s/%d: no checkpoint has the sources of namespace id %d", c.cfg.Changelog, t.partition, id)
		}
	}
}
