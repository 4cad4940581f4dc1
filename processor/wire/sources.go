package wire

import (
	"cmp"
	"encoding/binary"
	"math"
	"slices"

	"oncebus/dedup"
)

// Sources says how far each source of a namespace has been read, as far as a task of the repartition
// topic knows. A source is a partition of an input topic of the namespace's routes. All times are event
// time in Unix milliseconds, dedup.NoStreamTime for none, unless a comment says otherwise.
//
// The stream time of the namespace follows from the sources: it is the least of the sources' times (see Least).
// So a source that is read slowly keeps stream time back, and its events are not late (hazard T27).
type Sources struct {
	NamespaceID uint8
	// Highest is the highest event time of any source and of events by HTTP. In a namespace where time advances
	// without events (see TakeSample), Highest advances, too.
	Highest int64
	// Ingress is the highest event time of events by HTTP. Such an event is in the task's log before
	// its sender gets an answer, so the ingress never has unread events that would keep stream time
	// back.
	Ingress int64
	// Samples say what Highest was at which broker time, ascending. The oldest sample is not later than the time
	// up to which some source has been read.
	Samples []Sample
	Topics  []SourceTopic // ascending by number
	// Front has, for each source, the highest event time among the events that this task has judged. The task
	// gets them in the source's own order, so Front does not depend on the speed of reading. Bound has, for each
	// source, what Highest was at the broker time up to which the source has been read. If the highest time of
	// all events of the source, including events of other tasks, is later, Bound has that time. Both are ordered
	// by topic, then partition.
	Front, Bound []int64
	// readTo is the broker time up to which each source has been read, as far as it is known. It is not
	// part of a checkpoint: when the task moves, its new owner learns it again from the routers'
	// progress records.
	readTo []int64
}

// Sample says that the highest event time of a namespace was Highest when the task had read its log up to the
// broker time At, in Unix ms.
type Sample struct{ At, Highest int64 }

// SourceTopic is an input topic with its number in the manifest.
type SourceTopic struct {
	Number     uint16
	Partitions int // as many as a router has counted, or the task has met
	// CountedAt is the broker time at which a router counted the partitions, in Unix ms;
	// dedup.NoStreamTime for never.
	CountedAt int64
}

// countHolds is how long a count of partitions is valid, in ms of the task's log. Routers count at least every
// 30 s. A partition that was added after a count has no record that is older than that count. So stream time
// cannot be far ahead of such a partition.
const countHolds = 60_000

// samplesMax bounds the samples of a namespace. If a sample is dropped, the remaining ones describe Highest less
// exactly, so that stream time waits a little longer.
const samplesMax = 16

// NewSources returns the sources of a namespace with input topics about which nothing is known. numbers
// are the numbers of the topics, ascending.
func NewSources(namespaceID uint8, numbers []uint16) Sources {
	s := Sources{NamespaceID: namespaceID, Highest: dedup.NoStreamTime, Ingress: dedup.NoStreamTime}
	for _, n := range numbers {
		s.Topics = append(s.Topics, SourceTopic{Number: n, CountedAt: dedup.NoStreamTime})
	}
	return s
}

// Of returns the index of a source in Front and Bound; false for a partition that is not a source or is
// not known yet.
func (s *Sources) Of(topic uint16, partition int32) (int, bool) {
	at := 0
	for i := range s.Topics {
		t := &s.Topics[i]
		if t.Number == topic {
			return at + int(partition), int(partition) < t.Partitions
		}
		at += t.Partitions
	}
	return 0, false
}

// HasTopic reports whether s has sources of the topic.
func (s *Sources) HasTopic(number uint16) bool {
	return slices.ContainsFunc(s.Topics, func(t SourceTopic) bool { return t.Number == number })
}

// Has reports whether the topics of s are exactly these, ascending.
func (s *Sources) Has(numbers []uint16) bool {
	return slices.EqualFunc(s.Topics, numbers, func(t SourceTopic, n uint16) bool { return t.Number == n })
}

// WithTopics returns s for other input topics. It keeps what is known about topics that stay.
func (s *Sources) WithTopics(numbers []uint16) Sources {
	next := NewSources(s.NamespaceID, numbers)
	next.Highest, next.Ingress, next.Samples = s.Highest, s.Ingress, s.Samples
	for i := range next.Topics {
		at := 0
		for _, t := range s.Topics {
			if t.Number == next.Topics[i].Number {
				next.Topics[i] = t
				next.Front, next.Bound = append(next.Front, s.Front[at:at+t.Partitions]...), append(next.Bound, s.Bound[at:at+t.Partitions]...)
			}
			at += t.Partitions
		}
	}
	return next
}

