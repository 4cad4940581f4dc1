package wire

import "oncebus/dedup"

// Source names a source: a partition of an input topic, by the topic's number in the manifest.
type Source struct {
	Topic     uint16
	Partition int32 // EveryPartition if no router has counted the topic's partitions yet
}

// EveryPartition stands for all partitions of a topic that no router has counted yet.
const EveryPartition int32 = -1

// LeastSource returns the source that keeps stream time back (the first one if there are several), and the time
// of this source; dedup.NoStreamTime if it has none. behind is false if the times of all sources have reached
// Highest. If the count of a topic is too old, no router reads the topic's partitions, so one of these
// partitions keeps stream time back.
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

// PassedSince returns the broker time, in Unix ms, at which Highest became later than an event time, as far as
// the samples show: the result may be a little too early. known is false if no sample shows it.
func (s *Sources) PassedSince(time int64) (since int64, known bool) {
	for _, sample := range s.Samples {
		if sample.Highest > time {
			return sample.At, true
		}
	}
	return 0, false
}
