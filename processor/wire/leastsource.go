package wire

import "oncebus/dedup"

// Source names a source: a partition of an input topic, by the number of the topic.
type Source struct {
	Topic     uint16
	Partition int32 // EveryPartition for a topic of which no router has said how many it has
}

// EveryPartition stands for the partitions of a topic that were not counted yet.
const EveryPartition int32 = -1

// LeastSource returns the source that keeps stream time back, the first of several, and the time
// that it has come to, dedup.NoStreamTime for none. It returns false if all have come to Highest. A
// topic whose count is too old has no source that is read, so one of these keeps stream time back.
func (s *Sources) LeastSource() (of Source, at int64, behind bool) {
	if s.Highest == dedup.NoStreamTime {
		return of, at, false
	}
	for _, t := range s.Topics {
		if t.CountedAt == dedup.NoStreamTime {
			return Source{t.Number, EveryPartition}, dedup.NoStreamTime, true
		}
	}
	at = s.Highest
	i := 0
	for _, t := range s.Topics {
		for p := range int32(t.Partitions) {
			if come := max(s.Front[i], s.Bound[i]); come < at {
				of, at, behind = Source{t.Number, p}, come, true
			}
			i++
		}
	}
	return of, at, behind
}

// PassedSince returns the broker time, in Unix ms, since when Highest is after an event time, as
// far as the samples say: it may be a little earlier. It returns false if no sample does.
func (s *Sources) PassedSince(time int64) (since int64, known bool) {
	for _, sample := range s.Samples {
		if sample.Highest > time {
			return sample.At, true
		}
	}
	return 0, false
}