// Clone returns a copy that shares with s nothing that may change.
func (s *Sources) Clone() Sources {
	c := *s
	c.Samples, c.Topics = slices.Clone(s.Samples), slices.Clone(s.Topics)
	c.Front, c.Bound, c.readTo = slices.Clone(s.Front), slices.Clone(s.Bound), slices.Clone(s.readTo)
	return c
}

// Grow records that a topic has that many partitions. Nothing is known about partitions that are new.
// countedAt is the broker time at which a router counted them; dedup.NoStreamTime if no router did.
// Numbers of partitions and counts never go back.
func (s *Sources) Grow(topic uint16, partitions int, countedAt int64) {
	at := 0
	for i := range s.Topics {
		t := &s.Topics[i]
		at += t.Partitions
		if t.Number != topic {
			continue
		}
		t.CountedAt = max(t.CountedAt, countedAt)
		if more := partitions - t.Partitions; more > 0 {
			unknown := slices.Repeat([]int64{dedup.NoStreamTime}, more)
			s.Front, s.Bound = slices.Insert(s.Front, at, unknown...), slices.Insert(s.Bound, at, unknown...)
			if t.Partitions = partitions; s.readTo != nil {
				s.readTo = slices.Insert(s.readTo, at, unknown...)
			}
		}
		return
	}
}

// AreCounted reports whether the counts of all topics are valid at broker time now. A count that is later than
// now is valid, too, because broker time was set back.
func (s *Sources) AreCounted(now int64) bool {
	for i := range s.Topics {
		if s.Topics[i].CountedAt < now-countHolds {
			return false
		}
	}
	return true
}

// Least returns the least of the sources' times, at broker time now of the task's log; dedup.NoStreamTime while
// nothing is known about some source. It also returns NoStreamTime while a count of partitions is too old,
// because there may be a source that the task does not know of.
//
// A source that has been read to its end does not keep stream time back. Let a source have been read up to a
// broker time, and let the task have got some events by then. A record that is stored in the source later is not
// late because of these events, but only because of earlier events in its own source.
func (s *Sources) Least(now int64) int64 {
	if !s.AreCounted(now) {
		return dedup.NoStreamTime
	}
	least := s.Highest
	for i := range s.Front {
		least = min(least, max(s.Front[i], s.Bound[i]))
	}
	return least
}

// ReadTo records that the source at index has been read up to the broker time at.
func (s *Sources) ReadTo(index int, at int64) {
	n, exact := slices.BinarySearchFunc(s.Samples, at, func(sample Sample, at int64) int { return cmp.Compare(sample.At, at) })
	if !exact {
		n--
	}
	if n >= 0 {
		s.Bound[index] = max(s.Bound[index], s.Samples[n].Highest)
	}
	if s.readTo == nil {
		s.readTo = slices.Repeat([]int64{dedup.NoStreamTime}, len(s.Front))
	}
	s.readTo[index] = max(s.readTo[index], at)
}

// ReadSince returns the broker time up to which all sources have been read: any record that the task does not
// have yet was stored at that time or later. The result is dedup.NoStreamTime while that time is unknown for
// some source.
func (s *Sources) ReadSince() int64 {
	if s.readTo == nil {
		return dedup.NoStreamTime
	}
	since := slices.Min(s.readTo)
	for i := range s.Topics {
		since = min(since, s.Topics[i].CountedAt)
	}
	return since
}

// TakeSample records Highest as of broker time at of the task's log. If broker time was set back, it drops the
// samples that are later than at, because they would say that too much had been read. If Highest had advanced by
// broker time in these samples, it sets Highest back: otherwise a single record with a wrong broker time would
// make live events late.
//
// If goesOn is true, time advances without events: Highest grows by the broker time since the sample before,
// unless an event has raised it. So Highest stays as far behind broker time as it was after the last event that
// raised it. A source that is read up to that broker time has advanced as far, and a source with unread records
// has not.
func (s *Sources) TakeSample(at int64, goesOn bool) {
	before := len(s.Samples)
	for len(s.Samples) > 0 && s.Samples[len(s.Samples)-1].At >= at {
		s.Samples = s.Samples[:len(s.Samples)-1]
	}
	n := len(s.Samples)
	if goesOn && 0 < n && n < before {
		s.Highest = max(s.Samples[n-1].Highest, s.reached())
	}
	if n > 0 && s.Samples[n-1].Highest == s.Highest {
		if !goesOn || s.Highest == dedup.NoStreamTime {
			return
		}
		s.Highest += at - s.Samples[n-1].At
	}
	s.Samples = append(s.Samples, Sample{at, s.Highest})
	if len(s.Samples) > samplesMax {
		s.Samples = dropNearest(s.Samples, func(sample Sample) int64 { return sample.At })
	}
}

