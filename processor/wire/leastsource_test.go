package wire

import (
	"testing"

	"oncebus/dedup"
)

// TestLeastSourceNamesWhatKeepsTimeBack: a topic that no router has counted, then a partition of
// which nothing is known, then the one that has come least far; none if all are up to the highest.
func TestLeastSourceNamesWhatKeepsTimeBack(t *testing.T) {
	t.Parallel()
	s := NewSources(7, []uint16{2, 5})
	want := func(when string, of Source, at int64, behind bool) {
		t.Helper()
		if gotOf, gotAt, got := s.LeastSource(); got != behind || behind && (gotOf != of || gotAt != at) {
			t.Errorf("%s: %+v at %d, %v, want %+v at %d, %v", when, gotOf, gotAt, got, of, at, behind)
		}
		if behind && s.Least(100) != at {
			t.Errorf("%s: the least is %d, that of the source %d", when, s.Least(100), at)
		}
	}
	want("no event", Source{}, 0, false)
	s.Highest = 1000
	s.Grow(2, 1, 100)
	s.Grow(5, 1, dedup.NoStreamTime)
	want("5 was met, not counted", Source{5, EveryPartition}, dedup.NoStreamTime, true)
	s.Grow(5, 3, 100)
	want("nothing known of any", Source{2, 0}, dedup.NoStreamTime, true)
	set := func(topic uint16, partition int32, front, bound int64) {
		i, ok := s.Of(topic, partition)
		if !ok {
			t.Fatalf("%d/%d is no source", topic, partition)
		}
		s.Front[i], s.Bound[i] = front, bound
	}
	set(2, 0, 600, 1000)
	set(5, 0, 1000, dedup.NoStreamTime)
	set(5, 2, 300, dedup.NoStreamTime)
	want("nothing known of 5/1", Source{5, 1}, dedup.NoStreamTime, true)
	set(5, 1, 200, 900)
	want("5/2 has come least far", Source{5, 2}, 300, true)
	set(5, 2, 300, 1000)
	want("5/1 was read to 900", Source{5, 1}, 900, true)
	set(5, 1, 1000, 900)
	want("all are up to the highest", Source{}, 0, false)
}

// TestPassedSinceIsTheFirstSampleAfter: the samples say at which broker time the highest event
// time went past another one.
func TestPassedSinceIsTheFirstSampleAfter(t *testing.T) {
	t.Parallel()
	s := NewSources(1, []uint16{0})
	for at := int64(1); at <= 4; at++ {
		s.Highest = 1000 * at
		s.TakeSample(10*at, false)
	}
	for time, want := range map[int64]int64{500: 10, 1000: 20, 2999: 30, 3000: 40} {
		if got, known := s.PassedSince(time); !known || got != want {
			t.Errorf("%d: passed since %d, %v, want %d", time, got, known, want)
		}
	}
	if got, known := s.PassedSince(4000); known {
		t.Errorf("the highest itself was passed at %d", got)
	}
}