// reached returns the highest event time of any source or of the ingress.
func (s *Sources) reached() int64 {
	highest := s.Ingress
	for i := range s.Front {
		highest = max(highest, s.Front[i], s.Bound[i])
	}
	return highest
}

// DropSamples drops the samples that no source needs any more, because stream time is already later.
func (s *Sources) DropSamples(streamTime int64) {
	for len(s.Samples) > 1 && s.Samples[1].Highest <= streamTime {
		s.Samples = s.Samples[1:]
	}
}

// appendTime appends a time that is at most Highest: 0 for no time, else its distance to Highest plus
// 1.
func (s *Sources) appendTime(dst []byte, at int64) []byte {
	if at == dedup.NoStreamTime {
		return append(dst, 0)
	}
	return binary.AppendUvarint(dst, uint64(s.Highest)-uint64(at)+1)
}

// appendChanged appends a time that never decreases; 0 if it has not changed.
func (s *Sources) appendChanged(dst []byte, at, before int64) []byte {
	if at == before {
		return append(dst, 0)
	}
	return s.appendTime(dst, at)
}

func (s *Sources) readTime(r *dedup.Cursor) int64 {
	behind := r.Uvarint(math.MaxUint64)
	if behind == 0 {
		return dedup.NoStreamTime
	}
	return int64(uint64(s.Highest) - (behind - 1))
}

func (s *Sources) appendSamples(dst []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(s.Samples))+1)
	before := int64(0)
	for _, sample := range s.Samples {
		dst = s.appendTime(binary.AppendVarint(dst, sample.At-before), sample.Highest)
		before = sample.At
	}
	return dst
}

// readSamples reads what appendSamples wrote. A leading 0 means that the samples have not changed.
func (s *Sources) readSamples(r *dedup.Cursor) {
	n := r.Uvarint(samplesMax + 1)
	if n == 0 {
		return
	}
	before := int64(0)
	s.Samples = nil
	for n--; n > 0 && !r.Bad(); n-- {
		before += r.Varint()
		s.Samples = append(s.Samples, Sample{before, s.readTime(r)})
	}
}

// appendSources appends the sources of all namespaces:
//
//	namespaces uvarint | for each: id 1, highest varint, ingress, samples, topics uvarint |
//	for each topic: number uvarint, partitions uvarint, counted at varint,
//	for each partition: front, bound
//
// Samples are: their number plus 1, uvarint, and for each: its broker time as the difference to the
// sample before, varint, and its highest. A time is 0 for none, else its distance to the namespace's
// highest plus 1, uvarint.
func appendSources(dst []byte, all []Sources) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(all)))
	for i := range all {
		s := &all[i]
		dst = binary.AppendVarint(append(dst, s.NamespaceID), s.Highest)
		dst = s.appendSamples(s.appendTime(dst, s.Ingress))
		dst = binary.AppendUvarint(dst, uint64(len(s.Topics)))
		at := 0
		for _, t := range s.Topics {
			dst = binary.AppendUvarint(binary.AppendUvarint(dst, uint64(t.Number)), uint64(t.Partitions))
			dst = binary.AppendVarint(dst, t.CountedAt)
			for end := at + t.Partitions; at < end; at++ {
				dst = s.appendTime(s.appendTime(dst, s.Front[at]), s.Bound[at])
			}
		}
	}
	return dst
}

// decodeSources reads what appendSources wrote.
func decodeSources(r *dedup.Cursor) (all []Sources) {
	for n := r.Uvarint(256); n > 0 && !r.Bad(); n-- {
		s := Sources{NamespaceID: r.Byte(), Highest: r.Varint()}
		s.Ingress = s.readTime(r)
		s.readSamples(r)
		for topics := r.Uvarint(math.MaxUint16); topics > 0 && !r.Bad(); topics-- {
			t := SourceTopic{uint16(r.Uvarint(math.MaxUint16)), int(r.Uvarint(maxPartitions)), r.Varint()}
			if last := len(s.Topics) - 1; t.Partitions > r.Left() || last >= 0 && s.Topics[last].Number >= t.Number {
				r.Fail()
			}
			for range t.Partitions {
				if r.Bad() {
					return nil
				}
				front := s.readTime(r)
				s.Front, s.Bound = append(s.Front, front), append(s.Bound, s.readTime(r))
			}
			s.Topics = append(s.Topics, t)
		}
		if last := len(all) - 1; last >= 0 && all[last].NamespaceID >= s.NamespaceID {
			r.Fail()
		}
		all = append(all, s)
	}
	return all
}

// SourcesOf returns the index of a namespace's sources. Without any, it returns false and the index at
// which to insert them.
func (c *Checkpoint) SourcesOf(namespaceID uint8) (int, bool) {
	return slices.BinarySearchFunc(c.Sources, namespaceID, func(s Sources, id uint8) int { return cmp.Compare(s.NamespaceID, id) })
}

// SameSources reports whether both checkpoints have the same sources of the same namespaces, so that c
// can be written as the changes since before. It ignores when the partitions were counted.
func (c *Checkpoint) SameSources(before *Checkpoint) bool {
	return slices.EqualFunc(c.Sources, before.Sources, func(a, b Sources) bool {
		return a.NamespaceID == b.NamespaceID && slices.EqualFunc(a.Topics, b.Topics, func(a, b SourceTopic) bool { return a.Number == b.Number && a.Partitions == b.Partitions })
	})
}

// appendChangedSources appends what changed in the namespaces since before, which must have the same
// sources:
//
//	changed namespaces uvarint | for each: its index uvarint, highest as a difference varint,
//	ingress, or 0 if it is the same, samples, or 0 if they are the same |
//	for each topic: counted at as a difference varint |
//	changed sources uvarint, for each: its index as a difference to the one before uvarint, front,
//	bound
//
// If nothing has changed, it appends nothing and returns false.
func appendChangedSources(dst []byte, all, before []Sources) ([]byte, bool) {
	changed := 0
	for i := range all {
		if !all[i].equals(&before[i]) {
			changed++
		}
	}
	if changed == 0 {
		return dst, false
	}
	dst = binary.AppendUvarint(dst, uint64(changed))
	for i := range all {
		s, old := &all[i], &before[i]
		if s.equals(old) {
			continue
		}
		dst = binary.AppendVarint(binary.AppendUvarint(dst, uint64(i)), s.Highest-old.Highest) // may wrap around, as does its inverse
		dst = s.appendChanged(dst, s.Ingress, old.Ingress)
		if slices.Equal(s.Samples, old.Samples) {
			dst = append(dst, 0)
		} else {
			dst = s.appendSamples(dst)
		}
		for n := range s.Topics {
			dst = binary.AppendVarint(dst, s.Topics[n].CountedAt-old.Topics[n].CountedAt)
		}
		dst = s.appendChanges(dst, old)
	}
	return dst, true
}

// appendChanges appends the sources that have changed since old, in the format of appendChangedSources.
func (s *Sources) appendChanges(dst []byte, old *Sources) []byte {
	changed := func(at int) bool { return s.Front[at] != old.Front[at] || s.Bound[at] != old.Bound[at] }
	n := uint64(0)
	for at := range s.Front {
		if changed(at) {
			n++
		}
	}
	dst = binary.AppendUvarint(dst, n)
	last := 0
	for at := range s.Front {
		if changed(at) {
			dst = binary.AppendUvarint(dst, uint64(at-last))
			dst = s.appendChanged(s.appendChanged(dst, s.Front[at], old.Front[at]), s.Bound[at], old.Bound[at])
			last = at
		}
	}
	return dst
}

// equals reports whether s says the same as before, which must have the same sources. Comparing the
// slices' addresses first is fast, because unchanged checkpoints share them.
func (s *Sources) equals(before *Sources) bool {
	return s.Highest == before.Highest && s.Ingress == before.Ingress && (sameSlice(s.Front, before.Front) || slices.Equal(s.Front, before.Front)) &&
		(sameSlice(s.Bound, before.Bound) || slices.Equal(s.Bound, before.Bound)) && slices.Equal(s.Samples, before.Samples) && slices.Equal(s.Topics, before.Topics)
}

// applyChangedSources reads what appendChangedSources wrote, and returns before with these changes.
func applyChangedSources(r *dedup.Cursor, before []Sources) []Sources {
	all := slices.Clone(before)
	for n := r.Uvarint(256); n > 0 && !r.Bad(); n-- {
		i := int(r.Uvarint(256))
		if i >= len(all) {
			r.Fail()
			break
		}
		s := all[i].Clone()
		s.Highest += r.Varint()
		s.Ingress = max(s.Ingress, s.readTime(r))
		s.readSamples(r)
		for n := range s.Topics {
			s.Topics[n].CountedAt += r.Varint()
		}
		at := 0
		for changed := r.Uvarint(uint64(len(s.Front))); changed > 0 && !r.Bad(); changed-- {
			if at += int(r.Uvarint(uint64(len(s.Front)))); at >= len(s.Front) {
				r.Fail()
				break
			}
			s.Front[at] = max(s.Front[at], s.readTime(r))
			s.Bound[at] = max(s.Bound[at], s.readTime(r))
		}
		all[i] = s
	}
	return all
}
